"""Command line from end to end: output, files, errors and resumed commands."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from metric_page import documented_metrics
from safetensors.torch import load_file
from small_data import save_small

import offline_rl
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.cli.main import main, verbs
from offline_rl.engine import engine
from offline_rl.engine.engine import Engine
from offline_rl.reporting import compact
from offline_rl.runs.folder import named_task
from offline_rl.utils.options import describe_options

TRUE_RUN = Engine.run
LAUNCH = [
    sys.executable,
    "-u",
    "-c",
    "from offline_rl.cli.main import main; raise SystemExit(main())",
]
RUN = Path("runs", "neorl2_DMSD", "td3_bc", "default")
RESULT = {  # keys that scripts rely on
    *("algorithm", "task", "dataset", "dataset_sha256", "seed", "seeds_stacked", "num_updates"),
    *("pretrain_updates", "online_updates"),
    *("num_env_steps", "seconds", "compile_seconds", "updates_per_second", "device", "precision"),
    *("returns", "success", "costs", "score", "behavior_score", "score_reference"),
    *("last_checkpoint", "version", "commit"),
}


def train(**changes: Any) -> list[str]:
    """Return the arguments of a training of about a second; a value of None removes an option."""
    options = {
        "algorithm": "td3_bc",
        "task": "neorl2/DMSD",
        "dataset": "small.npz",
        "num_updates": 20,
        "eval_episodes": 1,
        "compile": "never",
        "tracker": "none",
        "algorithm.hidden": "[8,8]",
    }
    options |= {key.replace("__", "."): value for key, value in changes.items()}
    return ["train", *(f"{k}={v}" for k, v in options.items() if v is not None)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder that contains only small.npz. Data of this machine is not found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of subprocesses
    save_small(tmp_path / "small.npz")
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which `train()` was run."""
    place = tmp_path_factory.mktemp("finished")
    save_small(place / "small.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(train()) == 0
    return place


@pytest.fixture
def run(finished: Path, folder: Path) -> Path:
    """Copy of the finished run in the folder where the same command would write it."""
    shutil.copytree(finished / "runs", folder / "runs")
    return folder / RUN


def tree(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Return every path below `folder`, with size and modification time of files."""
    stats = {str(p.relative_to(folder)): p.stat() for p in folder.rglob("*") if p.is_file()}
    paths = dict.fromkeys(str(p.relative_to(folder)) for p in folder.rglob("*"))
    return paths | {name: (s.st_size, s.st_mtime_ns) for name, s in stats.items()}


def rows(seed_folder: Path) -> list[dict[str, Any]]:
    """Return the evaluation rows of a seed."""
    return [
        json.loads(line) for line in (seed_folder / "evaluations.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_has_a_page_of_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"usage: offline-rl {verb}" in capsys.readouterr().out


def test_a_verb_whose_package_is_not_installed_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verb bench exists in a clone only, not in a wheel."""
    monkeypatch.setattr("offline_rl.cli.main.find_spec", {"offline_rl": True}.get)
    assert "train" in verbs()
    assert "bench" not in verbs()


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_help_explains_every_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Meanings are the comments beside the fields. The first word is on the option's line."""
    main([verb, "--help"])
    out = capsys.readouterr().out
    for prefix, name in verbs()[verb].load().__dict__.get("options", {}).items():
        module, _, cls = name.partition(":")
        for option in describe_options(getattr(import_module(module), cls)):
            assert option.meaning, option.name
            assert re.search(
                rf"^  {prefix}{option.name}=\S*\s+{re.escape(option.meaning.split()[0])}", out, re.M
            )


def test_help_on_an_algorithm_lists_its_hyper_parameters_for_the_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["train", "algorithm=iql", "task=antmaze-umaze-v2", "--help"])
    page = " ".join(capsys.readouterr().out.split())
    assert "(row antmaze-* of configs/algorithm/iql.yaml)" in page
    assert "algorithm.expectile=0.9 " in page
    assert "(a number, at least 0.5 and below 1; default 0.7)" in page
    assert "algorithm.batch_size=256 transitions per update" in page
    main(["train", "algorithm=diffusion_policy", "task=push/standard-expert", "--help"])
    page = " ".join(capsys.readouterr().out.split())
    assert "(a list, at least 1; default null)" in page  # of widths
    assert "(true or false or min_max)" in page
    for algorithm, read in (("sac", True), ("dppo", False)):  # learns only from its own rollouts
        main(["train", f"algorithm={algorithm}", "task=push/standard", "--help"])
        assert ("online.utd=" in capsys.readouterr().out) == read
    assert main(["train", "algorithm=iq", "--help"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_appears_within_a_second(arguments: list[str]) -> None:
    """The limit is on CPU time, so that other work on the machine does not matter."""
    before = os.times()
    subprocess.run([*LAUNCH, *arguments], check=True, capture_output=True)
    after = os.times()
    used = after.children_user + after.children_system
    assert used - before.children_user - before.children_system < 1


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    """Return the error message of a command that must print and write nothing else."""
    before = tree(folder)
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert tree(folder) == before
    assert out == ""
    assert err.startswith("offline-rl: ")
    assert err.count("\n") == 1
    return err


def test_data_of_another_task_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    save_small(folder / "other.npz", obs=5, act=3)
    sentence = refused(train(dataset="other.npz"), capsys, folder)
    assert "other.npz has observations [5] and 3 actions" in sentence
    assert "[6] and 2" in sentence


class Trap:
    """Object that creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


def test_pickled_objects_are_never_loaded(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arrays = dict(np.load(folder / "small.npz"))
    arrays["obs"] = np.array([Trap()] * len(arrays["obs"]), object)
    np.savez(folder / "trap.npz", **arrays)
    sentence = refused(train(dataset="trap.npz"), capsys, folder)
    assert "trap.npz: obs holds pickled Python objects" in sentence
    assert not (folder / "sprung").exists()


def test_a_run_writes_the_files_that_scripts_rely_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(seeds="[3,5]", tracker="tensorboard")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(RUN)
    for seed in (3, 5):
        here = folder / RUN / f"seed_{seed}"
        result = json.loads((here / "result.json").read_text())
        assert result.keys() >= RESULT
        assert (result["seed"], result["seeds_stacked"], result["num_updates"]) == (seed, 2, 20)
        assert result["score_reference"].keys() >= {"min", "max", "source", "environment"}
        assert (here / result["last_checkpoint"]).is_file()
        assert [row["updates"] for row in rows(here)] == [0, 20]
        assert rows(here)[-1]["returns"] == result["returns"]
        for name in ("config.json", "environment.json", "metrics.jsonl", "policy.bundle"):
            assert (here / name).is_file()
        assert list((here / "tensorboard").iterdir())
    assert not list(folder.rglob("*.tmp"))


BASE = "import numpy as np\ndef still(observations):\n    return np.zeros((len(observations), 1))\n"


# RL-100 needs a rollout of an episode, a fitted model, and each phase once
STAGES = {"environments": 2, "decisions": 200, "batch_size": 200, "epochs": 1, "iterations": 1}
STAGES |= {"improvements": 1, "judge_updates": 150, "dynamics_lr": 0.01, "imitation_updates": 5}
STAGES |= {"num_inference_steps": 2, "tuned": 2}


def as_option(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


# one of each way to train: imitation, offline, online, distillation, fine-tuning, a residual policy
QUICK = {"bc", "td3_bc", "sac", "consistency", "dppo", "resfit"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in algorithm_names()],
)
def test_every_algorithm_trains_and_its_metrics_are_documented(name: str, folder: Path) -> None:
    """The task has no tuned settings, and the networks are small."""
    cls = algorithm_class(name)
    small = {f"algorithm__{k}": as_option(v) for k, v in cls.Config.small().items()}
    constrained = "costs" in cls.extra_columns or hasattr(cls.Config, "target_cost")
    environment = "safe/PointHazards" if constrained else "env:Pendulum-v1"
    task = {"algorithm": name, "task": environment, "dataset": "small.npz"}
    if name in ("msg", "spot"):  # they have a preliminary phase by default
        task["pretrain_updates"] = 4
    if cls.uses_facts:  # it is not known when episodes of this task end
        small |= {"algorithm__ends": "never", "algorithm__outside_max": 1.0}
    if "expert" in cls.extra_columns:
        task["expert_dataset"] = "small.npz"
    obs, act = (22, 2) if constrained else (3, 1)
    save_small(folder / "small.npz", obs=obs, act=act, costs=constrained)
    rest = ("eval_episodes=1", "compile=never", "tracker=none", "out=then", f"algorithm={name}")
    if cls.mode.start in ("teacher", "run"):  # it needs the policy of another run
        teacher = "td3_bc" if name == "sparse_policy" else "diffusion_policy"
        base = algorithm_class(teacher).Config.small()
        if name in ("consistency", "one_step"):
            del base["num_train_timesteps"]
            base["process"] = "edm"
        first = {f"algorithm__{k}": as_option(v) for k, v in base.items()}
        first = {"algorithm__hidden": None} | first | task | {"algorithm": teacher}
        assert main(train(**first)) == 0
        (run,) = folder.glob("runs/*/*/*")
        learn = ("distill", "num_updates=20")
        if cls.mode.start == "run":
            sizes = ("tuned=2", "environments=2", "decisions=12", "batch_size=12", "epochs=2")
            learn = ("finetune", "num_env_steps=48", *(f"algorithm.{size}" for size in sizes))
        assert main([*learn, f"run={run}", *rest]) == 0
    elif cls.mode.start == "base":  # it has a base
        (folder / "base.py").write_text(BASE)
        settings = ("online.warmup_steps=40", "online.critic_updates=20")
        settings += ("algorithm.hidden=[8,8]", "batch_size=8")
        options = ("base=base.py:still", "task=env:Pendulum-v1", "dataset=small.npz")
        assert main(["finetune", "num_env_steps=60", *options, *settings, *rest]) == 0
    else:
        if name == "rl100":
            small |= {f"algorithm__{key}": value for key, value in STAGES.items()}
            task["num_env_steps"] = 800
        if cls.mode.learns == ("environment",) and cls.uses_facts:
            task |= {"dataset": None, "num_updates": None, "num_env_steps": 48}
            small["online__warmup_steps"] = 8
        if name in ("ppo", "trpo"):  # they learn from their own rollouts
            task |= {"dataset": None, "num_updates": None, "num_env_steps": 96}
        if name == "hnpg":  # likewise, next to data
            task |= {"num_updates": None, "num_env_steps": 96}
        options = {"algorithm__hidden": None} | small | task | {"out": "then"}
        assert main(train(**options)) == 0
    (here,) = folder.glob("then/*/*/*/seed_0")
    lines = [
        *(here / "metrics.jsonl").read_text().splitlines(),
        *(here / "evaluations.jsonl").read_text().splitlines(),
    ]
    logged = {key for line in lines for key in json.loads(line) if "/" in key}
    expected = {"eval/return", "time/updates_per_second"}
    if name not in ("arsq", "cqn"):  # their policy is the critic
        expected |= {"train/policy_loss"}
    assert expected <= logged <= documented_metrics()


def test_several_values_are_several_runs_and_one_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train(algorithm="td3_bc,bc", task="none", seeds="range(0,2)"), "-m"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2: none_small bc default" in out
    assert out.splitlines()[-1] == str(Path("runs", "none_small"))
    assert len(list(folder.glob("runs/none_small/*/default/seed_*/result.json"))) == 4
    assert "td3_bc" in (folder / "runs" / "none_small" / "report.md").read_text()


def test_a_printed_job_is_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(folder)
    assert main([*train(), "--cfg", "job"]) == 0
    assert "num_updates: 20\n" in capsys.readouterr().out
    assert tree(folder) == before


def test_without_an_environment_each_dataset_has_its_own_folder_and_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second file of the same name is refused, and the error names the remedy."""
    save_small(folder / "large.npz", num_rows=600)
    for name in ("small", "large"):
        assert main(train(task="none", dataset=f"{name}.npz")) == 0
    names = {path.parents[3].name for path in folder.rglob("result.json")}
    assert names == {"none_small", "none_large"}
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "not evaluated" in line] == [
        "none/large: not evaluated",
        "none/small: not evaluated",
    ]
    compact.pack(["runs"], folder / "study")
    tasks = [record.run for record in compact.read(folder / "study")]
    assert tasks == ["none/large/td3_bc/default", "none/small/td3_bc/default"]
    (folder / "elsewhere").mkdir()
    save_small(folder / "elsewhere" / "small.npz", num_rows=600)
    assert main(train(task="none", dataset="elsewhere/small.npz", action_scale=2)) == 2
    message = (
        "other data (small.npz, now it is elsewhere/small.npz). Give the new run another name="
    )
    assert message in capsys.readouterr().err


def test_a_card_without_its_environment_is_named_in_full() -> None:
    assert named_task({"task": "none", "dataset": "neorl2/Fusion"}) == "none/neorl2/Fusion"
    assert named_task({"task": "none", "dataset": "/data/a.b.hdf5"}) == "none/a.b"
    assert named_task({"task": "none", "dataset": "demos/"}) == "none/demos"
    assert named_task({"task": "neorl2/DMSD", "dataset": "mine.npz"}) == "neorl2/DMSD"


def test_a_run_without_an_environment_says_so_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(task="none")) == 0
    assert capsys.readouterr().out.count("without evaluation") == 1
    (path,) = folder.rglob("result.json")
    result = json.loads(path.read_text())
    assert result["returns"] is None
    assert result["score"] is None


def test_a_finished_run_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(run / "seed_0")
    assert main(train()) == 0
    out = capsys.readouterr().out
    assert "already finished" in out
    assert out.splitlines()[-1] == str(RUN)
    assert tree(run / "seed_0") == before


@pytest.mark.parametrize(
    "changes", [{"algorithm__alpha": 1.0}, {"batch_size": 64}, {"num_updates": 10}], ids=str
)
def test_another_value_for_an_existing_run_is_refused_by_name(
    changes: dict[str, Any], run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key,) = changes
    sentence = refused(train(**changes), capsys, folder)
    assert key.removeprefix("algorithm__") in sentence
    assert "name=" in sentence


def test_another_file_under_the_same_name_is_refused(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_small(folder / "small.npz", num_rows=600)
    assert "data" in refused(train(), capsys, folder)


def test_a_seed_added_later_is_all_that_is_trained(run: Path) -> None:
    before = tree(run / "seed_0")
    assert main(train(seeds=2)) == 0
    assert tree(run / "seed_0") == before
    assert (run / "seed_1" / "result.json").is_file()


@pytest.mark.slow
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"num_updates": 40, "checkpoint_every": 10, "eval_every": 20}
    assert main(train(**plan, name="whole")) == 0
    true_run = Engine.run

    def stop_after_30(self: Engine, *args: Any) -> None:
        if self.updates >= 30:
            raise KeyboardInterrupt
        true_run(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", stop_after_30)
        assert main(train(**plan, name="cut")) == 130
    assert "Traceback" not in capsys.readouterr().err
    complete, cut = (folder / RUN.with_name(name) / "seed_0" for name in ("whole", "cut"))
    assert not (cut / "result.json").exists()
    assert main(train(**plan, name="cut")) == 0

    assert [row["updates"] for row in rows(cut)] == [0, 20, 40]
    assert [row["returns"] for row in rows(cut)] == [row["returns"] for row in rows(complete)]
    last = [
        load_file(seed / "checkpoints" / "updates_0000000040.safetensors")
        for seed in (complete, cut)
    ]
    assert last[0].keys() == last[1].keys()
    for name, value in last[0].items():
        assert value.equal(last[1][name]), name


@pytest.mark.slow
def test_a_folder_belongs_to_one_process_at_a_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*LAUNCH, *train(num_updates=1_000_000)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # child processes inherit an ignored Ctrl-C from the tests
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, preexec_fn=heed, **pipes) as first:
        try:
            assert "td3_bc on neorl2/DMSD" in first.stdout.readline()  # it has started
            assert main(train(num_updates=1_000_000)) == 2
            assert "in use by another process" in capsys.readouterr().err
            first.send_signal(signal.SIGINT)
            _, err = first.communicate(timeout=60)
        finally:
            first.kill()
    assert first.returncode == 130
    assert "Traceback" not in err
    assert err.rstrip().endswith("repeat the command to continue")
    assert not list(folder.rglob("*.tmp"))


def swallow(self: Engine, *args: Any) -> None:
    """Turn Ctrl-C into another error, as some libraries do."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("something failed inside a kernel") from None
    TRUE_RUN(self, *args)


@pytest.mark.parametrize(
    ("handler", "code"), [(signal.default_int_handler, 130), (signal.SIG_IGN, 0)]
)
def test_ctrl_c_interrupts_whatever_a_library_makes_of_it_unless_it_is_ignored(
    handler: Any,
    code: int,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "run", swallow)
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert main(train(num_updates=10)) == code
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("online", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ctrl_c_during_compilation_stops_immediately_and_loses_nothing(
    online: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ctrl_c: None,
) -> None:
    """The state before the compilation is restored. Online, the steps so far are kept."""
    keys: dict[str, Any] = {"num_updates": 60, "checkpoint_every": 1000, "compile": "always"}
    if online:
        keys |= {"algorithm": "sac", "task": "neorl2/DMSD", "dataset": None}
        keys |= {"num_updates": None, "num_env_steps": 80, "online__warmup_steps": 20}
        keys |= {"batch_size": 8}
    monkeypatch.setattr(engine, "compile_graph", lambda graph, *_: graph)
    assert main(train(**keys, name="whole")) == 0

    def interrupted(graph: Any, *_: Any) -> Any:
        def run(leaves: list[Any], inputs: list[Any]) -> Any:
            graph(leaves, inputs)  # changes the state
            signal.raise_signal(signal.SIGINT)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(engine, "compile_graph", interrupted)
        capsys.readouterr()
        assert main(train(**keys, name="cut")) == 130
    output = capsys.readouterr()
    assert "Interrupted. The compilation is abandoned" in output.out
    assert output.err == "offline-rl: interrupted; repeat the command to continue\n"
    (cut,) = folder.glob("runs/*/*/cut/seed_0")
    assert len(list(cut.glob("checkpoints/*"))) == online
    assert main(train(**keys, name="cut")) == 0
    (complete,) = folder.glob("runs/*/*/whole/seed_0")
    last = [load_file(max(seed.glob("checkpoints/*"))) for seed in (complete, cut)]
    assert last[0].keys() == last[1].keys()
    for name, value in last[0].items():
        assert value.equal(last[1][name]), name
    assert [row["returns"] for row in rows(cut)] == [row["returns"] for row in rows(complete)]


def test_a_trained_policy_is_evaluated_and_reported(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", f"run={RUN}", "episodes=2"]) == 0
    assert main(["report", "runs", "out=page"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(Path("page", "report.md"))
    assert "td3_bc" in Path("page", "report.md").read_text()


def test_data_is_listed_described_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "neorl2/DMSD" in capsys.readouterr().out
    assert main(["data", "info", "small.npz"]) == 0
    assert "300" in capsys.readouterr().out
    assert main(["data", "check", "small.npz"]) == 0


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_written(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offline_rl.runs.refusals.find_spec", lambda name: None)
    assert main(train(tracker=package)) == 2
    assert f"pip install {package}" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_a_missing_login_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    assert "wandb login" in refused(train(tracker="wandb"), capsys, folder)


def test_a_closed_reader_does_not_stop_a_command(run: Path, folder: Path) -> None:
    """The reader closes the pipe, as in `offline-rl data list | head -1`. The command finishes."""
    reader, writer = os.pipe()
    os.close(reader)
    listing = subprocess.run([*LAUNCH, "data", "list"], stdout=writer, stderr=subprocess.PIPE)
    training = subprocess.run([*LAUNCH, *train(name="new")], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (listing.stderr, listing.returncode) == (b"", 0)
    assert (training.stderr, training.returncode) == (b"", 0)
    assert (folder / RUN.with_name("new") / "seed_0" / "policy.bundle").is_file()


NAMED = """
import gymnasium, numpy as np

class Named(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        a=gymnasium.spaces.Box(-1, 1, (3,)), b=gymnasium.spaces.Box(-1, 1, (2,))
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}, {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}
"""


def test_a_users_environment_keeps_time_limit_and_observation_keys_of_its_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit also holds in a later evaluation. Every step has a reward of 1."""
    (folder / "named_world.py").write_text(NAMED)
    arguments = train(algorithm="sac", task="env:named_world.py:Named", dataset=None, num_updates=0)
    arguments += ["num_env_steps=10", "max_episode_steps=5", "observation_keys=[a]"]
    assert main(arguments) == 0
    (run,) = folder.glob("runs/*/sac/default")
    assert [row["lengths"] for row in rows(run / "seed_0")] == [[5], [5]]
    capsys.readouterr()
    assert main(["evaluate", f"run={run}", "episodes=1", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["bundles"][0]["returns"] == [5]
    assert offline_rl.load(run).evaluate(1).lengths.tolist() == [5]


def test_without_a_compiler_auto_continues_and_always_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(train(compile="always")) == 2
    assert "no C++ compiler (no-such-compiler)" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert main(train(compile="auto", name="auto")) == 0
    assert "not compiling: no C++ compiler" in capsys.readouterr().out


def test_action_scale_converts_data_in_other_units(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(folder / "small.npz") as file:
        columns = dict(file)
    np.savez(folder / "large.npz", **{**columns, "action": 30 * columns["action"]})
    assert main(train(dataset="large.npz")) == 2
    assert "action_scale" in capsys.readouterr().err
    assert main(train(dataset="large.npz", action_scale=30)) == 0


def test_reading_options_apply_in_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Observations, demonstrations and action range of robomimic's layout are options."""
    rng = np.random.default_rng(0)
    with h5py.File(folder / "demos.bin", "w") as file:
        for demo in range(2):
            group = file.create_group(f"data/demo_{demo}")
            group["actions"] = rng.uniform(0, 512, (100, 2))
            group["rewards"] = rng.normal(size=100)
            for key, width in (("pos", 2), ("vel", 4), ("force", 3)):
                group[f"obs/{key}"] = rng.normal(size=(100, width))
        file["mask/train"] = np.array(["demo_1"], "S8")
    assert main(train(dataset="demos.bin")) == 2
    assert "action_range=[low,high]" in capsys.readouterr().err
    options = {"observation_keys": "[vel,pos]", "subset": "train", "action_range": "[0,512]"}
    assert main(train(dataset="demos.bin", **options)) == 0
    output = capsys.readouterr().out
    assert "100 rows of demos.bin" in output
    assert "observed: vel, pos" in output

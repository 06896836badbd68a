"""Jobs from command lines: Hydra's grammar, experiments, --cfg job."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from offline_rl.cli.compose import compose, runs_to_yaml
from offline_rl.runs.run import runs_of
from offline_rl.utils.errors import UserError


def jobs(line: str) -> list[dict[str, Any]]:
    return compose(line.split()).jobs


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Experiment file of the user in the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(
        "algorithm: {name: iql, beta: 2.0}\n"
        "task: antmaze-umaze-v2\n"
        "num_updates: 70\n"
        "batch_size: 32\n"
        "algorithm.tau: 0.01\n"
    )
    return path


def test_a_line_without_a_sweep_is_one_job() -> None:
    assert jobs("algorithm=iql task=none seeds=3 algorithm.beta=[1,3]") == [
        {"algorithm": "iql", "task": "none", "seeds": 3, "algorithm.beta": [1, 3]}
    ]


def test_a_sweep_is_the_product_of_its_values_in_hydras_order() -> None:
    combinations = jobs(
        "-m algorithm=iql,cql num_updates=range(10,30,10) utd=choice(1,2) task=none"
    )
    assert [(j["algorithm"], j["num_updates"], j["utd"]) for j in combinations] == [
        (algorithm, updates, utd)
        for algorithm in ("iql", "cql")
        for updates in (10, 20)
        for utd in (1, 2)
    ]
    assert {j["task"] for j in combinations} == {"none"}


def test_in_a_sweep_a_seed_is_a_seed_and_elsewhere_a_count() -> None:
    assert [j["seeds"] for j in jobs("--multirun seeds=range(0,3)")] == [[0], [1], [2]]
    assert [j["seeds"] for j in jobs("-m seeds=3 name=a,b")] == [3, 3]
    assert [j["seeds"] for j in jobs("-m seeds=[0,1],[7]")] == [[0, 1], [7]]


def test_glob_selects_among_the_files_of_a_group() -> None:
    combinations = jobs("-m algorithm=glob([td3*,sac],exclude=td3_bc)")
    assert [j["algorithm"] for j in combinations] == ["sac", "td3"]


def test_the_command_line_overrides_the_experiment_and_that_the_table(mine: Path) -> None:
    """The table for D4RL's ant mazes has expectile 0.9 and beta 10; the defaults are 0.7 and 3."""
    (job,) = jobs("experiment=mine.yaml num_updates=50 algorithm.tau=0.02")
    (run,) = runs_of(job)
    cfg = run.method.cfg
    assert (run.budget.num_updates, run.task.name) == (50, "antmaze-umaze-v2")
    assert (cfg.beta, cfg.expectile, cfg.tau, cfg.batch_size) == (2.0, 0.9, 0.02, 32)
    (job,) = jobs("experiment=mine.yaml algorithm.batch_size=64")
    assert runs_of(job)[0].method.cfg.batch_size == 64


def test_the_experiment_names_the_run_unless_a_name_is_set(mine: Path) -> None:
    assert [j["name"] for j in jobs("-m experiment=mine.yaml,demo")] == ["mine", "demo"]
    assert jobs("experiment=demo name=other")[0]["name"] == "other"


def test_an_experiment_may_extend_others(mine: Path) -> None:
    mine.write_text("algorithm: iql\nseeds: 3\ntask: none\n")
    other = mine.with_name("other.yaml")
    begins = "defaults:\n  - mine.yaml\n  - override /algorithm: cql\n  - _self_\n"
    other.write_text(begins + "eval_every: 5\n")
    (job,) = jobs("experiment=other.yaml")
    assert (job["algorithm"], job["eval_every"], job["seeds"]) == ("cql", 5, 3)


def test_the_printed_job_is_an_experiment_that_runs_the_same(mine: Path) -> None:
    command = compose(["--cfg", "job", "experiment=mine.yaml", "algorithm.beta=[1,3]"])
    assert command.print_only
    runs = runs_of(command.jobs[0])
    text = runs_to_yaml(runs)
    assert text.startswith("# includes row antmaze-* of configs/algorithm/iql.yaml\n")
    tree = OmegaConf.create(text)
    assert tree.algorithm.name == "iql"
    assert tree.algorithm.beta == [1.0, 3.0]
    assert tree.algorithm.expectile == 0.9  # the row's
    mine.with_name("again.yaml").write_text(text)
    (again,) = jobs("experiment=again.yaml")
    assert runs_to_yaml(runs_of(again)) == text
    assert runs_of(again) == runs


MISTAKES = {
    "a sweep without -m": ("algorithm=iql,cql", ["'algorithm=iql,cql'", "-m"]),
    "an interval": ("-m algorithm.beta=interval(0,1)", ["interval(0,1)", "range("]),
    "an empty sweep": ("-m task=glob(*)", ["'task=glob(*)'", "no values"]),
    "an added key": ("+algorithm.beta=3", ["'+algorithm.beta=3'", "key=value"]),
    "a forced key": ("++seeds=3", ["'++seeds=3'", "key=value"]),
    "a key taken away": ("~seeds", ["'~seeds'", "another value"]),
    "a package": ("algorithm@x=iql", ["'algorithm@x=iql'", "key=value"]),
    "a flag": ("--multrun task=none", ["'--multrun'", "--multirun"]),
    "another part of the config": ("--cfg hydra", ["--cfg job"]),
    "an experiment": ("experiment=dmo", ["'dmo'", "demo"]),
    "an experiment's file": ("experiment=dmo.yaml", ["dmo.yaml", "no such file"]),
    "a key twice": ("-m seeds=1,2 seeds=3", ["seeds", "twice"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_sentence(mistake: str) -> None:
    line, words = MISTAKES[mistake]
    with pytest.raises(UserError) as error:
        compose(line.split())
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_update: 5", ["unknown option 'num_update'", "num_updates"]),
        ("algorithm: {alhpa: 5}", ["unknown option 'algorithm.alhpa'", "algorithm.alpha"]),
        ("num_updates: many", ["num_updates='many'", "an integer"]),
        ("algorithm.alpha: [1, x]", ["algorithm.alpha", "a number"]),
        ("wandb: {projct: mine}", ["'wandb.projct'", "wandb.project"]),
        ("defaults: [mine.yaml]", ["extends itself"]),
        ("defaults: [dmo]", ["'dmo'", "demo"]),
        ("defaults: [{experiment: demo}]", ["unknown option 'experiment'"]),
        ("a: [1", ["not readable as YAML"]),
    ],
)
def test_a_mistake_in_an_experiment_names_the_file(
    text: str, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("mine.yaml", str(path)))
    with pytest.raises(UserError) as error:
        compose([f"experiment={path}", "algorithm=td3_bc"])
    assert str(path) in str(error.value) or "demo" in words
    assert all(word in str(error.value) for word in words)


def test_names_keep_their_spelling(tmp_path: Path) -> None:
    """Hydra reads numbers; folders and names are text."""
    (job,) = jobs("algorithm=iql task=none name=1.10 out=2026_11_22 num_updates=1_000 seeds=2")
    runs = runs_of({**job, "dataset": "1e3"})
    assert (runs[0].name, runs[0].output.out) == ("1.10", "2026_11_22")
    assert (runs[0].budget.num_updates, len(runs)) == (1000, 2)
    assert type(runs[0].budget.num_updates) is int
    (small,) = runs_of(jobs("algorithm=iql task=none algorithm.tau=1e-3")[0])
    assert small.method.cfg.tau == 0.001
    assert "name: '1.10'" in runs_to_yaml(runs)

"""Online training: sources, long periods, failures, and continuing from another run."""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from prepared import prepare
from printed import report
from safetensors.torch import load_file
from torch import nn

import envs
from envs import tasks
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.base import Algorithm, minimize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.algorithms.common.schedule import Interact, Learn, Online, Position, locate
from offline_rl.data.read import read
from offline_rl.data.transform import Preprocessing
from offline_rl.data.writers.d4rl import write
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.reporting import compact
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.runs.start import Start, continued_keys, network_settings, start_of
from offline_rl.training.trainer import Trainer
from offline_rl.training.work import Work
from offline_rl.utils.files import read_json
from policies import Spec
from policies.networks.mlp import Scalar

QUICK: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 2}
QUICK |= {"algorithm.hidden": [8], "eval_episodes": 1, "tracker": "none", "show": False}
QUICK |= {"online.warmup_steps": 10, "checkpoint_every": 20, "eval_every": 1000}
TWO = {"algorithm.policy_hidden": [8], "algorithm.critic_hidden": [8], "algorithm.num_samples": 2}
VAE = {"algorithm.hidden": [8], "algorithm.vae_hidden": [8], "algorithm.vae_updates": 6}
SIZES: dict[str, dict[str, Any]] = {"cal_ql": TWO, "cql": TWO, "spot": VAE}
OFFLINE = {k: v for k, v in QUICK.items() if not k.startswith("online.")}


class Line(gymnasium.Env):
    """Point on a line, 10 steps. The reward is its position. It fails where `breaks` says so."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    breaks: ClassVar[
        dict[str, Any]
    ] = {}  # fault -> function of (number, steps) that is True if it happens
    made = -1  # two are compared, -1 and 0; the next collect, one for each seed
    closed: ClassVar[list[int]] = []  # their numbers

    def __init__(self) -> None:
        self.number, self.steps = Line.made, 0
        if "make" in self.breaks and self.breaks["make"](self.number, 0):
            raise OSError("no cable is there")
        Line.made += 1

    def close(self) -> None:
        Line.closed.append(self.number)
        if "close" in self.breaks and self.breaks["close"](self.number, self.steps):
            raise OSError("the cable is stuck")

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        if "reset" in self.breaks and self.breaks["reset"](self.number, self.steps):
            raise OSError("the cable is out")
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        self.x, self.t = self.x + 0.1 * float(action[0]), self.t + 1
        broken = {kind for kind, when in self.breaks.items() if when(self.number, self.steps)}
        if "raise" in broken:
            raise OSError("the cable is out")
        reward, seen = (float("nan") if kind in broken else self.x for kind in ("nan", "unseen"))
        return np.array([seen, self.t], np.float32), reward, False, False, {}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the registered task."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    monkeypatch.setattr(Line, "breaks", {})
    monkeypatch.setattr(Line, "made", -1)
    monkeypatch.setattr(Line, "closed", [])
    envs.register("line", Line, max_episode_steps=10)
    return "line"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a dataset of the line's shape with rewards of at least 100, unlike the line's."""
    draw, ends = np.random.default_rng(0), np.arange(60) % 10 == 9
    rows = (draw.normal(size=(60, 2)), draw.uniform(-1, 1, (60, 1)), 100 + draw.uniform(size=60))
    return write(Dataset.from_arrays(*rows, ends & False, ends, rows[0]), tmp_path / "line.hdf5")


def small(algorithm: str, **values: Any) -> dict[str, Any]:
    """Return the options of a run of one seed with small networks."""
    keys = {k: v for k, v in QUICK.items() if not k.startswith(("algorithm.", "online."))}
    sizes = SIZES.get(algorithm, {"algorithm.hidden": [8]})
    return {**keys, **sizes, "algorithm": algorithm, "seeds": 1, **values}


def returns(run: Path) -> list[list[float]]:
    """Return the returns of each evaluation of seed 0."""
    rows = (run / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(row)["returns"] for row in rows]


def tensors(run: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of the newest checkpoint."""
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[max(files)])


def learned(run: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the newest checkpoint's tensors without the buffer."""
    return {k: v for k, v in tensors(run, seed).items() if not k.startswith("buffer/")}


def bitwise_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    """Return True if both have the same names and bitwise equal tensors."""
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def killed_and_resumed(command: Callable[..., Any], step: int, **keys: Any) -> Path:
    """Return the run of a command that is killed in its second evaluation and repeated.

    step: progress of the phase in that evaluation.
    """
    steps, folders = list[int](), list[SeedFolder]()

    def stop(trainer: Any) -> None:
        steps.append(trainer.work.moment.step)
        folders[:] = trainer.folders
        if steps == [0, step]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command(**keys, watch=stop)
    assert all(folder.checkpoints() for folder in folders)
    path: Path = command(**keys, watch=stop).path
    assert steps[:3] == [0, step, step]  # the second time from a checkpoint
    return path


def test_online_experience_is_stored_separately_and_used_after_the_data(
    line: str, data: Path, tmp_path: Path
) -> None:
    """The data's rewards are above 100 and are not in the buffer. Both phases run."""
    keys = {**QUICK, "algorithm": "sac", "task": line, "dataset": str(data), "out": str(tmp_path)}
    result = train(**keys, num_updates=20, num_env_steps=40)
    assert [r["online_updates"] for r in result.results] == [30, 30]
    rewards = tensors(result.path)["buffer/rewards"]
    assert len(rewards) == 40
    assert rewards.abs().max() < 10
    rows = (result.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    when = [(row["updates"], row["env_steps"]) for row in map(json.loads, rows)]
    assert when == [(0, 0), (20, 0), (50, 40)]  # at the start, at the switch and at the end


def test_schedules_end_with_the_updates_for_any_utd(line: str, data: Path, tmp_path: Path) -> None:
    """There is half an update per step, with and without data, and also in a continued run."""
    keys = {**QUICK, "algorithm": "sac", "task": line, "dataset": str(data), "out": str(tmp_path)}
    keys |= {"seeds": 1}
    lengths = list[int]()

    def look(trainer: Any) -> None:
        lengths.append(trainer.engine.algorithm.num_updates)

    alone = keys | {"utd": 0.5, "num_updates": 0, "num_env_steps": 30, "name": "alone"}
    train(**alone, watch=look)
    assert set(lengths) == {15}
    lengths.clear()
    offline = {k: v for k, v in keys.items() if not k.startswith("online.")}
    run = train(**offline, num_updates=8, watch=look).path
    more = {"num_env_steps": 30, "out": str(tmp_path), "eval_episodes": 1, "compile": "never"}
    finetune(run=run, **more, tracker="none", show=False, watch=look)
    assert set(lengths) == {8}


def test_a_mixture_learns_from_both(line: str, data: Path, tmp_path: Path) -> None:
    """Rewards of 100 raise the critic's targets. Without them they stay near the line's rewards."""
    means = {}
    for offline_fraction in (0.0, 0.5, "rows"):
        keys = {**QUICK, "algorithm": "sac", "task": line, "dataset": str(data)}
        keys |= {
            "out": str(tmp_path),
            "name": f"mixing-{offline_fraction}",
            "online.offline_fraction": offline_fraction,
        }
        path = train(**keys, num_updates=0, num_env_steps=30).path
        lines = (path / "seed_0" / "metrics.jsonl").read_text().splitlines()
        means[offline_fraction] = json.loads(lines[-1])["train/target"]
    assert abs(means[0.0]) < 15
    assert means[0.5] == pytest.approx(50, abs=15)
    assert means["rows"] > means[0.5]  # 60 rows of data and at most 30 rows of experience


def test_one_command_and_two_give_equal_parameters_also_after_a_kill(
    line: str, data: Path, tmp_path: Path
) -> None:
    """It is killed in the offline phase, and within an episode after the first online updates."""
    keys = {**QUICK, "algorithm": "sac", "task": line, "dataset": str(data), "out": str(tmp_path)}
    offline = {k: v for k, v in keys.items() if not k.startswith("online.")}
    keys |= {"num_updates": 20, "num_env_steps": 40}
    whole = train(**keys, name="whole").path
    first = train(**offline, num_updates=20, name="first").path
    more = {k: v for k, v in QUICK.items() if k != "seeds"} | {"out": str(tmp_path), "run": first}
    more |= {"online.warmup_policy": "random", "num_env_steps": 40}
    second = finetune(**more, name="second").path
    early, late = ({"eval_every": e, "checkpoint_every": c} for e, c in ((12, 8), (20, 15)))
    resumed = killed_and_resumed(train, 12, **{**keys, **early, "name": "early"})
    cut = killed_and_resumed(finetune, 20, **{**more, **late, "name": "cut"})
    for path in (second, resumed, cut):
        for seed in range(2):
            assert bitwise_equal(tensors(path, seed), tensors(whole, seed))
    for path in (second, cut):
        begun = json.loads((path / "seed_0" / "config.json").read_text())["start"]
        assert begun["updates"] == 20
        assert set(begun["sha256"]) == {"0"}
    moved = first.rename(tmp_path / "moved")  # recognized by its checksums
    assert finetune(**{**more, "run": moved}, name="second").path == second


def test_a_run_killed_in_an_episode_resumes_the_policys_memory(line: str, tmp_path: Path) -> None:
    """Decision transformer instead of TD3's policy. Its return-to-go decreases by the rewards."""
    (tmp_path / "remembers.py").write_text(REMEMBERS)
    keys: dict[str, Any] = {**OFFLINE, "algorithm": str(tmp_path / "remembers.py"), "seeds": 1}
    keys |= {"task": line, "out": str(tmp_path), "num_updates": 0, "num_env_steps": 27}
    keys |= {"online.warmup_steps": 0, "online.warmup_policy": "policy"}
    whole = train(**keys, name="whole").path
    keys |= {"checkpoint_every": 25, "eval_every": 26}
    cut = killed_and_resumed(train, 26, **keys, name="cut")
    assert bitwise_equal(tensors(cut), tensors(whole))
    assert {k for k in tensors(cut) if k.startswith("memory/")}


REMEMBERS = """
from dataclasses import replace

from offline_rl.algorithms.td3 import TD3, Config
from policies.heads.decision_transformer import DecisionTransformer
from policies.networks.mlp import Scalar


class Remembers(TD3):
    Config, targets, frozen_networks = Config, {"critic_target": "critic"}, ("count",)

    def networks(self):
        sizes = {"target_return": 1.0, "context_length": 3, "dim_model": 8, "num_layers": 1}
        sizes |= {"episode_steps": 10}
        policy = DecisionTransformer(self.spec.observation_dim, self.spec.action_dim, **sizes)
        return super().networks() | {"policy": policy, "count": Scalar(0.0)}

    def update(self, state, batch, i):
        params = {**state.params, "count": {"value": state.count() + 1}}
        return replace(state, params=params), {"count": state.count()}
"""


def test_seeds_continued_by_two_commands_belong_to_one_run(line: str, tmp_path: Path) -> None:
    """Each seed stores its own start. A start of another run is still refused."""
    keys = small("td3", task=line, out=str(tmp_path), num_updates=0, num_env_steps=5)
    first = train(**keys | {"seeds": 2}).path
    more = {"run": first, "tracker": "none", "num_env_steps": 5, "out": str(tmp_path)}
    finetune(**more, seeds=[1])
    path = finetune(**more).path
    assert compact.pack([path], tmp_path / "study") == 2
    ((_, config),) = json.loads((tmp_path / "study" / "configs.json").read_text()).items()
    assert config["start"]["sha256"].keys() == {"0", "1"}
    assert "2 seeds" in report([path])
    for number in (1, 0):
        compact.pack([path / f"seed_{number}"], tmp_path / "apart")
    for name in (compact.RUNS, compact.CONFIGS, compact.EVALUATIONS):
        assert (tmp_path / "apart" / name).read_bytes() == (tmp_path / "study" / name).read_bytes()
    begun = json.loads((path / "seed_1" / "config.json").read_text())
    begun["start"]["sha256"]["1"] = "0"
    (path / "seed_1" / "config.json").write_text(json.dumps(begun))
    assert compact.pack([path], tmp_path / "study") == 2  # replaces the seed in the command
    with pytest.raises(UserError, match="seed_1 was started with another checkpoint of the run"):
        finetune(**more)
    other = shutil.copytree(first, first.with_name("other"))
    with pytest.raises(UserError, match=f"started with run={first}, now it is {other}"):
        finetune(**more | {"run": other})


def test_with_overlap_a_step_runs_during_the_updates_of_the_step_before(
    line: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step waits for updates that start after it. The last step's updates run as well."""
    learning, waited = threading.Event(), list[bool]()
    learn, begin, step = Work._learn, Collector.begin, Line.step

    def begins(collector: Collector) -> None:
        learning.clear()
        begin(collector)

    def record_waiting(work: Work, number: int, phase: str, **how: bool) -> None:
        assert isinstance(work.collector, Collector)
        waited.append(work.collector._pending is not None)
        learning.set()
        learn(work, number, phase, **how)

    def slow(env: Line, action: np.ndarray) -> Any:
        if (
            env.number == 1 and len(waited) > 1
        ):  # not the evaluation's environment; training has started
            assert learning.wait(10)
        return step(env, action)

    monkeypatch.setattr(Work, "_learn", record_waiting)
    monkeypatch.setattr(Collector, "begin", begins)
    keys = {**QUICK, "algorithm": "sac", "task": line, "dataset": str(data), "out": str(tmp_path)}
    keys |= {"seeds": 1, "num_updates": 0, "num_env_steps": 40, "overlap": True, "eval_every": 20}
    with monkeypatch.context() as patch:
        patch.setattr(Line, "step", slow)
        one = train(**keys, name="one")
    assert one.results[0]["online_updates"] == 30
    assert waited == [True] * 29 + [False]

    cut = killed_and_resumed(train, 20, **{**keys, "name": "cut", "checkpoint_every": 15})
    assert bitwise_equal(tensors(cut), tensors(one.path))
    offline = {k: v for k, v in keys.items() if not k.startswith("online.")} | {"num_env_steps": 0}
    with pytest.raises(UserError, match="overlap=true has no effect without num_env_steps"):
        train(**{**offline, "num_updates": 4})


def test_runs_that_cannot_be_continued_are_refused(line: str, data: Path, tmp_path: Path) -> None:
    keys = {**QUICK, "task": line, "dataset": str(data), "out": str(tmp_path), "num_updates": 4}
    keys = {k: v for k, v in keys.items() if not k.startswith("online.")}
    run = train(**keys, algorithm="td3_bc").path
    for change, match in {
        (("num_env_steps", 0),): "num_env_steps=",
        (
            ("num_env_steps", 5),
            ("algorithm", "sac"),
            ("algorithm.hidden", 8),
        ): r"params/policy\S+ is \(.*Its networks are of another kind",
        (
            ("num_env_steps", 5),
            ("algorithm", "td3"),
            ("algorithm.hidden", 9),
        ): r"critic/\S+ is \(.*Set algorithm.hidden=\[8\], as in that run",
        (("num_env_steps", 5), ("seeds", 7)): "seed",
        (("num_env_steps", 5), ("algorithm.reward_scale", 10)): r"scale=10: .*trained with 1",
    }.items():
        given = dict(change)
        if "algorithm.hidden" in given:
            given["algorithm.hidden"] = [given["algorithm.hidden"]]
        if "seeds" in given:
            given["seeds"] = [7]
        own = {"out": str(tmp_path), "show": False, "tracker": "none", "algorithm": "td3"}
        with pytest.raises(UserError, match=match):
            finetune(run=run, **{**own, **given})
    with pytest.raises(
        UserError, match=r"td3_bc does not learn online\. Choose .* same networks: algorithm=td3\.$"
    ):
        finetune(run=run, num_env_steps=5)
    for folder in (run / "seed_0" / "checkpoints", run / "seed_1" / "checkpoints"):
        for file in folder.iterdir():
            file.unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        finetune(run=run, num_env_steps=5, algorithm="td3")
    with pytest.raises(UserError, match=r"is a file\. Use the folder"):
        finetune(run=run / "seed_0" / "config.json", num_env_steps=5)
    with pytest.raises(UserError, match="does not exist"):
        finetune(run=tmp_path / "gone", num_env_steps=5)


class Plane(Line):
    """Line that is pushed in two directions."""

    action_space = Box(-1, 1, (2,), np.float32)


def test_a_run_continues_only_in_tasks_of_equal_shapes_and_prints_it(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    envs.register("plane", Plane, max_episode_steps=10)
    envs.register("other line", Line, max_episode_steps=10)
    keys = small("td3", task=line, out=str(tmp_path), num_updates=0, num_env_steps=5)
    run = train(**keys).path
    more = {"run": run, "out": str(tmp_path), "tracker": "none", "num_env_steps": 5}
    for task, match in {
        "env:Pendulum-v1": r"trained on observations \[2\], but the task has \[3\]\. Use the",
        "plane": r"cannot continue with this .* action_dim: the policy has 1, here it is 2\. Use",
    }.items():
        before = [*tmp_path.rglob("*")]
        with pytest.raises(UserError, match=match):
            finetune(**more, task=task)
        assert [*tmp_path.rglob("*")] == before
    capsys.readouterr()
    for task, times in ((line, 0), ("other line", 1)):
        finetune(**more, task=task)
        told = capsys.readouterr().out
        assert told.count(f"{run} was trained on line and continues on {task}") == times


def test_on_policy_methods_are_refused_updates_without_rollouts_and_need_their_data() -> None:
    task = {"task": "env:Pendulum-v1"}
    with pytest.raises(UserError, match=r"num_updates=5 is not used.*Set num_env_steps= instead"):
        prepare({**task, "algorithm": "ppo", "num_updates": 5})
    with pytest.raises(UserError, match=r"num_updates=5 is not used.*Remove it"):
        prepare({**task, "algorithm": "ppo", "num_updates": 5, "num_env_steps": 2048})
    with pytest.raises(UserError, match=r"no dataset\. Set dataset=<path or id>\.?$"):
        prepare({**task, "algorithm": "hnpg", "num_env_steps": 1000})


def test_online_algorithms_can_train_on_data_alone(line: str) -> None:
    keys = {"task": line, "num_env_steps": 5}
    for algorithm, updates in (("sac", 0), ("td3", 0)):
        assert prepare({**keys, "algorithm": algorithm}).run.budget.num_updates == updates
    assert [type(piece) for piece in prepare({**keys, "algorithm": "sac"}).schedule] == [Interact]
    with pytest.raises(UserError, match=r"sac has nothing to do\. Set num_env_steps="):
        prepare({"task": line, "algorithm": "sac"})
    with pytest.raises(UserError, match="has no dataset"):
        prepare({**keys, "algorithm": "sac", "num_updates": 4})


def test_online_settings_are_part_of_a_runs_identity(line: str) -> None:
    """Another warm-up, or another online hyper-parameter, under the same name is refused."""
    keys = {"algorithm": "sac", "task": line, "num_updates": 0, "num_env_steps": 5}
    for key, value in (("warmup_steps", 7), ("discount", 0.5)):
        said = prepare({**keys, f"online.{key}": value}).run.config()
        assert said["online"][key] == value
        assert "discount" not in prepare(keys).run.config()["online"]


@pytest.mark.parametrize("then", [0.1, 0.2, 0.5])
def test_online_values_apply_to_all_stacked_runs(line: str, then: float) -> None:
    """It also overrides a value that is one of the stacked ones."""
    keys = {"algorithm": "sac", "task": line, "num_updates": 0, "num_env_steps": 5}
    plan = prepare({**keys, "algorithm.tau": [0.1, 0.2], "online.tau": then})
    learner = plan.learner  # the engine's steps, for both
    stacked = {"tau": torch.tensor(0.2)}
    assert learner.with_values(stacked).cfg.tau == stacked["tau"]
    assert learner.for_phase("online").with_values(stacked).cfg.tau == then
    for run in plan.runs:
        assert run.config()["online"].get("tau", run.method.cfg.tau) == then


def test_a_value_added_to_a_sweep_gives_the_result_of_a_single_run(
    line: str, tmp_path: Path
) -> None:
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "num_env_steps": 30}
    alone = train(**keys | {"algorithm.tau": 0.5}, name="alone").path
    train(**keys | {"algorithm.tau": [0.005]})
    path = train(**keys | {"algorithm.tau": [0.005, 0.5]}).path
    one, two, other = (
        learned(run) for run in (alone, path / "default-tau_0.5", path / "default-tau_0.005")
    )
    assert all(torch.allclose(one[name].float(), two[name].float(), atol=1e-6) for name in one)
    target = next(name for name in one if name.startswith("params/critic_target"))
    assert not torch.allclose(one[target], other[target], atol=1e-4)


def test_seeds_stopped_separately_resume_together_and_the_reverse(
    line: str, tmp_path: Path
) -> None:
    """The seeds stop within an episode and resume their own episodes."""

    def stop(trainer: Trainer) -> None:
        if trainer.env_steps == 23:
            raise KeyboardInterrupt

    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "num_updates": 0}
    keys |= {"num_env_steps": 40, "checkpoint_every": 13, "eval_every": 23}
    whole = train(**keys, name="whole").path
    for name, before, then in (("apart", [[0], [1]], [2]), ("together", [2], [[1], [0]])):
        for seeds in before:
            with pytest.raises(KeyboardInterrupt):
                train(**keys | {"seeds": seeds}, name=name, watch=stop)
        for seeds in then:
            path = train(**keys | {"seeds": seeds}, name=name).path
        for seed in (0, 1):
            one, two = tensors(whole, seed), tensors(path, seed)
            for key in one:
                assert torch.allclose(one[key].float(), two[key].float(), atol=1e-4), (name, key)


def test_a_continued_run_has_no_warmup_but_another_algorithm_has() -> None:
    hyper, newest = {"tau": 0.5}, {0: (Done(updates=8), "")}
    start = Start(Path("runs/line/sac/default"), "line", "sac", 8, hyper, newest)
    config = {"task": "line", "algorithm": "sac", "name": "default", "hyper": hyper}
    keys = continued_keys(config, {}, start)
    assert (keys["online.warmup_steps"], keys["online.warmup_policy"]) == (0, "policy")
    assert (keys["algorithm.tau"], keys["seeds"], keys["name"]) == (0.5, [0], "from-sac")
    assert continued_keys(config, {"online.warmup_steps": 3}, start)["online.warmup_steps"] == 3
    assert (
        continued_keys(config, {"algorithm.reward_scale": 1}, start)["algorithm.reward_scale"] == 1
    )
    other = continued_keys(config, {"algorithm": "td3"}, start)
    assert not [key for key in other if "." in key]
    config["hyper"] = {"tau": 0.5, "discount": 0.9}  # of the inherited critics
    other = continued_keys(config, {"algorithm": "td3"}, start)
    assert {key: other[key] for key in other if "." in key} == {"algorithm.discount": 0.9}
    assert continued_keys(config, {"algorithm": "td3", "algorithm.discount": 0.8}, start)[
        "algorithm.discount"
    ] == pytest.approx(0.8)


def test_batch_size_is_inherited_by_the_same_algorithm_only() -> None:
    """The batch size of a run is inherited by the same algorithm, not by another one."""
    hyper, newest = {"batch_size": 32}, {0: (Done(updates=8), "")}
    start = Start(Path("runs/line/sac/default"), "line", "sac", 8, hyper, newest)
    config = {"task": "line", "algorithm": "sac", "name": "default", "hyper": hyper}
    config["batch_size"] = 32

    def sizes(**given: Any) -> dict[str, Any]:
        return {k: v for k, v in continued_keys(config, given, start).items() if "batch_size" in k}

    assert sizes() == {"algorithm.batch_size": 32}
    assert sizes(batch_size=8) == {"batch_size": 8}
    assert sizes(algorithm="td3") == {}


def test_td3_loads_networks_of_behavior_cloning_by_name(
    line: str, data: Path, tmp_path: Path
) -> None:
    """TD3+BC has all tensors of TD3. Before its first update, TD3 has exactly these."""
    keys = {**QUICK, "task": line, "dataset": str(data), "out": str(tmp_path), "num_updates": 4}
    keys = {k: v for k, v in keys.items() if not k.startswith("online.")}
    run = train(**keys, algorithm="td3_bc").path
    own = {"show": False, "tracker": "none", "algorithm": "td3"}
    own |= {"online.warmup_steps": 10, "online.warmup_policy": "policy"}
    path = finetune(run=run, num_env_steps=10, **own).path
    assert bitwise_equal(learned(path), learned(run))
    told = read_json(path / "seed_0" / "config.json")
    assert told["hyper"]["hidden"] == [8]  # network settings, also those of the other run
    assert path == run.parents[1] / "td3" / "from-td3_bc"  # in the folder next to it
    assert (told["eval_every"], told["eval_episodes"], told["checkpoint_every"]) == (1000, 1, 20)


@pytest.mark.parametrize(
    ("algorithm", "ensemble"),
    [
        ("cal_ql", "layer_norm"),
        pytest.param("cql", "layer_norm", marks=pytest.mark.slow),
        ("iql", "squashed"),
    ],
)
def test_wsrl_keeps_a_layer_normalized_ensemble_unchanged_in_its_warmup_and_drops_the_data(
    algorithm: str, ensemble: str, line: str, data: Path, tmp_path: Path
) -> None:
    """Network sizes, transform and temperature are inherited. Then it learns only online.

    IQL has no temperature. The first evaluation equals the last one of the run.
    """
    made = {
        "algorithm.num_critics": 3,
        "algorithm.num_min_critics": 2,
        f"algorithm.{ensemble}": True,
    }
    made |= {"algorithm.reward_scale": 0.5, "eval_episodes": 3}
    keys = small(algorithm, task=line, dataset=str(data), out=str(tmp_path), **made)
    run = train(**keys, num_updates=4).path
    before = learned(run)
    own = {"out": str(tmp_path), "show": False, "tracker": "none", "algorithm": "wsrl"}
    own |= {"compile": "never", "checkpoint_every": 10, "batch_size": 8}
    path = finetune(run=run, num_env_steps=14, **own, **{"online.warmup_steps": 10}).path
    assert returns(path)[0] == returns(run)[-1]
    warm = {k: v for k, v in load_file(checkpoint_after(path, 10)).items() if k[:7] != "buffer/"}
    kept = {k: v for k, v in warm.items() if algorithm != "iql" or "/log_alpha/" not in k}
    assert bitwise_equal(kept, {k: before[k] for k in kept})
    assert {k.split("/")[1] for k in warm if k.startswith("params/")} == {
        *("policy", "critic", "critic_target", "log_alpha")
    }
    after = tensors(path)
    assert int(after["counters/update"]) == 4 + 4 * 4
    moved = "params/policy/trunk.weights.0"
    assert not torch.equal(after[moved], before[moved])
    assert len(after["buffer/rewards"]) == 14
    assert (
        after["buffer/rewards"].abs().max() < 5
    )  # half of the line's rewards; the data's are at least 50
    hyper = json.loads((path / "seed_0" / "config.json").read_text())["hyper"]
    assert (hyper["num_critics"], hyper["reward_scale"]) == (3, 0.5)


def checkpoint_after(run: Path, env_steps: int) -> Path:
    """Return the checkpoint file at this progress."""
    files = SeedFolder(run, 0).checkpoints()
    return next(file for done, file in files.items() if done.env_steps == env_steps)


def test_cal_ql_learns_from_an_episode_once_its_returns_are_known(
    line: str, data: Path, tmp_path: Path
) -> None:
    """25 steps in episodes of 10: 20 rows have G = r + 0.99 G', and a time-out adds nothing."""
    keys = small("cal_ql", task=line, dataset=str(data), out=str(tmp_path), batch_size=4)
    path = train(**keys, num_updates=2, num_env_steps=25).path
    found = tensors(path)
    assert found["buffer/added"].tolist() == [25, 20, 5]
    rewards, returns = found["buffer/rewards"].double(), found["buffer/mc_returns"].double()
    for start in (0, 10):
        running = 0.0
        for row in reversed(range(start, start + 10)):
            running = rewards[row].item() + 0.99 * running
            assert returns[row].item() == pytest.approx(running, rel=1e-5)
    assert int(found["counters/update"]) == 2 + 25 - 4  # those due in the first episode came after
    with pytest.raises(UserError, match=r"online\.discount=0\.9 .* algorithm\.discount=0\.99"):
        finetune(run=path, num_env_steps=25, **{"online.discount": 0.9})


def test_online_experience_is_saved_as_raw_data_that_can_be_read(line: str, tmp_path: Path) -> None:
    """Two seeds take 25 steps in episodes of 10. The reward is the position after the step."""
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "num_updates": 0}
    keys |= {
        "online.warmup_steps": 100,
        "algorithm.reward_scale": 4.0,
        "algorithm.reward_shift": -1.0,
    }
    path = train(**keys, num_env_steps=25, keep_data=True).path
    found = [read(path / f"seed_{seed}" / "experience.hdf5") for seed in range(2)]
    for data in found:
        assert data.num_rows == 25
        assert np.flatnonzero(data.truncated).tolist() == [9, 19, 24]
        assert not data.terminated.any()
        assert data.rewards == pytest.approx(data.next_observations[:, 0], abs=1e-6)
        assert data.observations[:10, 1].tolist() == [*range(10)]
    assert not np.array_equal(found[0].actions, found[1].actions)
    with pytest.raises(UserError, match="Set num_env_steps="):
        train(**{**keys, "num_updates": 4}, keep_data=True, dataset=str(path))
    with pytest.raises(UserError, match="reward_scale=0"):
        train(**{**keys, "algorithm.reward_scale": 0.0}, num_env_steps=25, keep_data=True)


def test_a_continued_run_normalizes_observations_as_offline(
    line: str, data: Path, tmp_path: Path
) -> None:
    """The first online evaluation equals the last offline one, with the same normalization."""
    keys = {k: v for k, v in QUICK.items() if not k.startswith("online.")} | {"seeds": 1}
    keys |= {"algorithm": "awac", "task": line, "dataset": str(data), "out": str(tmp_path)}
    keys |= {"algorithm.normalize_observations": True, "eval_episodes": 3}
    run = train(**keys, num_updates=10).path
    kept = ("out", "show", "tracker", "compile", "precision", "eval_episodes")
    path = finetune(run=run, num_env_steps=20, **{k: keys[k] for k in kept}).path
    assert returns(run)[-1] == returns(path)[0]
    offline, online = SeedFolder(run, 0), SeedFolder(path, 0)
    transforms = [f.load(max(f.checkpoints()))[1]["transform"] for f in (offline, online)]
    assert transforms[0] == transforms[1]
    assert max(map(abs, transforms[0]["mean"])) > 0.05


def test_next_actions_need_n_step_1(line: str, data: Path) -> None:
    keys = {"algorithm": "rebrac", "task": line, "dataset": str(data), "num_updates": 4}
    with pytest.raises(UserError, match=r"online\.n_step=3: rebrac needs n_step=1"):
        prepare({**keys, "num_env_steps": 5, "online.n_step": 3})


@pytest.mark.parametrize(
    "algorithm",
    [
        "iql",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("spot", "cal_ql", "rebrac", "cql")),
    ],
)
def test_a_continued_run_equals_one_command_and_may_end_within_an_episode(
    algorithm: str, line: str, data: Path, tmp_path: Path
) -> None:
    """The learning rate of IQL's policy had decayed to 0 and is restored: every policy changes."""
    keys = small(algorithm, task=line, dataset=str(data), out=str(tmp_path))
    whole = train(**keys, num_updates=10, num_env_steps=25, name="whole").path
    first = train(**keys, num_updates=10, name="first").path
    kept = ("out", "show", "tracker", "compile", "precision", "eval_episodes")
    told = {k: v for k, v in keys.items() if k in kept}
    path = finetune(run=first, num_env_steps=25, **told).path
    assert bitwise_equal(tensors(path), tensors(whole))
    name = "params/policy/trunk.weights.0"
    assert (learned(path)[name] - learned(first)[name]).abs().max() > 1e-4


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_failed_episode_is_dropped_and_the_next_one_starts(
    kind: str, overlap: bool, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 25 fails, the fifth of the third episode. Its 4 rows and the failed step are lost."""
    Line.breaks = {kind: lambda number, steps: number == 1 and steps == 25}
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "online.warmup_steps": 10, "overlap": overlap}
    path = train(**keys, num_env_steps=40).path
    kept = tensors(path)
    steps = kept["buffer/observations"][: len(kept["buffer/rewards"]), 1]
    assert int(kept["buffer/added"][0]) == 40 - 5
    assert steps[:20].tolist() == [*range(10)] * 2
    assert steps[20:35].tolist() == [*range(10), *range(5)]
    said = capsys.readouterr().out
    assert "seed 0: the environment failed in step 4" in said
    assert kept["buffer/rewards"].isfinite().all()


@pytest.mark.parametrize("kind", ["raise", "nan", "unseen"])
def test_an_evaluation_in_which_the_environment_fails_is_skipped_without_divergence(
    kind: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three evaluations fails. Each has 10 steps."""
    Line.breaks = {kind: lambda number, steps: number == 2 and steps == 15}
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "eval_every": 20, "show": True}
    path = train(**keys, num_env_steps=40).path / "seed_0"
    rows = map(json.loads, (path / "evaluations.jsonl").read_text().splitlines())
    assert [row["env_steps"] for row in rows] == [0, 40]
    said = capsys.readouterr()
    assert "the environment failed in the evaluation after" in said.out + said.err
    assert read_json(path / "result.json")["diverged_at"] is None
    assert (path / "policy.bundle").is_file()


def test_an_environment_that_fails_five_times_in_a_row_stops_the_run(
    line: str, tmp_path: Path
) -> None:
    Line.breaks = {"raise": lambda number, steps: number != 2 and steps == 4}
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "online.warmup_steps": 100}
    with pytest.raises(UserError, match=r"the cable is out.*5th time"):
        train(**keys, num_env_steps=100)


def fails_at(number: int, steps: int) -> Callable[[int, int], bool]:
    """Return True from this number of steps on, in this environment and all later ones."""
    return lambda own, done: own >= number and done == steps


@pytest.mark.parametrize(
    ("breaks", "more", "error"),
    [
        ({"raise": fails_at(1, 4)}, {"overlap": True}, "5th time"),
        ({"make": fails_at(2, 0)}, {}, "no cable is there"),
        ({"reset": fails_at(0, 0), "close": fails_at(0, 0)}, {}, "the cable is out"),
        ({"close": lambda number, steps: number in (0, 2, 3)}, {}, None),
        ({}, {"pretrain_updates": 3}, "no preliminary phase"),
    ],
    ids=["steps", "making", "the first reset", "closing", "a refusal"],
)
def test_every_environment_is_closed_once_whatever_fails(
    line: str, tmp_path: Path, breaks: Any, more: dict[str, Any], error: str | None
) -> None:
    """Two environments check the task. Two seeds use one each to act and one each to evaluate."""
    Line.breaks = breaks
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "num_updates": 0}
    keys |= {"online.warmup_steps": 100, "num_env_steps": 21, **more}
    with pytest.raises((UserError, OSError), match=error) if error else nullcontext():
        train(**keys)
    assert sorted(Line.closed) == [*range(-1, Line.made)]


@dataclass(frozen=True)
class CountConfig(Preprocessing):
    discount: float = 0.9
    cycle: int = 6


class Count(Algorithm):
    """Algorithm whose number grows by 1 in an update, and doubles in the last of a period."""

    Config: ClassVar[type] = CountConfig

    @property
    def period(self) -> int:
        return self.cfg.cycle

    def equivalent_step(self, i: int) -> int:
        return i if i == self.period - 1 else 0

    def networks(self) -> dict[str, nn.Module]:
        return {"policy": Scalar(1.0), "other": Scalar(0.0)}

    def optimizers(self) -> dict[str, Adam]:
        return {"other": Adam(0.1)}

    def update(self, state, batch, i):
        value = state.params["policy"]["value"]
        last = i == self.period - 1
        new = {"value": 2 * value if last else value + 1}
        state, loss = minimize(state, "other", lambda net: (net() - state.done).square())
        params = {**state.params, "policy": new}
        metrics = {"value": value, "done": state.done.float(), "loss": loss}
        return type(state)(self, params, state.optimizer, state.random, state.done), (
            metrics | {"last": value} if last else metrics
        )


def test_a_long_period_runs_one_program_per_kind_of_update_and_equals_single_updates() -> None:
    """Two periods give ((1 + 5) * 2 + 5) * 2 = 34. Metrics are means over their calls."""
    buffer = ReplayBuffer((2,), 1, 4)
    zero = np.zeros(4, np.float32)
    rows = {"observations": np.zeros((4, 2)), "actions": np.zeros((4, 1)), "rewards": zero}
    rows |= {"terminated": zero, "truncated": zero, "next_observations": np.zeros((4, 2))}
    buffer.append(0, rows)
    engine = Engine(lambda _: Count(Spec((2,), 1), CountConfig()), [0, 1], buffer, batch_size=2)
    engine.run(12)
    assert engine.state["params"]["policy"]["value"].tolist() == [34, 34]
    assert engine.updates == 12
    assert len(engine._programs) == 2
    metrics = engine.metrics()
    values = [1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 16, 17]
    assert metrics["value"].tolist() == [pytest.approx(np.mean(values))] * 2
    assert metrics["last"].tolist() == [pytest.approx((6 + 17) / 2)] * 2
    assert metrics["done"].tolist() == [pytest.approx(5.5)] * 2
    engine.run(6)  # metrics are means since they were last read
    assert engine.metrics()["value"].tolist() == [pytest.approx(np.mean(range(34, 40)))] * 2
    short = Engine(lambda _: Count(Spec((2,), 1), CountConfig(cycle=3)), [0], buffer, batch_size=2)
    short.run(3)
    assert len(short._programs) == 1
    assert short.state["params"]["policy"]["value"].tolist() == [6]


def test_a_schedule_returns_the_current_piece() -> None:
    schedule = [Learn("fit", 3), Learn("update", 5), Interact("online", 4)]
    assert locate(schedule, Position(0, 0)) == (0, 0)
    assert locate(schedule, Position(0, 3)) == (1, 0)
    assert locate(schedule, Position(1, 4)) == (1, 4)
    assert locate(schedule, Position(1, 5)) == (2, 0)
    assert locate(schedule, Position(2, 4)) == (3, 0)


@pytest.mark.parametrize(
    ("steps", "due"), [(0, 0), (100, 0), (101, 0), (102, 4), (103, 4), (104, 8)]
)
def test_updates_start_after_the_warmup_in_complete_periods(steps: int, due: int) -> None:
    """Each step after the 100th adds two updates (utd=2), run four at a time (period 4)."""
    assert Online(warmup_steps=100, utd=2.0).updates_due(steps, 8, 4) == due


def test_checkpoints_are_named_and_ordered_by_what_was_done() -> None:
    done = [Done(0, 10), Done(0, 200), Done(5, 200), Done(5, 210), Done(40, 220)]
    assert [Done.of(d.file) for d in done] == done
    assert sorted(done) == done
    assert Done.of(Done(5, 10, 60).file) == Done(5, 10, 60)
    assert Done.of(Done(rows=60).file) == Done(rows=60)
    assert Done.of("x.safetensors") is None


@pytest.mark.parametrize(("warmup_steps", "said"), [(30, True), (10, False)])
def test_a_note_is_printed_if_no_update_will_run(
    warmup_steps: int, said: bool, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "show": True}
    result = train(
        **keys | {"num_updates": 0, "num_env_steps": 30, "online.warmup_steps": warmup_steps}
    )
    assert (
        "ends before learning starts (online.warmup_steps=30). Raise" in capsys.readouterr().out
    ) == said
    assert (result.results[0]["online_updates"] == 0) == said


def test_a_note_is_printed_if_no_episode_will_end(
    line: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cal-QL needs the returns of complete episodes, here of 10 steps."""
    keys = small("cal_ql", task=line, dataset=str(data), out=str(tmp_path), num_updates=4)
    keys |= {"show": True, "algorithm.weight": 1.0}
    for steps in (9, 10):
        result = train(**keys, num_env_steps=steps, name=str(steps))
        assert ("learns from complete episodes" in capsys.readouterr().out) == (steps == 9)
        assert (result.results[0]["online_updates"] == 0) == (steps == 9)


def test_continuing_a_run_on_data_in_memory_needs_the_data_again(
    line: str, data: Path, tmp_path: Path
) -> None:
    keys = {k: v for k, v in QUICK.items() if not k.startswith("online.")}
    keys |= {"algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    arrays = read(data)
    run = train(**keys, dataset=arrays, num_updates=4).path
    more = {"out": str(tmp_path), "show": False, "tracker": "none", "num_env_steps": 12}
    more |= {"online.offline_fraction": 0.5}
    with pytest.raises(
        UserError, match=r"in memory\. Pass the same Dataset from Python as dataset="
    ):
        finetune(run=run, **more)
    assert finetune(run=run, dataset=arrays, **more).results[0]["online_updates"] == 4


def test_each_checkpoint_is_read_for_its_checksum_once(
    line: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {k: v for k, v in QUICK.items() if not k.startswith("online.")}
    keys |= {"task": line, "dataset": str(data), "out": str(tmp_path), "num_updates": 4}
    run, read_files = train(**keys, algorithm="sac").path, list[Path]()
    monkeypatch.setattr("offline_rl.runs.start.checksum", lambda f: read_files.append(f))
    start, _ = start_of(run, 1)
    assert list(start.checkpoints) == [0]
    assert len(read_files) == 1
    with pytest.raises(UserError, match=r"seeds=3: run=.* has 2 seeds"):
        start_of(run, 3)


def test_a_shared_layer_size_is_inherited_by_every_network() -> None:
    """Some algorithms have one option for all networks, others one for each."""
    told = {"hidden": [8], "activation": "elu", "critic_lr": 1.0}
    assert network_settings(algorithm_class("td3").Config, told) == {
        "hidden": [8],
        "activation": "elu",
    }
    both = {"policy_hidden": [8], "critic_hidden": [8]}
    assert network_settings(algorithm_class("cql").Config, told) == both
    assert network_settings(algorithm_class("sac").Config, both) == {"hidden": [8]}
    assert network_settings(algorithm_class("sac").Config, both | {"critic_hidden": [9]}) == {}


def test_networks_with_equal_tensors_but_other_functions_are_refused(
    line: str, data: Path, tmp_path: Path
) -> None:
    """IQL's policy acts by tanh of its mean, AWAC's by the mean; both have the same tensors."""
    keys = {**OFFLINE, "task": line, "dataset": str(data), "out": str(tmp_path), "num_updates": 4}
    run = train(**keys, algorithm="iql").path
    own = {"out": str(tmp_path), "show": False, "tracker": "none", "num_env_steps": 20}
    with pytest.raises(UserError, match="its policy has tanh_mean=True, but here it is False"):
        finetune(run=run, algorithm="awac", **own)
    with pytest.raises(UserError, match="its policy has activation=relu, but here it is tanh"):
        finetune(run=run, **{**own, "algorithm.activation": "tanh"})


def test_seeds_continue_from_their_newest_common_checkpoint(
    line: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process killed between two seeds' checkpoints leaves one seed with a newer checkpoint."""
    keys = {**OFFLINE, "task": line, "dataset": str(data), "out": str(tmp_path)}
    run = train(**{**keys, "num_updates": 8, "checkpoint_every": 4}, algorithm="td3_bc").path
    newest = {seed: SeedFolder(run, seed).checkpoints() for seed in (0, 1)}
    assert sorted(done.updates for done in newest[1]) == [4, 8]
    newest[1][max(newest[1])].unlink()
    start, _ = start_of(run)
    assert {done.updates for done, _ in start.checkpoints.values()} == {4}
    assert "seed 0: 8, seed 1: 4 updates); all continue from 4 updates" in capsys.readouterr().out
    newest[0][min(newest[0])].unlink()
    with pytest.raises(UserError, match=r"no common checkpoint \(seed 0: 8, .*seeds="):
        start_of(run)
    assert start_of(run, [0])[0].updates == 8


def given_up(line: str, tmp_path: Path, steps: int) -> tuple[dict[str, Any], Path]:
    """Return the options of a run whose environment fails before its end, and its folder."""
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "num_env_steps": steps, "checkpoint_every": 1000}
    with pytest.raises(UserError, match="5th time"):
        train(**keys)
    Line.breaks = {}
    return keys, tmp_path / "line" / "sac" / "default"


def test_a_checkpoint_is_saved_when_an_environment_fails_repeatedly(
    line: str, tmp_path: Path
) -> None:
    """The environment fails from step 25 on. The rows of two episodes are kept."""
    Line.breaks = {"raise": lambda number, steps: number > 2 or (number == 1 and steps >= 25)}
    keys, run = given_up(line, tmp_path, 100)
    assert [done.env_steps for done in SeedFolder(run, 0).checkpoints()] == [29]
    assert int(tensors(run)["buffer/added"][0]) == 20
    again = train(**keys).path
    assert read_json(again / "seed_0" / "result.json")["num_env_steps"] == 100


def test_a_step_after_which_the_reset_fails_is_counted_once(line: str, tmp_path: Path) -> None:
    """The reset after the second episode fails. Once it works again, the third episode starts."""
    Line.breaks = {"reset": lambda number, steps: number > 2 or (number == 1 and steps >= 20)}
    keys, run = given_up(line, tmp_path, 30)
    assert [done.env_steps for done in SeedFolder(run, 0).checkpoints()] == [20]
    again = train(**keys)
    assert int(tensors(again.path)["buffer/added"][0]) == 30
    assert again.results[0]["online_updates"] == 20


def test_an_environment_that_cannot_be_created_again_counts_as_failed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails twice, then works. Then four more failures make the fifth in a row."""
    Line.breaks = {"raise": lambda number, steps: number == 1 and steps == 25}
    begin, tries = Line.__init__, list[int]()

    def occupied(env: Line) -> None:
        begin(env)
        if env.number > 2:
            tries.append(env.number)
            if len(tries) <= limit:
                raise OSError("the port is taken")

    monkeypatch.setattr(Line, "__init__", occupied)
    keys = {**QUICK, "algorithm": "sac", "task": line, "out": str(tmp_path), "seeds": 1}
    keys |= {"num_updates": 0, "num_env_steps": 40, "checkpoint_every": 1000}
    limit = 2
    train(**keys, name="free")
    assert capsys.readouterr().out.count("the port is taken") == 2
    assert len(tries) == 3
    monkeypatch.setattr(Line, "made", -1)
    tries.clear()
    limit = 4
    with pytest.raises(UserError, match=r"the port is taken.*5th time"):
        train(**keys, name="taken")


def test_success_at_any_step_makes_the_episode_a_success(line: str, tmp_path: Path) -> None:
    """Only the third step reports success, in training and in evaluation."""

    class Reached(Line):
        def step(self, action: np.ndarray):
            seen, reward, terminated, truncated, _ = super().step(action)
            return seen, reward, terminated, truncated, {"is_success": self.t == 3}

    envs.register("reached", Reached, max_episode_steps=10)
    keys = {**QUICK, "algorithm": "sac", "task": "reached", "out": str(tmp_path), "seeds": 1}
    path = train(**keys, num_updates=0, num_env_steps=30).path / "seed_0"
    rows = [json.loads(row) for row in (path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["data/success"] == 1.0


@pytest.mark.parametrize("algorithm", ["sac", "rebrac"])
def test_no_seed_waits_for_the_rows_of_another(
    algorithm: str, line: str, data: Path, tmp_path: Path
) -> None:
    """ReBRAC's rows are added at the end of an episode. One seed's first episode fails."""
    Line.breaks = {"raise": lambda number, steps: number == 2 and steps == 4}
    keys = {**QUICK, "algorithm": algorithm, "task": line, "out": str(tmp_path), "batch_size": 16}
    keys |= {"online.warmup_steps": 0, "num_updates": 0, "num_env_steps": 30}
    keys |= {"dataset": str(data)} if algorithm == "rebrac" else {}
    both = train(**keys).path
    Line.breaks, Line.made = {}, 0
    alone = train(**{**keys, "seeds": [0]}, name="alone").path
    one, two = learned(alone), learned(both)
    assert all(torch.allclose(one[name].float(), two[name].float(), atol=1e-5) for name in one)

"""Loggers: TensorBoard files after a resume, and Weights & Biases runs without a network."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_data import save_small

from offline_rl.runs.folder import SeedFolder
from offline_rl.training.train import train
from offline_rl.utils.errors import UserError

wandb = pytest.importorskip("wandb")
QUICK = {"algorithm": "td3_bc", "task": "none", "num_updates": 20, "compile": "never"}
QUICK |= {"algorithm.hidden": [8], "seeds": 2, "show": False, "tracker": "wandb"}


class Remembered:
    """Stand-in for a W&B run that records its arguments and logged values."""

    made: list["Remembered"] = []

    def __init__(self, **keys: Any) -> None:
        self.keys, self.logged, self.finished = keys, list[dict[str, float]](), False
        self.made.append(self)

    def define_metric(self, name: str, step_metric: str) -> None:
        assert name == "*"
        self.step_metric = step_metric

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def started_runs(monkeypatch: pytest.MonkeyPatch) -> list[Remembered]:
    """W&B runs in the order in which they were started."""
    monkeypatch.setattr(Remembered, "made", [])
    monkeypatch.setattr(wandb, "init", Remembered)
    return Remembered.made


def test_a_wandb_run_has_its_group_and_keeps_its_id(
    started_runs: list[Remembered], tmp_path: Path
) -> None:
    """Equal paths on two machines have different ids. A resumed folder keeps its id."""
    data = save_small(tmp_path / "small.npz")
    options = {"wandb.project": "mine", "wandb.entity": "us", "wandb.tags": ["a", "b"]}
    options |= {"wandb.mode": "offline", "dataset": str(data)}
    for place in ("here", "there"):
        path = train(**QUICK, **options, out=str(tmp_path / place)).path
    ids = [run.keys["id"] for run in started_runs]
    assert len(set(ids)) == len(ids) == 4
    for run in started_runs:
        known = {k: run.keys[k] for k in ("project", "entity", "tags", "mode", "group", "resume")}
        assert known == {
            "project": "mine",
            "entity": "us",
            "tags": ["a", "b"],
            "mode": "offline",
            "group": "none/small/td3_bc/default",
            "resume": "allow",
        }
        assert run.step_metric == "updates"
        assert [(v["updates"], v["env_steps"]) for v in run.logged] == [(20, 0)]
        assert run.finished
    assert [run.keys["config"]["seed"] for run in started_runs] == [0, 1, 0, 1]
    for seed in (0, 1):  # as after a kill before the result was written
        (path / f"seed_{seed}" / "result.json").unlink()
    train(**QUICK, **options, out=str(tmp_path / "there"))
    assert [run.keys["id"] for run in started_runs[4:]] == ids[2:]


def test_wandb_itself_logs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb.teardown()  # an earlier test may have started it with other settings
    monkeypatch.setenv("WANDB_MODE", "offline")
    data = save_small(tmp_path / "small.npz")
    path = train(**QUICK | {"seeds": 1}, dataset=str(data), out=str(tmp_path / "runs")).path
    wandb.teardown()  # it keeps its precision, compilation and threads
    known = json.loads((path / "seed_0" / "wandb.json").read_text())["id"]
    assert list(path.glob(f"seed_0/wandb/offline-run-*-{known}/run-{known}.wandb"))


def test_wandb_options_without_wandb_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wandb\.project= needs tracker=wandb"):
        train(**QUICK | {"tracker": "none"}, wandb__project="mine", out=str(tmp_path))


@pytest.mark.parametrize("kept", [20, None], ids=["from a checkpoint", "from nothing"])
def test_a_curve_on_tensorboard_has_every_point_once_after_a_kill(
    kept: int | None, tmp_path: Path
) -> None:
    """Values up to the checkpoint are not logged again; those after it are."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data = save_small(tmp_path / "small.npz")
    keys = QUICK | {"tracker": "tensorboard", "seeds": 1, "num_updates": 40, "checkpoint_every": 20}
    keys |= {"dataset": str(data), "out": str(tmp_path / "runs"), "eval_every": 10}
    seed = train(**keys).path / "seed_0"
    (seed / "result.json").unlink()
    for done, path in SeedFolder(seed.parent, 0).checkpoints().items():
        if done.updates != kept:
            path.unlink()
    train(**keys)
    events = accumulator.EventAccumulator(str(seed / "tensorboard" / "update"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/critic_loss")] == [10, 20, 30, 40]


def test_curves_of_a_run_that_only_interacts_are_drawn_over_environment_steps(
    started_runs: list[Remembered], tmp_path: Path
) -> None:
    """No update runs in the warm-up, but every evaluation has its own number of steps."""
    keys = QUICK | {"algorithm": "sac", "task": "env:Pendulum-v1", "num_updates": 0, "seeds": 1}
    keys |= {"num_env_steps": 30, "eval_every": 10, "eval_episodes": 1, "online.warmup_steps": 20}
    train(**keys, batch_size=8, out=str(tmp_path), wandb__mode="offline")
    (run,) = started_runs
    assert run.step_metric == "env_steps"
    assert [v["env_steps"] for v in run.logged if "eval/return" in v] == [0, 10, 20, 30]


def test_tensorboard_has_a_folder_for_each_phase_with_its_own_axis(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data = save_small(tmp_path / "small.npz", obs=3, act=1)
    keys = QUICK | {"algorithm": "sac", "task": "env:Pendulum-v1", "tracker": "tensorboard"}
    keys |= {"num_updates": 16, "num_env_steps": 20, "eval_every": 8, "eval_episodes": 1}
    keys |= {"seeds": 1, "batch_size": 8, "online.warmup_steps": 0, "max_episode_steps": 7}
    seed = train(**keys, dataset=str(data), out=str(tmp_path)).path / "seed_0"
    steps = dict[str, list[int]]()
    for folder in (seed / "tensorboard").iterdir():
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        steps[folder.name] = [e.step for e in events.Scalars("eval/return")]
    assert steps == {"update": [0, 8, 16], "online": [8, 16, 20]}

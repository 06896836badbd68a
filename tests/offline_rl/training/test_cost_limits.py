"""Cost limits of runs: where they come from, what is refused, and the curve of costs."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from prepared import prepare

import envs
from envs import tasks
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.iql import IQL
from offline_rl.data.read import read
from offline_rl.data.writers.d4rl import write
from offline_rl.runs.run import runs_of
from offline_rl.runs.start import Start, continued_keys
from offline_rl.training.headline import headline, kept_note

SAFE: dict[str, Any] = {"algorithm": "bc_safe", "dataset": "a.hdf5"}
TINY: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 1}
TINY |= {"algorithm.hidden": [8], "eval_episodes": 1, "tracker": "none", "show": False}
TINY |= {"checkpoint_every": 20, "eval_every": 1000}


class Fast(gymnasium.Env):
    """Point on a line. The cost of a step is the size of its action."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.x += float(action[0])
        info = {"cost": abs(float(action[0]))}
        return np.array([self.x, 0], np.float32), self.x, False, False, info


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a registered task with three cost limits."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("fast", Fast, max_episode_steps=5, cost_limits=[1, 2, 4])
    envs.register("free", Fast, max_episode_steps=5)
    return "fast"


def episodes(*costs: float, broken: float | None = None) -> Dataset:
    """Return episodes of 5 steps, with the cost of each in its first step."""
    draw, count = np.random.default_rng(0), 5 * len(costs)
    ends, paid = np.arange(count) % 5 == 4, np.zeros(count, np.float32)
    paid[::5] = costs
    if broken is not None:
        paid[7] = broken
    states, actions = draw.normal(size=(count + 1, 2)), draw.uniform(-1, 1, (count, 1))
    rows = states[:-1], actions, draw.normal(size=count), ends & False, ends, states[1:]
    return Dataset.from_arrays(*rows, extras={"costs": paid})


def saved(folder: Path, data: Dataset) -> str:
    return str(write(data, folder / "fast.hdf5"))


def limit(**keys: Any) -> Any:
    return runs_of({**SAFE, **keys})[0].method.cfg.target_cost


def test_the_limit_is_that_of_the_command_or_the_middle_one_of_the_task(fast: str):
    assert limit(task=fast) == 2
    assert limit(task=fast, target_cost=0) == 0
    assert limit(task="none", **{"algorithm.target_cost": 7.5}) == 7.5
    (run,) = runs_of({**SAFE, "task": fast})
    assert run.config()["hyper"]["target_cost"] == 2
    assert run.identity() == runs_of({**SAFE, "task": fast, "target_cost": 2})[0].identity()
    assert run.identity() != runs_of({**SAFE, "task": fast, "target_cost": 1})[0].identity()


def test_the_steps_of_a_limit_are_the_tasks_time_limit(fast: str, tmp_path: Path):
    """A user's method with a cost critic, without any update."""
    code = tmp_path / "own_critic.py"
    code.write_text(
        "from offline_rl.algorithms.iql import IQL, Config\n"
        "from offline_rl.algorithms.common.safety.costs import CostConfig\n"
        "from offline_rl.utils.options import frozen\n"
        "@frozen\nclass Own(CostConfig, Config):\n    pass\n"
        "class Critic(IQL):\n    Config = Own\n"
    )
    keys = {"algorithm": str(code), "dataset": "a.hdf5"}
    cfg = runs_of({**keys, "task": fast})[0].method.cfg
    assert (cfg.target_cost, cfg.episode_steps) == (2, 5)
    cfg = runs_of({**keys, "task": "none", "target_cost": 3, "algorithm.episode_steps": 9})
    assert cfg[0].method.cfg.episode_steps == 9
    with pytest.raises(UserError, match=r"task none has no time limit\. Set algorithm\.episode_s"):
        runs_of({**keys, "task": "none", "target_cost": 3})


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": "free"}, "bc_safe needs a cost limit, and task free has none"),
        ({"task": "none"}, "bc_safe needs a cost limit, and task none has none"),
        ({"task": "fast", "target_cost": -1}, "target_cost=-1.* at least 0"),
        (
            {"task": "fast", "algorithm": "iql", "target_cost": 3},
            r"target_cost=3: iql takes no cost limit\. Remove it, or use one of .*bc_safe",
        ),
        (
            {"task": "fast", "target_cost": 3, "algorithm.target_cost": 4},
            "both keys set the same option",
        ),
    ],
)
def test_limits_that_contradict_the_method_or_the_task_are_refused(
    fast: str, keys: dict[str, Any], sentence: str
):
    with pytest.raises(UserError, match=sentence):
        runs_of({**SAFE, **keys})


def test_several_steps_are_refused_online_for_a_cost_critic(
    fast: str, monkeypatch: pytest.MonkeyPatch
):
    """n-step targets need powers of the discount, and the costs' discount differs."""
    keys = {"algorithm": "iql", "task": fast, "num_updates": 0, "num_env_steps": 9}
    keys |= {"dataset": "a.hdf5", "online.n_step": 3}
    runs_of(keys)
    monkeypatch.setattr(IQL, "extra_columns", ("mc_costs",))
    with pytest.raises(UserError, match=r"online\.n_step=3: iql needs n_step=1"):
        runs_of(keys)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (-0.5, r"costs is -0\.5 in row 7 \(1 such rows\)"),
        (np.nan, "costs is nan in row 7"),
        (np.inf, "costs is inf in row 7"),
    ],
)
def test_costs_that_are_no_costs_are_refused(fast: str, wrong: float, words: str):
    keys = {"algorithm": "bc_safe", "task": fast, "num_updates": 1}
    prepare({**keys, "dataset": episodes(1, 9)})
    with pytest.raises(UserError, match=words):
        prepare({**keys, "dataset": episodes(1, 9, broken=wrong)})


def test_missing_costs_are_refused_by_a_method_with_a_limit(fast: str):
    data = episodes(1, 9)
    keys = {"algorithm": "bc_safe", "task": fast, "num_updates": 1}
    for extras, words in (
        ({}, "has no costs, which bc_safe needs"),
        ({"costs": np.ones((10, 2))}, "the shape"),
    ):
        arrays = data.observations[:10], data.actions, data.rewards, data.terminated, data.truncated
        with pytest.raises(UserError, match=words):
            prepare({**keys, "dataset": Dataset.from_arrays(*arrays, extras=extras)})


def test_the_first_lines_state_the_limit_and_the_part_of_the_data(fast: str):
    keys = {"algorithm": "bc_safe", "task": fast, "num_updates": 1}
    text = headline(prepare({**keys, "dataset": episodes(1, 9, 2, 0)}))
    assert "cost limit: 2 per episode (the task's limits: 1, 2, 4)" in text
    assert "trained on 3 of 4 episodes (15 of 20 rows)" in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (episodes(0, 0, 0), "no step of the data has a cost"),
        (episodes(3, 9), r"no episode of the data is within the cost limit \(lowest cost: 3\)"),
        (episodes(1, 9), None),
    ],
)
def test_data_from_which_no_limit_can_be_learned_gives_a_warning(
    fast: str, data: Dataset, words: str | None
):
    keys = {"algorithm": "bc_safe", "task": fast, "num_updates": 1, "dataset": data}
    keys["algorithm.episodes_kept"] = "all"
    text = headline(prepare(keys))
    found = [line for line in text.splitlines() if "of the data" in line]
    assert len(found) == (words is not None)
    if words is not None:
        assert re.search(words, found[0])


def test_data_with_a_cost_in_every_step_gives_a_warning(fast: str):
    data = replace(episodes(1, 1), extras={"costs": np.full(10, 0.1)})
    text = headline(prepare({**SAFE, "task": fast, "num_updates": 1, "dataset": data}))
    assert "every step of the data has a cost" in text


def test_a_continued_run_keeps_its_limit_unless_the_command_or_the_task_changes_it():
    hyper = {"target_cost": 3.0, "normalize_observations": False}
    config = {"task": "none", "algorithm": "bc_safe", "name": "a", "hyper": hyper}
    start = Start(Path("a"), "none", "bc_safe", 4, hyper, {})
    key = "algorithm.target_cost"
    assert continued_keys(config, {}, start)[key] == 3
    assert key not in continued_keys(config, {"target_cost": 5}, start)
    assert key not in continued_keys(config, {"task": "fast"}, start)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [("costs",), ("mc_costs",)])
def test_fine_tuning_stores_costs_and_has_a_curve_of_them(
    fast: str, columns: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The cost of an episode is the sum of the sizes of its actions, by the task's definition."""
    path = saved(tmp_path, episodes(1, 2, 9))
    keys = {**TINY, "algorithm": "iql", "out": str(tmp_path), "dataset": path}
    monkeypatch.setattr(IQL, "extra_columns", columns)
    train(**keys, task=fast, num_updates=2, name="first")
    run = next(tmp_path.rglob("first"))
    finetune(run=run, **TINY, num_env_steps=20, keep_data=True, name="second")
    folder = next(tmp_path.rglob("second")) / "seed_0"
    data = read(folder / "experience.hdf5")
    np.testing.assert_allclose(data.extras["costs"], np.abs(data.actions[:, 0]), atol=1e-6)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [line["data/cost"] for line in lines if "data/cost" in line]
    assert np.mean(curve) == pytest.approx(data.episode_costs().mean(), rel=1e-5)
    evaluated = [json.loads(x) for x in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert all(row["eval/cost"] == np.mean(row["costs"]) for row in evaluated)


def test_the_headline_counts_the_episodes_that_a_policy_is_trained_on() -> None:
    def note(rows: int, episodes: int) -> str:
        part = SimpleNamespace(num_rows=rows, num_episodes=episodes)
        data = SimpleNamespace(num_rows=4000, num_episodes=10)
        prepared: Any = SimpleNamespace(dataset=data, data=part)
        return kept_note(prepared)

    assert note(4000, 10) == ""
    assert note(800, 2).endswith("2 of 10 episodes (800 of 4,000 rows)")
    assert note(4800, 12).endswith("10 episodes and 2 added ones")

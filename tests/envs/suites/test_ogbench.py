"""Tests of OGBench's single tasks: names, goals, rewards, timing of success and scores.

Most of them need the library and are skipped without it.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import envs
from envs.suites import ogbench
from envs.suites.ogbench import TIME_LIMITS, OwnGenerator, default_task, goal_of, to_sparse

needs_library = pytest.mark.skipif(find_spec("ogbench") is None, reason="needs ogbench")
FAST = ("pointmaze-medium", "antsoccer-arena")
# built in seconds each
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in TIME_LIMITS if name not in FAST]


def test_every_environment_has_five_tasks_and_a_default_one():
    assert len(TIME_LIMITS) == 23
    for name in TIME_LIMITS:
        for number in range(1, 6):
            task = envs.task(f"ogbench/{name}-singletask-task{number}-v0")
            assert task.max_episode_steps == TIME_LIMITS[name]
            assert task.success_timing == "post"
        assert envs.task(f"ogbench/{name}-singletask-v0").env_id
    assert [default_task(name) for name in ("humanoidmaze-large-navigate", "antsoccer-arena")] == [
        1,
        4,
    ]
    assert [default_task(name) for name in ("scene-play", "puzzle-4x4-play", "puzzle-4x6")] == [
        2,
        4,
        2,
    ]
    assert [default_task(name) for name in ("cube-double-play", "puzzle-3x3", "puzzle-4x5")] == [
        2,
        4,
        2,
    ]


def test_a_dataset_has_a_card_for_each_task_and_the_files_of_its_own_name():
    names = [f"ogbench/cube-double-noisy-singletask{task}-v0" for task in ("", "-task1", "-task5")]
    cards = [envs.card(name) for name in names]
    assert [card.env for card in cards] == [name.replace("-noisy", "") for name in names]
    assert [card.variant_of for card in cards] == [None, names[0], names[0]]
    base = "https://rail.eecs.berkeley.edu/datasets/ogbench"
    for card in cards:
        urls = {split: file.urls for split, file in card.files.items()}
        assert urls == {
            "train": (f"{base}/cube-double-noisy-v0.npz",),
            "val": (f"{base}/cube-double-noisy-v0-val.npz",),
        }
    shards = envs.card("ogbench/cube-quadruple-play-100m-singletask-v0").files["train"].shards
    assert len({shard.path for shard in shards}) == 100
    url = f"{base}/cube-quadruple-play-100m-v0/cube-quadruple-play-v0-042.npz"
    assert shards[42].urls == (url,)


def test_the_score_is_a_success_rate_over_three_evaluations_and_states_the_timing():
    task = envs.task("ogbench/scene-play-singletask-task2-v0")
    assert task.reference is not None
    assert task.reference.last_evaluations == 3
    returns, success = np.array([-9.0, -1.0, np.nan]), np.array([True, False, True])
    np.testing.assert_array_equal(task.score(returns, success), [100, 0, np.nan])
    with pytest.raises(ValueError, match="reports no success"):
        task.score(returns)
    assert "success_timing=post: the environment judges success after" in task.reference.in_words()
    pre = task.with_options(None, None, "pre")
    assert pre.reference is not None
    assert pre.reference.in_words().count("success_timing=") == 1
    assert "success_timing=pre" in pre.reference.in_words()


def test_success_timing_is_refused_for_other_tasks():
    message = r"Hopper-v4 is not a single task of OGBench\. Remove success_timing="
    with pytest.raises(ValueError, match=message):
        envs.task("Hopper-v4").with_options(None, None, "post")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with pytest.raises(ValueError, match=r"needs ogbench .* extra \[ogbench\]"):
        envs.make_vector("ogbench/cube-double-play-singletask-task2-v0", 1)


class Global(gymnasium.Env[np.ndarray, np.ndarray]):
    """Environment with NumPy's global generator and random actions, as in OGBench's mazes."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.random.uniform(size=1) + self.action_space.sample(), {}  # noqa: NPY002

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        return np.random.uniform(size=1), 0.0, False, False, {}  # noqa: NPY002


def test_a_seed_determines_an_episode_although_the_generator_is_global():
    def episode(seed: int, disturb: bool) -> list[float]:
        env, other = OwnGenerator(Global()), OwnGenerator(Global())
        values = [env.reset(seed=seed)[0]]
        for _ in range(3):
            if disturb:
                np.random.uniform(size=3)  # noqa: NPY002
                other.reset(seed=9)
            values.append(env.step(np.zeros(1))[0])
        return [float(value[0]) for value in values]

    assert episode(1, False) == episode(1, True) != episode(2, False)
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.uniform()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    episode(1, False)
    assert np.random.uniform() == expected  # noqa: NPY002  # unchanged


@needs_library
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_time_limit_and_default_task_are_the_librarys(name: str):
    import_module("ogbench")
    env_id = f"{name}-singletask-v0"
    assert gymnasium.spec(env_id).max_episode_steps == TIME_LIMITS[name]
    env: Any = gymnasium.make(env_id).unwrapped
    env.reset()
    assert env.cur_task_id == default_task(name)


def states_near(goal: ogbench.Goal, rows: int) -> dict[str, np.ndarray]:
    """Return random simulator states, of which every part is near its goal half of the time."""
    rng = np.random.default_rng(0)
    qpos = rng.normal(size=(rows, goal.qpos_dim)).astype(np.float32)
    for columns, target in goal.parts:
        is_near = rng.random(rows) < 0.7
        offset = goal.tolerance_m * rng.uniform(-0.8, 0.8, (rows, len(columns)))
        qpos[np.ix_(is_near, columns)] = (target + offset)[is_near]
    states = {"qpos": qpos}
    if goal.buttons is not None:
        flips = rng.random((rows, len(goal.buttons))) < 0.05
        states["button_states"] = np.where(flips, 1 - goal.buttons, goal.buttons)
    return states


@needs_library
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_rewards_and_ends_equal_the_librarys_relabeling(name: str):
    relabel_dataset = import_module("ogbench.relabel_utils").relabel_dataset
    for task in ("", "-task1", "-task3"):
        env_id = f"{name}-singletask{task}-v0"
        goal = goal_of(f"ogbench/{env_id}")
        states = states_near(goal, 400)
        rewards, solved = goal.label(states["qpos"], states.get("button_states"))
        theirs: dict[str, np.ndarray] = dict(states)
        relabel_dataset(env_id, gymnasium.make(env_id), theirs)
        np.testing.assert_array_equal(rewards, theirs["rewards"])
        np.testing.assert_array_equal(1 - solved, theirs["masks"])
        assert 0 < solved.sum() < len(solved)


@needs_library
@pytest.mark.parametrize("timing", ["post", "pre"])
def test_success_is_judged_after_or_before_the_step(timing: str):
    task = envs.task("ogbench/pointmaze-medium-singletask-v0").with_options(None, None, timing)
    env = envs.make(task)
    env.reset(seed=0)
    inner: Any = env.unwrapped.vector._envs[0].instance.env.unwrapped  # type: ignore[attr-defined]
    goal = goal_of("ogbench/pointmaze-medium-singletask-v0").parts[0][1]
    action = np.array([1.0, 0.0], np.float32)
    inner.set_xy(goal - [1.05, 0.0])  # outside the tolerance of 1; the step moves it inside
    ends = [env.step(action)[1:3]]
    if timing == "pre":
        assert ends == [(-1.0, False)]
        ends = [env.step(action)[1:3]]
    assert ends == [(0.0, True)]


@needs_library
@pytest.mark.slow
def test_sparse_rewards_differ_in_reward_alone():
    sparse, full = (
        envs.make_vector(f"ogbench/cube-double{kind}-singletask-v0", 1) for kind in ("-sparse", "")
    )
    np.testing.assert_array_equal(sparse.reset([3]), full.reset([3]))
    steps = [env.step(np.zeros((1, 5))) for env in (sparse, full)]
    assert [float(step.rewards[0]) for step in steps] == [-1.0, -2.0]
    np.testing.assert_array_equal(steps[0].observations, steps[1].observations)
    assert to_sparse(np.array([-3, 0])).tolist() == [-1.0, 0.0]


def test_the_goal_is_read_from_the_librarys_environment(monkeypatch: pytest.MonkeyPatch):
    """A scene with one cube and two buttons: the columns follow one another in qpos."""
    inner = SimpleNamespace(
        _num_cubes=1,
        _num_buttons=2,
        _data=SimpleNamespace(mocap_pos=np.array([[0.1, 0.2, 0.3]])),
        _model=SimpleNamespace(nq=25),
        _target_button_states=np.array([1, 0]),
        _target_drawer_pos=-0.1,
        _target_window_pos=0.2,
    )
    space = gymnasium.spaces.Box(-1, 1, (40,))
    env = SimpleNamespace(
        unwrapped=inner, observation_space=space, reset=lambda seed: None, close=lambda: None
    )
    monkeypatch.setattr(ogbench, "_make", lambda env_id, timing: env)
    goal = goal_of.__wrapped__("ogbench/scene-sparse-singletask-task5-v0")
    assert [columns for columns, _ in goal.parts] == [(14, 15, 16), (23,), (24,)]
    assert [target.tolist() for _, target in goal.parts] == [[0.1, 0.2, 0.3], [-0.1], [0.2]]
    assert (goal.observation_dim, goal.qpos_dim, goal.is_sparse) == (40, 25, True)
    assert goal.tolerance_m == 0.04

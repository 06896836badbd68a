"""Ends and rewards as functions of transitions: published data, simulators, limits, tracing."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import envs
from envs.outcomes import Function, never
from envs.suites import mazes
from envs.tasks import NATIVE, OUTCOMES
from offline_rl.data import load

# Maximum errors of rewards computed from the files' float32 columns. Hopper and half-cheetah divide
# a difference of positions by the time step: positions up to 7 m and 150 m have spacings of 5e-7 m
# and 1.5e-5 m, and the steps last 0.008 s and 0.05 s. DMSD's logarithm magnifies up to 100 times.
REWARD_ERRORS = {
    "DMSD": 1e-5,
    "Fusion": 1e-6,
    "Pipeline": 1e-6,
    "RandomFrictionHopper": 6e-5,
    "RocketRecovery": 1e-4,
    "SafetyHalfCheetah": 3e-4,
    "Salespromotion": 1e-4,
    "Simglucose": 2e-6,
}


def read(data_dir: Path, task: str) -> dict[str, np.ndarray]:
    """Return the columns of all files of a NeoRL-2 task, one after the other."""
    paths = sorted((data_dir / "neorl2" / task).glob("*.npz"))
    if not paths:
        pytest.skip(f"no file of {task}")
    files = [np.load(path) for path in paths]
    return {key: np.concatenate([file[key] for file in files]) for key in files[0]}


@pytest.mark.parametrize("task", REWARD_ERRORS)
def test_every_published_transition_has_the_computed_end_and_reward(data_dir: Path, task: str):
    data = read(data_dir, task)
    s, a, s2 = (torch.from_numpy(data[key]) for key in ("obs", "action", "next_obs"))
    outcomes = envs.task(f"neorl2/{task}").outcomes
    ends = outcomes.ends["task"](s, a, s2)
    np.testing.assert_array_equal(ends, data["done"].ravel().astype(bool))
    rewards = outcomes.reward(s, a, s2)
    np.testing.assert_allclose(rewards, data["reward"].ravel(), rtol=0, atol=REWARD_ERRORS[task])


def test_costs_of_the_published_simglucose_episodes(data_dir: Path):
    """Glucose is below 70 mg/dL after 4,477 of 100,257 steps of the training file."""
    paths = sorted((data_dir / "neorl2" / "Simglucose").glob("*train.npz"))
    if not paths:
        pytest.skip("no file of Simglucose")
    costs = load("neorl2/Simglucose", data_dir).extras["costs"]
    assert costs.shape == (100_257,)
    assert costs.sum() == (np.load(paths[0])["next_obs"][:, 0] < 70).sum() == 4477


def test_simglucoses_published_function_misses_a_third_of_the_ends(data_dir: Path):
    """It compares the delayed sensor; the environment compares the true glucose."""
    data = read(data_dir, "Simglucose")
    s, a, s2 = data["obs"], data["action"], data["next_obs"]
    published = envs.task("neorl2/Simglucose").outcomes.ends["published"](s, a, s2)
    ended = data["done"].ravel().astype(bool)
    assert (published & ~ended).sum() == 0
    assert 0.2 < (ended & ~published).sum() / ended.sum() < 0.4


def ends(task: str, s2: Any, *, s: Any = 0.0, kind: str = "task") -> list[bool]:
    """Return the ends of next observations [N, O]; other observations are `s`."""
    s2 = torch.as_tensor(np.asarray(s2, np.float64))
    s = torch.as_tensor(np.broadcast_to(np.asarray(s, np.float64), s2.shape).copy())
    actions = torch.zeros(len(s2), 1)
    return envs.task(task).outcomes.ends[kind](s, actions, s2).tolist()


def rows(width: int, base: dict[int, float], column: int, values: list[float]) -> np.ndarray:
    """Return rows of zeros, with some columns set, and one column that takes each value."""
    result = np.zeros((len(values), width))
    for index, value in base.items():
        result[:, index] = value
    result[:, column] = values
    return result


UP = {0: 1.25}  # height of a body that stands
TINY = 1e-6
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("task", "width", "base", "column", "alive", "over"),
    [
        ("Hopper-v4", 11, UP, 0, [0.7 + TINY, 100, INF], [0.7, 0.7 - TINY, -INF, NAN]),
        ("Hopper-v4", 11, UP, 1, [0.2 - TINY, TINY - 0.2], [0.2, -0.2, 0.2 + TINY, INF, NAN]),
        ("Hopper-v4", 11, UP, 10, [100 - TINY, TINY - 100], [100, -100, 100 + TINY, -INF, NAN]),
        ("Walker2d-v4", 17, UP, 0, [0.8 + TINY, 2 - TINY], [0.8, 2, 2 + TINY, INF, NAN]),
        ("Walker2d-v4", 17, UP, 1, [1 - TINY, TINY - 1], [1, -1, 1 + TINY, -INF, NAN]),
        ("Walker2d-v4", 17, UP, 9, [100, -1e9, INF, NAN], []),
        ("HalfCheetah-v4", 17, {}, 3, [0, 100, -1e9, INF, NAN], []),
        ("Ant-v2", 111, {0: 0.5}, 0, [0.2, 1], [0.2 - TINY, 1 + TINY, INF, NAN]),
        ("Ant-v2", 111, {0: 0.5}, 7, [1e9], [INF, NAN]),
        ("neorl2/RandomFrictionHopper", 13, {1: 1.25}, 1, [0.7 + TINY], [0.7, -INF, NAN]),
        ("neorl2/RandomFrictionHopper", 13, {1: 1.25}, 2, [0.2 - TINY], [0.2, -0.2, NAN]),
        ("neorl2/RandomFrictionHopper", 13, {1: 1.25}, 3, [100 - TINY], [100, -100, NAN]),
        ("neorl2/RandomFrictionHopper", 13, {1: 1.25}, 0, [1e9, INF, NAN], []),
        ("neorl2/RocketRecovery", 7, {}, 1, [0.05 + TINY, -1, INF, NAN], [0.05, -0.05, 0]),
        ("neorl2/SafetyHalfCheetah", 18, {}, 0, [-9, 0.16, 1e9, INF, NAN], []),
        ("neorl2/Pipeline", 52, {}, 0, [0, 1e9, NAN], []),
        ("neorl2/DMSD", 6, {}, 0, [0, 1e9, NAN], []),
        ("neorl2/Fusion", 15, {}, 0, [0, 1e9, NAN], []),
        ("neorl2/Salespromotion", 8, {}, 0, [0, 1e9, NAN], []),
        ("env:InvertedPendulum-v4", 4, {}, 1, [0.2, -0.2], [0.2 + TINY, -0.2 - TINY, INF, NAN]),
        ("env:InvertedPendulum-v5", 4, {}, 3, [1e9], [INF, NAN]),
        # cos(first angle) = 1, second 0.6 + 0.6 cos <= 1 if cos <= 2/3
        ("env:InvertedDoublePendulum-v5", 9, {3: 1}, 4, [2 / 3 + TINY, NAN], [2 / 3 - TINY, 0]),
        ("env:Humanoid-v4", 45, {}, 0, [1 + TINY, 2 - TINY], [1, 2, INF, NAN]),
        ("maze2d-umaze-v1", 4, {}, 0, [0, 1, 2, NAN], []),
        ("pen-human-v1", 45, {}, 26, [0.075, NAN], [0.075 - TINY]),
        ("gym/pen-binary-expert", 45, {}, 26, [0.075, 0, NAN], []),
    ],
)
def test_an_episode_ends_exactly_beyond_its_limits(
    task: str,
    width: int,
    base: dict[int, float],
    column: int,
    alive: list[float],
    over: list[float],
):
    assert ends(task, rows(width, base, column, alive)) == [False] * len(alive)
    assert ends(task, rows(width, base, column, over)) == [True] * len(over)


def test_simglucose_ends_by_the_extrapolated_glucose():
    """40 to 600 mg/dL. From 46 to 43 the sensor lags by a third of the change: 42; and so on."""
    before, after = [46, 46, 40, 40, 30, 603, 100], [43, 41.5, 40, 40 - TINY, 38, 600, NAN]
    width = 31
    s, s2 = (rows(width, {}, 0, values) for values in (before, after))
    # true values: 42, 40, 40, below 40, 40.67, 599, NaN
    assert ends("neorl2/Simglucose", s2, s=s) == [False, False, False, True, False, False, False]
    assert ends("neorl2/Simglucose", s2, s=s, kind="published") == [
        *[False] * 3, True, True, False, False,
    ]  # fmt: skip
    high = rows(width, {}, 0, [600, 600 + TINY])
    assert ends("neorl2/Simglucose", high, s=high) == [False, True]


def test_the_published_hopper_ends_without_a_lower_limit():
    values = [-100, -1e9, 100 - TINY, 100, INF, -INF, NAN]
    s2 = rows(11, UP, 5, values)
    assert ends("hopper-medium-v2", s2, kind="published") == [False] * 3 + [True] * 4
    assert ends("hopper-medium-v2", s2) == [True, True, False, True, True, True, True]


def test_the_published_cheetah_and_walker_end_where_a_number_reaches_100():
    values = [100 - TINY, TINY - 100, 100, -100, INF, NAN]
    for task in ("halfcheetah-medium-v2", "walker2d-medium-v2"):
        s2 = rows(17, UP, 9, values)
        assert ends(task, s2, kind="published") == [False] * 2 + [True] * 4
        assert ends(task, s2) == [False] * 6
    assert ends("walker2d-medium-v2", rows(17, UP, 0, [0.8]), kind="published") == [True]


def test_the_published_safety_cheetah_ends_above_the_speed_limit_and_the_environment_does_not():
    """A step lasts 0.05 s. The reward jumps from about 3 to -100 at the limit."""
    s2 = rows(18, {}, 0, [0.05 * (3.2096 + TINY), 0.05 * (3.2096 - TINY), -1, NAN])
    assert ends("neorl2/SafetyHalfCheetah", s2, kind="published") == [True, False, False, False]
    reward = envs.task("neorl2/SafetyHalfCheetah").outcomes.reward
    actions = np.full((4, 6), 0.5)
    np.testing.assert_allclose(
        reward(np.zeros((4, 18)), actions, s2), [-100, 3.2096 - TINY - 0.15, -20.15, NAN]
    )


def test_only_the_tasks_whose_published_function_differs_have_two():
    two = {name for name, outcomes in OUTCOMES.items() if "published" in outcomes.ends}
    runners = {f"env:{n}-{v}" for n in ("Hopper", "Walker2d", "HalfCheetah") for v in ("v4", "v5")}
    runners |= {"Hopper-v4", "Walker2d-v4", "HalfCheetah-v4"}
    runners |= {f"safe/{n}Velocity" for n in ("Hopper", "Walker2d", "HalfCheetah")}
    ants = {name for name in NATIVE if name.startswith("AntMaze")}
    assert two == runners | ants | {"neorl2/Simglucose", "neorl2/SafetyHalfCheetah"}


def test_a_task_finds_its_outcomes_by_its_environment():
    hopper = OUTCOMES["Hopper-v4"]
    for name in ("hopper-medium-v2", "gym/hopper-medium", "d4rl:hopper-medium-v2", "Hopper-v4"):
        assert envs.task(name).outcomes is hopper
    assert envs.task("env:Pendulum-v1").outcomes is envs.task("none").outcomes is None
    assert envs.task("push/standard-pixels").outcomes is None
    assert all(n in NATIVE or n.startswith(("env:", "neorl2/")) for n in OUTCOMES)


def functions() -> dict[str, tuple[int, Function]]:
    """Return the number of observations and the function of each kind and task."""
    table, seen = {}, set()
    for name, outcomes in OUTCOMES.items():
        if "Maze" in name and "-umaze" not in name:
            continue  # the same functions with other goals
        width = 6 if name == "neorl2/DMSD" else 120  # the others read leading columns only
        kinds = {**outcomes.ends, "reward": outcomes.reward}
        kinds = {kind: f for kind, f in kinds.items() if f is not None and f not in seen}
        seen |= set(kinds.values())
        table |= {f"{name} {kind}": (width, f) for kind, f in kinds.items()}
    return table


def test_every_function_is_a_tensor_program_that_equals_its_numpy_program():
    """Leading axes [2, 5]; also traced, vectorized, and on a device that holds no values."""
    rng = np.random.default_rng(0)
    scales = np.array([0.3, 1.5, 30, 300, 1e4])[:, None]
    for name, (width, function) in functions().items():
        s, s2 = (rng.uniform(-0.2, 1, (2, 5, width)) * scales for _ in range(2))
        s[..., 0] = abs(s[..., 0]) + 20  # glucose has a logarithm
        inputs = s, rng.uniform(-1, 1, (2, 5, 6)), s2
        with np.errstate(invalid="ignore"):
            expected = function(*inputs)
        tensors = [torch.from_numpy(x) for x in inputs]
        eager = function(*tensors)
        assert eager.shape == expected.shape == (2, 5), name
        assert (eager.dtype == torch.bool) == (not name.endswith("reward")), name
        np.testing.assert_allclose(eager, expected, rtol=1e-12, atol=1e-9, err_msg=name)
        one = function(*(x[1, 3] for x in tensors))
        torch.testing.assert_close(one, eager[1, 3], equal_nan=True)
        for program in (
            make_fx(function, tracing_mode="fake")(*tensors),
            torch.fx.symbolic_trace(function),
            torch.func.vmap(function),
        ):
            torch.testing.assert_close(program(*tensors), eager, equal_nan=True)
        single = function(*(x.float() for x in tensors))
        assert single.dtype in (torch.float32, torch.bool), name
        assert function(*(x.to("meta") for x in tensors)).is_meta, name


@pytest.mark.parametrize("task", ["Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Ant-v2"])
def test_the_simulators_end_where_the_functions_end(task: str):
    env = envs.make_vector(task, 8)
    function = envs.task(task).outcomes.ends["task"]
    compare(env, 60, lambda s, a, step: (function(s, a, step.observations), step.terminated))


def test_a_point_maze_rewards_the_computed_distance():
    for name in ("PointMaze-umaze-v1", "PointMazeDense-medium-v1"):
        env, outcomes = envs.make_vector(name, 20), envs.task(name).outcomes
        pairs = compare(
            env,
            30,
            lambda s, a, step, f=outcomes.reward: (f(s, a, step.observations), step.rewards),
        )
        assert max(expected.max() for expected, _ in pairs) > 0


def compare(env: Any, steps: int, pair: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Take random actions and compare the two arrays that `pair` returns for each step."""
    rng, pairs = np.random.default_rng(0), []
    observations = env.reset(range(env.num_envs))
    for _ in range(steps):
        running = np.flatnonzero(env._running)
        if not len(running):
            break
        actions = rng.uniform(-1, 1, (len(running), env.action_dim)).astype(np.float32)
        step = env.step(actions, running)
        computed, given = pair(observations[running], actions, step)
        np.testing.assert_allclose(computed, given, rtol=0, atol=1e-6)
        pairs.append((computed, given))
        observations[running] = step.observations
    env.close()
    return pairs


def test_an_ant_maze_ends_around_the_mean_of_its_goals():
    """Goals lie up to 0.75 m in x and y around the mean, so `task` is right for the mean only."""
    for maze, (x, y) in {"umaze": (0.75, 8.75), "large": (32.75, 24.75)}.items():
        env = mazes.ENVS[f"AntMaze-{maze}"](200)
        env.reset(range(200))
        np.testing.assert_allclose(env._goals.mean(0), [x, y], atol=0.1)
        assert abs(env._goals - (x, y)).max() <= 0.75
        env.close()
        s2 = np.zeros((4, 29))
        s2[:, :2] = [x, y]
        s2[:, :2] += [[0, 0.25], [0, 0.25 + TINY], [0.5, 0], [0.5 + TINY, 0]]
        assert ends(f"antmaze-{maze}-v2" if maze == "umaze" else "antmaze-large-play-v2", s2) == [
            True, True, True, False,
        ]  # fmt: skip
        assert ends("AntMaze-" + maze, s2, kind="published") == [True, False, False, False]


@pytest.mark.parametrize(
    "env_id",
    [
        f"{name}-{version}"
        for name in ("InvertedPendulum", "InvertedDoublePendulum", "Hopper", "Walker2d", "Humanoid")
        for version in ("v4", "v5")
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gymnasiums_environments_end_where_the_functions_end(env_id: str):
    env, outcomes = gymnasium.make(env_id), envs.task(f"env:{env_id}").outcomes
    env.action_space.seed(0)
    num_ends = 0
    for seed in range(8):
        s, over = env.reset(seed=seed)[0], False
        while not over:
            a = env.action_space.sample()
            s2, reward, over, truncated, _ = env.step(a)
            assert outcomes.ends["task"](s, a, s2) == over
            if outcomes.reward is not None:
                assert outcomes.reward(s, a, s2) == reward
            assert not truncated
            s = s2
            num_ends += over
    assert num_ends == 8
    env.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({"taks": never},), r"ends is \['taks'\]. Use a dict of functions"),
        ((never,), "ends is function. Use a dict of functions"),
        (({"task": True},), "task is bool. Use a function"),
        (({"task": never}, 1.0), "reward is float. Use a function"),
    ],
)
def test_outcomes_that_are_not_functions_are_refused(arguments: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        envs.Outcomes(*arguments)

"""Runners with a speed limit: costs from positions, commands, and the data's costs."""

import gymnasium
import mujoco
import numpy as np
import pytest

import envs
from envs.experts.budgets import PaceRun
from envs.suites.safe.velocity import ENVS
from envs.tasks import COSTS

LIMITS = {"HalfCheetah": 3.2096, "Hopper": 0.7402, "Walker2d": 2.3415}


@pytest.mark.parametrize("runner", LIMITS)
def test_a_step_above_the_speed_limit_costs_one(runner: str) -> None:
    """Compare with the distance between positions, and all else with the runner without limit."""
    env, plain = envs.make_vector(f"safe/{runner}Velocity", 8), envs.make_vector(f"{runner}-v4", 8)
    rng, running = np.random.default_rng(0), np.arange(8)
    observations = env.reset(range(8))
    np.testing.assert_array_equal(observations, plain.reset(range(8)))
    for data in (*env._data, *plain._data):
        data.qvel[0] = 1.1 * LIMITS[runner]
    costs = []
    for _ in range(30):
        actions = rng.uniform(-1, 1, (len(running), env.action_dim))
        before = env._qpos[running, 0].copy()
        step, other = env.step(actions, running), plain.step(actions, running)
        speed = (env._qpos[running, 0] - before) / env.dt_s
        np.testing.assert_array_equal(step.infos["cost"], speed > LIMITS[runner])
        assert "cost" not in other.infos
        np.testing.assert_array_equal(step.rewards, other.rewards)
        np.testing.assert_array_equal(step.terminated, other.terminated)
        clipped = actions.clip(-1, 1).astype(np.float32)
        of_data = COSTS[f"safe/{runner}Velocity"](None, clipped, np.float32(step.rewards), None)
        np.testing.assert_array_equal(of_data, step.infos["cost"])
        costs += step.infos["cost"].tolist()
        running = running[~step.terminated]
        if not len(running):
            break
    assert {*costs} == {0, 1}
    assert envs.task(f"safe/{runner}Velocity").cost_limits == (20, 40, 80)
    assert envs.task(f"safe/{runner}Velocity").cost_limit == 40


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(("runner", "limit"), [("Ant", 2.6222), ("Swimmer", 0.2282)])
def test_the_limit_is_in_the_plane_for_ant_and_along_x_for_swimmer(
    runner: str, limit: float
) -> None:
    """Compare with Gymnasium's v4, to the bit, and its infos of both velocities."""
    theirs = gymnasium.make(f"{runner}-v4")
    if runner == "Ant" and mujoco.mj_version() >= 3005000:
        theirs.unwrapped.model.geom_margin /= 2  # type: ignore[attr-defined]
    env, rng = ENVS[f"safe/{runner}Velocity"](1), np.random.default_rng(0)
    costs, in_plane = [], []
    for seed in range(3):
        observation, _ = theirs.reset(seed=seed)
        ours = env.reset([seed])
        assert ours.shape == (1, len(observation))
        np.testing.assert_array_equal(ours[0], observation.astype(np.float32))
        for data in (theirs.unwrapped.data, env._data[0]):  # type: ignore[attr-defined]
            data.qvel[:2] += 0.9 * limit
        for _ in range(25):
            action = rng.uniform(-1, 1, env.action_dim)
            observation, reward, terminated, _, info = theirs.step(action)
            step = env.step(action[None])
            np.testing.assert_array_equal(step.observations[0], observation.astype(np.float32))
            assert step.rewards[0] == pytest.approx(reward, abs=1e-12)
            assert step.terminated[0] == terminated
            x, y = info["x_velocity"], info["y_velocity"]
            assert step.infos["cost"][0] == ((np.hypot(x, y) if runner == "Ant" else x) > limit)
            in_plane.append(np.hypot(x, y) > limit)
            costs.append(step.infos["cost"][0])
            if terminated:
                break
    assert {*costs} == {0, 1}
    assert (costs == in_plane) == (runner == "Ant")
    assert envs.task(f"dsrl_data:{runner}Velocity").env_id == f"safe/{runner}Velocity"


def test_running_faster_than_commanded_costs_three_per_meter_per_second() -> None:
    env, plain = ENVS["Hopper-pace"](3), ENVS["safe/HopperVelocity"](3)
    observations, rng = env.reset([0, 1, 2]), np.random.default_rng(0)
    plain.reset([0, 1, 2])
    for e in (env, plain):  # a command is drawn before the state, so the states differ
        for index, data in enumerate(e._data):
            data.qpos[:], data.qvel[:] = e.model.qpos0, ((3, 3, -1)[index], 0, 0, 0, 0, 0)
            e._qpos[index] = data.qpos
    commands = observations[:, -1]
    assert 0.2 <= commands.min() < commands.max() <= 1.6
    actions = rng.uniform(-1, 1, (3, 3))
    step, other = env.step(actions), plain.step(actions)
    excess = (step.infos["x_velocity"] - commands * 0.7402).clip(0)
    assert (excess > 0).tolist() == [True, True, False]  # a slow step earns nothing
    np.testing.assert_allclose(other.rewards - step.rewards, 3 * excess, atol=1e-6)
    np.testing.assert_array_equal(step.observations[:, -1], commands)
    assert envs.task("Hopper-pace").cost_limits == ()


def test_a_controller_commands_careful_speeds_after_its_limit() -> None:
    env = ENVS["safe/HopperVelocity"](3)
    commands = []

    def policy(observations: np.ndarray) -> np.ndarray:
        commands.append(observations[:, -1].copy())
        return np.zeros((len(observations), 3), np.float32)

    run = PaceRun(policy, env, highest_limit=2, seed=0)
    assert run.limits.tolist() == [2, 1, 0]
    run.boldness[:] = 1
    observations, every = env.reset(range(3)), np.arange(3)
    env.x = lambda indices: x[indices]
    for step in range(4):  # 1 m/s, above the limit, in each step
        x = np.full(3, step * env.dt_s)
        run(observations, every)
    bold = np.array(commands) > 0.95
    assert bold.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert run.spent.tolist() == [3, 3, 3]


def test_the_costs_of_neorl2s_half_cheetah_follow_from_its_rewards() -> None:
    env = envs.make_vector("neorl2/SafetyHalfCheetah", 2)
    env.reset([0, 1])
    for data, speed in zip(env._data, (5.0, 1.0), strict=True):
        data.qvel[0] = speed
    step = env.step(np.zeros((2, 6)))
    assert step.infos["x_velocity"][0] > 3.2096 > step.infos["x_velocity"][1]
    assert step.rewards[0] == -100
    assert step.infos["cost"].tolist() == [1, 0]
    costs = COSTS["neorl2/SafetyHalfCheetah"](None, None, step.rewards, None)
    assert costs.tolist() == [1, 0]
    assert envs.task("neorl2/SafetyHalfCheetah").cost_limits == (20, 40, 80)

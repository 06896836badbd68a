"""Tasks of the tabletop arm: agreement with the robot's file, kinematics, experts."""

import numpy as np
import pytest
import yaml

from envs.experts.arm import ArmExpert, forward_kinematics, inverse_kinematics, next_targets
from envs.paths import share
from envs.suites.arm import CLOSE_M, Desk, Push, Reach

ROBOT = yaml.safe_load((share("configs/robot") / "desk.yaml").read_text())


def test_the_experts_kinematics_equal_the_models() -> None:
    env = Reach(4)
    env.reset(range(4))
    np.testing.assert_allclose(
        forward_kinematics(env._qpos[:, :5]), env.tip(np.arange(4)), atol=1e-9
    )


def test_inverse_kinematics_points_the_stick_down_at_the_position() -> None:
    tip = np.array([[0.2, 0.1, 0.05], [0.15, -0.1, 0.18], [0.3, 0.0, 0.04]])
    angles = inverse_kinematics(tip)
    np.testing.assert_allclose(forward_kinematics(angles), tip, atol=1e-9)
    np.testing.assert_allclose(angles[:, 1:4].sum(1), np.pi)


@pytest.mark.parametrize(("kind", "num_steps"), [(Reach, 40), (Push, 200)])
def test_the_expert_succeeds(kind: type[Desk], num_steps: int) -> None:
    env = kind(6)
    expert, observations, running = ArmExpert(env), env.reset(range(6)), np.arange(6)
    for _ in range(num_steps):
        step = env.step(expert(observations, running), running)
        mask = ~(step.terminated | step.truncated)
        running, observations = running[mask], step.observations[mask]
        if not len(running):
            break
    assert not len(running)


def test_a_poor_expert_misses() -> None:
    env = Reach(6)
    expert, observations = ArmExpert(env, skill=0.0), env.reset(range(6))
    successes = np.zeros(6, bool)
    for _ in range(25):
        step = env.step(expert(observations))
        observations, successes = step.observations, successes | step.terminated
        if successes.any():
            break
    assert not successes.all()


def test_targets_move_at_most_at_the_robots_speed_and_are_reached_a_period_later() -> None:
    env = Reach(1)
    env.reset([0])
    start = env._targets[0].copy()
    near = start + 0.05
    env.step(env.action(near[None]))
    np.testing.assert_allclose(env._targets[0], near)
    env.step(env.action(near[None] + 0.5))
    speed = ROBOT["joints"]["waist"]["velocity"]
    np.testing.assert_allclose(env._targets[0], near + speed / 25)


def test_joint_observations_have_the_servos_resolution() -> None:
    env = Reach(3)
    start = env.reset(range(3)).astype(np.float64)
    ticks, speeds = start[:, :5] * 4096 / (2 * np.pi), start[:, 5:10] / (0.229 * 2 * np.pi / 60)
    np.testing.assert_allclose(ticks, np.rint(ticks), atol=1e-3)
    np.testing.assert_allclose(speeds, np.rint(speeds), atol=1e-3)
    assert abs(start[:, :5] - env._qpos[:, :5]).max() <= np.pi / 4096 + 1e-6


def test_a_moving_arm_at_the_target_has_not_reached_it() -> None:
    env = Reach(2)
    env.reset([0, 1])
    env._places[:] = env.tip(np.arange(2))
    turning = env._targets.copy()
    turning[1, 4] += 0.5  # this joint does not move the tip
    step = env.step(env.action(turning))
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]
    assert step.infos["distance"][0] < CLOSE_M


def test_names_and_limits_equal_those_of_the_robots_file() -> None:
    env = Push(1)
    assert env.action_names == tuple(ROBOT["joints"])
    limits = [row["position"] for row in ROBOT["joints"].values()]
    np.testing.assert_allclose(np.stack([env.action_low, env.action_high], 1), limits)
    assert len(env.observation_names) == len(env.observation_units) == env.observation_shape[0]
    assert env.observation_names[:2] == ("waist.q", "shoulder.q")
    assert env.observation_names[-4:] == ("puck.x", "puck.y", "goal.x", "goal.y")
    for name in env.tracked:
        channel, axis = name.split(".")
        assert "xyz".index(axis) < ROBOT["channels"][channel]["shape"][0]


def test_tracker_noise_does_not_depend_on_other_environments() -> None:
    alone, several = Reach(1), Reach(3)
    several.reset([7, 5, 9])
    np.testing.assert_array_equal(alone.reset([5])[0], several.reset([5], np.array([1]))[0])


def test_the_expert_stays_in_the_robots_workspace() -> None:
    """The robot would stop if the tip comes too close to the table; the simulation would not."""
    env, box = Reach(40), ROBOT["workspace"]
    expert, observations, running = ArmExpert(env), env.reset(range(40)), np.arange(40)
    while len(running):
        step = env.step(expert(observations[running], running), running)
        tip = env.tip(running)
        assert ((tip > box["low"]) & (tip < box["high"])).all()
        observations[running] = step.observations
        running = running[~(step.terminated | step.truncated)]


def test_the_experts_targets_follow_from_joint_positions_not_velocities() -> None:
    """Above a minimum speed the targets do not depend on it; at rest they are closer."""
    goal, angles = np.array([[0.4, -0.2, 0.1, 0.05, 0.05]]), np.zeros((1, 5))
    slow, fast, faster = (
        next_targets(goal, angles, np.full((1, 5), v), 0.04) for v in (0.0, 1.2, 1.5)
    )
    np.testing.assert_allclose(fast, faster)
    np.testing.assert_allclose(fast / goal, np.full((1, 5), fast[0, 0] / 0.4))  # a straight line
    assert 0 < slow[0, 0] < fast[0, 0]
    still = next_targets(angles, angles, np.full((1, 5), 0.5), 0.04)
    np.testing.assert_array_equal(still, angles)

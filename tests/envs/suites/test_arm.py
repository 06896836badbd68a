"""The tabletop arm's tasks: the robot's numbers, its kinematics, experts that succeed."""

import numpy as np
import pytest
import yaml

from envs.experts.arm import ArmExpert, forward, inverse, next_targets
from envs.paths import share
from envs.suites.arm import CLOSE_M, Desk, Push, Reach

ROBOT = yaml.safe_load((share("configs/robot") / "desk.yaml").read_text())


def test_the_experts_kinematics_are_the_models() -> None:
    env = Reach(4)
    env.reset(range(4))
    np.testing.assert_allclose(forward(env._qpos[:, :5]), env.tip(np.arange(4)), atol=1e-9)


def test_the_inverse_points_the_stick_down_where_it_is_asked_to() -> None:
    tip = np.array([[0.2, 0.1, 0.05], [0.15, -0.1, 0.18], [0.3, 0.0, 0.04]])
    angles = inverse(tip)
    np.testing.assert_allclose(forward(angles), tip, atol=1e-9)
    np.testing.assert_allclose(angles[:, 1:4].sum(1), np.pi)


@pytest.mark.parametrize(("world", "most"), [(Reach, 40), (Push, 200)])
def test_the_expert_succeeds(world: type[Desk], most: int) -> None:
    env = world(6)
    expert, observations, running = ArmExpert(env), env.reset(range(6)), np.arange(6)
    for _ in range(most):
        step = env.step(expert(observations, running), running)
        going = ~(step.terminated | step.truncated)
        running, observations = running[going], step.observations[going]
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


def test_a_target_is_led_at_the_robots_speed_and_reached_a_period_later() -> None:
    env = Reach(1)
    env.reset([0])
    start = env._targets[0].copy()
    near = start + 0.05
    env.step(env.action(near[None]))
    np.testing.assert_allclose(env._targets[0], near)
    env.step(env.action(near[None] + 0.5))
    speed = ROBOT["joints"]["waist"]["velocity"]
    np.testing.assert_allclose(env._targets[0], near + speed / 25)


def test_joints_are_seen_as_their_servos_tell_them() -> None:
    env = Reach(3)
    seen = env.reset(range(3)).astype(np.float64)
    ticks, speeds = seen[:, :5] * 4096 / (2 * np.pi), seen[:, 5:10] / (0.229 * 2 * np.pi / 60)
    np.testing.assert_allclose(ticks, np.rint(ticks), atol=1e-3)
    np.testing.assert_allclose(speeds, np.rint(speeds), atol=1e-3)
    assert abs(seen[:, :5] - env._qpos[:, :5]).max() <= np.pi / 4096 + 1e-6


def test_moving_at_the_target_is_not_reaching_it() -> None:
    env = Reach(2)
    env.reset([0, 1])
    env._places[:] = env.tip(np.arange(2))
    turning = env._targets.copy()
    turning[1, 4] += 0.5  # which moves no tip
    step = env.step(env.action(turning))
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]
    assert step.infos["distance"][0] < CLOSE_M


def test_it_says_of_itself_what_the_robots_file_says() -> None:
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


def test_a_trackers_noise_is_the_environments_own() -> None:
    alone, beside = Reach(1), Reach(3)
    beside.reset([7, 5, 9])
    np.testing.assert_array_equal(alone.reset([5])[0], beside.reset([5], np.array([1]))[0])


def test_the_expert_stays_in_the_robots_workspace() -> None:
    """Where the tip nears the table the robot would stop, though the task goes on."""
    env, box = Reach(40), ROBOT["workspace"]
    expert, seen, alive = ArmExpert(env), env.reset(range(40)), np.arange(40)
    while len(alive):
        step = env.step(expert(seen[alive], alive), alive)
        tip = env.tip(alive)
        assert ((tip > box["low"]) & (tip < box["high"])).all()
        seen[alive] = step.observations
        alive = alive[~(step.terminated | step.truncated)]


def test_an_expert_goes_by_where_the_joints_are_and_not_by_how_they_move() -> None:
    """Once they are fast enough: the same targets whatever their speed; at rest, nearer ones."""
    goal, here = np.array([[0.4, -0.2, 0.1, 0.05, 0.05]]), np.zeros((1, 5))
    slow, fast, faster = (
        next_targets(goal, here, np.full((1, 5), v), 0.04) for v in (0.0, 1.2, 1.5)
    )
    np.testing.assert_allclose(fast, faster)
    np.testing.assert_allclose(fast / goal, np.full((1, 5), fast[0, 0] / 0.4))  # a straight way
    assert 0 < slow[0, 0] < fast[0, 0]
    np.testing.assert_array_equal(next_targets(here, here, np.full((1, 5), 0.5), 0.04), here)

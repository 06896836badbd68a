"""RandomFrictionHopper compared with Hopper; test_neorl2_simulators compares episodes."""

import random

import numpy as np
import pytest

from envs.suites.locomotion import Hopper
from envs.suites.neorl2 import RandomFrictionHopper


class Usual(RandomFrictionHopper):
    FRICTION = (2.0, 2.0)  # of Gymnasium's foot


def test_with_the_usual_friction_it_is_hopper_without_the_bonus() -> None:
    ours, theirs = Usual(3), Hopper(3)
    np.testing.assert_array_equal(ours.reset([0, 1, 2])[:, 1:12], theirs.reset([0, 1, 2]))
    rng, on = np.random.default_rng(0), np.arange(3)
    while len(on):
        actions = 0.3 * rng.uniform(-1, 1, (len(on), 3))
        step, other = ours.step(actions, on), theirs.step(actions, on)
        np.testing.assert_array_equal(step.observations[:, 1:12], other.observations)
        np.testing.assert_allclose(step.rewards, other.rewards - 1, atol=1e-12)
        np.testing.assert_array_equal(step.terminated, other.terminated)
        on = on[~(step.terminated | step.truncated)]
    assert theirs._num_steps.max() < 1000  # they fell


def test_each_episode_has_its_own_friction() -> None:
    """The observation has the drawn value; the model has two decimals, on the foot only."""
    env = RandomFrictionHopper(4)
    env.reset([0, 1, 2, 3])
    observation = env.reset([10, 11], np.array([2, 0]))
    seeds = [11, 1, 10, 3]
    expected = [random.Random(seed).uniform(1.5, 2.5) for seed in seeds]
    np.testing.assert_allclose(env._friction[:, 0], expected)
    np.testing.assert_allclose(observation[:, 12], [expected[2], expected[0]], rtol=1e-6)
    others = [1.0, 0.9, 0.9, 0.9]  # floor, torso, thigh, leg
    for model, friction in zip(env._models, expected, strict=True):
        assert model.geom_friction[:, 0].tolist() == [*others, float(f"{friction:.2f}")]
    assert Hopper(1).model.geom_friction[4, 0] == 2  # not through a shared model
    assert env.step(np.zeros((4, 3))).observations[:, 12] == pytest.approx(expected)


def test_velocities_are_clipped_and_never_terminate() -> None:
    """Upstream checks the clipped observation; Hopper terminates at 100 rad/s."""
    env = RandomFrictionHopper(1)
    qpos = env.reset([0])[:, :6].astype(np.float64)
    qvel = np.full((1, 6), 150.0)
    assert env.healthy(qpos, qvel).all()
    assert not Hopper(1).healthy(qpos, qvel).any()
    assert not env.healthy(qpos * [1, 0.5, 1, 1, 1, 1], qvel).any()
    env._data[0].qvel[:] = 15
    assert env.step(np.zeros((1, 3))).observations[0, 6:12].max() == 10

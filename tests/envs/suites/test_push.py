"""The pushed puck: arms by hand, the expert's successes, and what its skill does."""

import numpy as np
import pytest

import envs
from envs.experts.push import PushExpert
from envs.suites.push import ARMS, Push, points


def successes(arm: str, skill: float, count: int = 40) -> float:
    env = Push(count, arm=arm)
    expert, observations = PushExpert(env, skill, seed=0), env.reset(range(count))
    running, reached = np.arange(count), np.zeros(count, bool)
    while len(running):
        step = env.step(expert(observations[running], running), running)
        observations[running] = step.observations
        reached[running] |= step.infos["success"]
        running = running[~(step.terminated | step.truncated)]
    return float(reached.mean())


@pytest.mark.parametrize("arm", ARMS)
def test_the_expert_succeeds_with_every_arm(arm: str):
    assert successes(arm, 1.0) >= 0.95


def test_less_skill_succeeds_less():
    shares = [successes("standard", skill, 100) for skill in (0.8, 0.4)]
    assert 0.3 < shares[1] < 0.75 < shares[0]


def test_a_skill_out_of_range_is_refused():
    with pytest.raises(ValueError, match="skill=2 is not between 0 and 1"):
        PushExpert(Push(1), 2)


def test_the_tip_is_where_the_simulator_has_it():
    for arm, embodiment in ARMS.items():
        env = Push(1, arm=arm)
        observation = env.reset([5])[0]
        tip = env._data[0].site("tip").xpos[:2]
        np.testing.assert_allclose(points(embodiment, env._qpos[:, :-2])[0, -1], tip, atol=1e-9)
        joints = len(embodiment.links)
        np.testing.assert_allclose(observation[3 * joints : 3 * joints + 2], tip, atol=1e-6)


def test_full_speed_turns_a_joint_at_its_limit():
    """Also where the arm is slower: an action is a share of its own limit."""
    for arm in ("standard", "slow"):
        env = Push(1, arm=arm)
        env.reset([0])
        env._data[0].qpos[:2] = (-1.5, 0.0)
        for _ in range(15):
            step = env.step(np.array([[1.0, 0.0]]))
        assert step.observations[0, 4] == pytest.approx(ARMS[arm].max_speed, rel=0.08)


def test_the_goal_pays_one_and_ends_the_episode():
    env = envs.make_vector("push/standard-expert", 2)
    env.reset([0, 1])
    env._goals[0] = env._qpos[0, -2:] + [0.02, 0]
    env._goals[1] = env._qpos[1, -2:] + [0.04, 0]
    step = env.step(np.zeros((2, 2)))
    assert step.rewards.tolist() == [1, 0]
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]
    assert envs.task("push/standard-expert").score([0, 1]).tolist() == [0, 100]


def test_a_puck_left_alone_comes_to_rest():
    env = Push(1)
    env.reset([0])
    env._data[0].qvel[-2:] = (0.4, 0.0)
    for _ in range(20):
        step = env.step(np.zeros((1, 2)))
    assert abs(step.observations[0, 10:12]).max() < 1e-3


def test_the_picture_shows_puck_and_goal_where_they_are():
    env = Push(1)
    env.reset([3])
    picture = env.render()
    assert picture.shape == (96, 96, 3)
    assert picture.dtype == np.uint8
    red = (picture[..., 0] > 180) & (picture[..., 1] < 110)
    row, column = np.argwhere(red).mean(0)
    x, y = (column + 0.5) * 0.9 / 96 - 0.15, (48 - row - 0.5) * 0.9 / 96
    np.testing.assert_allclose([x, y], env._qpos[0, -2:], atol=0.01)
    env._goals[0] += [0.1, 0]
    assert (env.render() != picture).any()

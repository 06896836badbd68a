"""D4RL's hands and kitchen: rewards and ends recomputed from the simulator's state."""

import sys

import mujoco
import numpy as np
import pytest

import envs
from envs.suites import gymnasium_robotics as robotics
from envs.suites.gymnasium_robotics import SPARSE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LIMITS = {"door": 200, "hammer": 200, "relocate": 200, "pen": 100}
needed = pytest.mark.skipif(
    "gymnasium_robotics" not in sys.modules
    and __import__("importlib.util", fromlist=["util"]).find_spec("gymnasium_robotics") is None,
    reason="gymnasium-robotics is not installed (extra [robotics])",
)


def state(env):
    data = env._envs[0].unwrapped.data

    def site(name):
        return data.site(name).xpos

    def body(name):
        return data.body(name).xpos

    return data, site, body


def door(env) -> float:
    data, site, _ = state(env)
    hinge = data.joint("door_hinge").qpos[0]
    reward = -0.1 * np.linalg.norm(site("S_grasp") - site("S_handle")) - 0.1 * (hinge - 1.57) ** 2
    bonus = 2 * (hinge > 0.2) + 8 * (hinge > 1.0) + 10 * (hinge > 1.35)
    return reward - 1e-5 * np.square(data.qvel).sum() + bonus


def hammer(env) -> float:
    data, site, body = state(env)
    gap = np.linalg.norm(site("S_target") - site("nail_goal"))
    reward = -0.1 * np.linalg.norm(site("S_grasp") - body("Object"))
    reward -= np.linalg.norm(site("tool") - site("S_target")) + 10 * gap
    lifted = body("Object")[2] > 0.04 and site("tool")[2] > 0.04
    bonus = 2 * lifted + 25 * (gap < 0.02) + 75 * (gap < 0.01)
    return reward - 1e-2 * np.linalg.norm(data.qvel) + bonus


def relocate(env) -> float:
    _, site, body = state(env)
    ball, palm = body("Object"), site("S_grasp")
    goal = site("target")
    reward = -0.1 * np.linalg.norm(palm - ball)
    gap = np.linalg.norm(ball - goal)
    if ball[2] > 0.04:
        reward += 1 - 0.5 * np.linalg.norm(palm - goal) - 0.5 * gap
    return reward + 10 * (gap < 0.1) + 20 * (gap < 0.05)


@needed
@pytest.mark.parametrize("reward", [door, hammer, relocate])
def test_dense_rewards_are_d4rls(reward):
    name = reward.__name__
    env = envs.make_vector(f"{name}-human-v1", 1)
    env.reset([3])
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 1, env.action_dim))
    for action in actions:
        step = env.step(action)
        assert step.rewards[0] == pytest.approx(reward(env), abs=1e-9)
        assert not step.terminated[0]
    assert env.max_episode_steps == LIMITS[name]


@needed
def test_a_dropped_pen_ends_the_episode_with_a_penalty():
    env = envs.make_vector("pen-cloned-v1", 1)
    env.reset([0])
    step = env.step(np.zeros((1, 24)))
    assert not step.terminated[0]
    env._envs[0].unwrapped.model.body("Object").pos[2] -= 0.3
    below = env.step(np.zeros((1, 24)))
    assert below.terminated[0]
    ends = envs.task("pen-cloned-v1").outcomes.ends["task"]
    assert [ends(None, None, s2)[0] for s2 in (step.observations, below.observations)] == [0, 1]
    assert below.rewards[0] < step.rewards[0] - 4


@needed
def test_the_binary_hand_gets_minus_1_per_step_away_from_the_goal():
    env = envs.make_vector("door-binary-v0", 1)
    env.reset([0])
    step = env.step(np.zeros((1, 28)))
    assert (step.rewards[0], step.terminated[0]) == (-1, False)
    env._envs[0].unwrapped.data.joint("door_hinge").qpos[:] = 1.5
    step = env.step(np.zeros((1, 28)))
    assert (step.rewards[0], step.terminated[0], step.infos["success"][0]) == (0, False, True)
    assert envs.task("door-binary-v0").score([-200, 0]).tolist() == [0, 100]


@needed
def test_the_binary_pens_rewards_follow_from_its_states():
    """Compare rewards computed from observations with those of the simulator."""
    env, rewards = envs.make_vector("pen-binary-v0", 60), list[np.ndarray]()
    env.reset(range(60))
    for k, hand in enumerate(env._envs):  # the target is the pen, turned by up to 0.6 rad
        sim, target = hand.unwrapped, np.zeros(4)
        turn = [np.cos(k / 200), 0.0, 0.0, np.sin(k / 200)]
        mujoco.mju_mulQuat(target, turn, sim.data.xquat[sim.obj_body_id])
        sim.model.body_quat[sim.target_obj_body_id] = target
    for action in np.random.default_rng(0).uniform(-0.3, 0.3, (5, 60, 24)):
        step = env.step(action)
        rewards.append(step.rewards)
        np.testing.assert_array_equal(SPARSE["Hand-pen-binary"](step.observations), step.rewards)
        reward = envs.task("pen-binary-v0").outcomes.reward
        np.testing.assert_array_equal(reward(None, action, step.observations), step.rewards)
    assert 60 <= (np.concatenate(rewards) == 0).sum() <= 240


@needed
def test_the_kitchen_rewards_each_task_once_and_observes_the_goal():
    env = envs.make_vector("kitchen-complete-v0", 1)
    first = env.reset([0])[0]
    goal = np.zeros(30)
    goal[[17, 18]], goal[19], goal[22] = (-0.69, -0.05), 0.37, -0.75
    goal[23:] = (-0.23, 0.75, 1.62, 0.99, 0, 0, -0.06)
    np.testing.assert_allclose(first[30:], goal, atol=1e-6)
    qpos = env._envs[0].unwrapped._env.data.qpos
    np.testing.assert_allclose(first[:30], qpos, atol=0.05)  # except for noise
    assert abs(first[:9] - qpos[:9]).max() > 1e-5
    qpos[22], qpos[19] = -0.75, 0.37  # microwave and slide cabinet
    step = env.step(np.zeros((1, 9)))
    assert step.rewards[0] == 2
    assert env.step(np.zeros((1, 9))).rewards[0] == 0
    qpos[[17, 18]], qpos[23:] = (-0.69, -0.05), goal[23:]
    last = env.step(np.zeros((1, 9)))
    assert (last.rewards[0], last.terminated[0], last.infos["success"][0]) == (2, True, True)


@needed
@pytest.mark.parametrize("name", ["relocate-human-v1", "kitchen-mixed-v0"])
def test_a_seed_determines_the_episode(name):
    env = envs.make_vector(name, 2)
    first = env.reset([4, 4])
    actions = np.zeros((2, env.action_dim))
    step = env.step(actions)
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(step.observations[0], step.observations[1])
    again = env.reset([4, 5])
    np.testing.assert_array_equal(again[0], first[0])
    assert (again[1] != first[0]).any()


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    robotics.load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(ValueError, match=r"extra \[robotics\]"):
        envs.make_vector("door-human-v1", 1).reset([0])
    robotics.load_library.cache_clear()


@needed
def test_threads_change_nothing():
    rng, results = np.random.default_rng(0), []
    actions = rng.uniform(-1, 1, (5, 3, 28))
    for threads in (1, 2):
        env = envs.make_vector("door-human-v0", 3, num_threads=threads)
        env.reset([1, 2, 3])
        results.append(np.stack([env.step(a).observations for a in actions]))
        env.close()
    np.testing.assert_array_equal(*results)

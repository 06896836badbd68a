"""Push tasks: kinematics by hand, images, the expert's success and the effect of its skill."""

import time

import numpy as np
import pytest

import envs
from envs.experts.push import PushExpert
from envs.suites.push import ARMS, CAMERA, PUCK, TIP, Push, joint_positions


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
    with pytest.raises(ValueError, match="skill=2 is out of range"):
        PushExpert(Push(1), 2)


def test_the_tip_is_where_the_simulator_has_it():
    for arm, embodiment in ARMS.items():
        env = Push(1, arm=arm)
        observation = env.reset([5])[0]
        tip = env._data[0].site("tip").xpos[:2]
        np.testing.assert_allclose(
            joint_positions(embodiment, env._qpos[:, :-2])[0, -1], tip, atol=1e-9
        )
        joints = len(embodiment.links)
        np.testing.assert_allclose(observation[3 * joints : 3 * joints + 2], tip, atol=1e-6)


def test_full_speed_turns_a_joint_at_its_limit():
    """An action is a fraction of the arm's own limit, also for the slow arm."""
    for arm in ("standard", "slow"):
        env = Push(1, arm=arm)
        env.reset([0])
        env._data[0].qpos[:2] = (-1.5, 0.0)
        for _ in range(15):
            step = env.step(np.array([[1.0, 0.0]]))
        assert step.observations[0, 4] == pytest.approx(ARMS[arm].max_speed, rel=0.08)


def test_reaching_the_goal_gives_reward_1_and_ends_the_episode():
    env = envs.make_vector("push/standard-expert", 2)
    env.reset([0, 1])
    env._goals[0] = env._qpos[0, -2:] + [0.02, 0]
    env._goals[1] = env._qpos[1, -2:] + [0.04, 0]
    step = env.step(np.zeros((2, 2)))
    assert step.rewards.tolist() == [1, 0]
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]
    assert envs.task("push/standard-expert").score([0, 1]).tolist() == [0, 100]


def test_a_free_puck_comes_to_rest():
    env = Push(1)
    env.reset([0])
    env._data[0].qvel[-2:] = (0.4, 0.0)
    for _ in range(20):
        step = env.step(np.zeros((1, 2)))
    assert abs(step.observations[0, 10:12]).max() < 1e-3


def test_the_image_shows_puck_and_goal_at_their_positions():
    env = Push(1)
    env.reset([3])
    image = env.render(frame=CAMERA)
    assert image.shape == (96, 96, 3)
    assert image.dtype == np.uint8
    red = (image[..., 0] > 180) & (image[..., 1] < 110)
    row, column = np.argwhere(red).mean(0)
    x, y = (column + 0.5) * 0.9 / 96 - 0.15, (48 - row - 0.5) * 0.9 / 96
    np.testing.assert_allclose([x, y], env._qpos[0, -2:], atol=0.01)
    env._goals[0] += [0.1, 0]
    assert (env.render(frame=CAMERA) != image).any()


@pytest.mark.parametrize("arm", ["standard", "three"])
def test_the_pixel_task_has_the_same_dynamics_as_the_vector_task(arm: str):
    pixel_env, state_env = (envs.make_vector(f"push/{arm}{end}", 3) for end in ("-pixels", ""))
    channels, vectors = pixel_env.reset(range(3)), state_env.reset(range(3))
    from_vectors = PushExpert(state_env, 0.4, seed=5)
    from_channels = PushExpert(pixel_env, 0.4, seed=5)
    for _ in range(8):
        size = channels["state"].shape[1]
        np.testing.assert_array_equal(channels["state"], vectors[:, :size])
        np.testing.assert_array_equal(
            channels["picture"], [state_env.render(k, CAMERA) for k in range(3)]
        )
        actions = from_vectors(vectors)
        np.testing.assert_array_equal(from_channels(channels), actions)
        vectors = state_env.step(actions).observations
        channels = pixel_env.step(actions).observations
    joints = 2 if arm == "standard" else 3
    assert size == pixel_env.observation_shape["state"][0] == 3 * joints + 2


def test_the_image_equals_one_computed_from_the_distance_of_every_pixel():
    """Compute it by hand: a pixel's coverage of a shape changes over one pixel at its edge."""
    env = Push(1)
    env.reset([7])
    x, y = np.meshgrid(
        (np.arange(96) + 0.5) * 0.9 / 96 - 0.15, 0.45 - (np.arange(96) + 0.5) * 0.9 / 96
    )
    arm, puck, goal = (
        joint_positions(env.arm, env._qpos[:, :-2])[0],
        env._qpos[0, -2:],
        env._goals[0],
    )
    expected = np.full((96, 96, 3), 235.0)

    def paint(distance: np.ndarray, color: tuple[int, int, int]) -> None:
        share = (0.5 - distance / (0.9 / 96)).clip(0, 1)[..., None]
        expected[:] = np.floor(expected * (1 - share) + np.array(color) * share)

    paint(abs(np.hypot(x - goal[0], y - goal[1]) - 0.04) - 0.008, (60, 160, 80))
    paint(np.hypot(x - puck[0], y - puck[1]) - 0.04, (205, 75, 60))
    for start, end in zip(arm[:-1], arm[1:], strict=True):
        way = np.stack([x, y], -1) - start
        share = ((way @ (end - start)) / ((end - start) @ (end - start))).clip(0, 1)[..., None]
        paint(np.linalg.norm(way - share * (end - start), axis=-1) - 0.015, (70, 80, 105))
    paint(np.hypot(x - arm[-1, 0], y - arm[-1, 1]) - 0.02, (25, 30, 45))
    assert abs(env.render(frame=CAMERA) - expected).max() <= 1  # rounding of the last digit


@pytest.mark.parametrize("arm", ARMS)
def test_the_default_image_contains_arm_puck_and_goal(arm: str):
    """The arm is stretched in any direction and the puck is as far as its tip can push it."""
    env, bodies = envs.make_vector(f"push/{arm}-pixels", 1), {"arm": 0, "puck": 0, "goal": 0}
    observed = env.reset([0])["picture"].shape
    assert isinstance(env, Push)
    length = sum(env.arm.links)
    for turn in np.linspace(-env.arm.reach, env.arm.reach, 7):
        way = np.array([np.cos(turn), np.sin(turn)])
        env._qpos[0] = [turn, *np.zeros(len(env.arm.links) - 1), *(length + PUCK + TIP) * way]
        env._goals[0] = -0.75 * length * way  # the farthest goal
        image = env.render()
        assert image.shape == (640, 640, 3)
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert (edge == 235).all()  # nothing is cut off
        bodies["arm"] = (image == (25, 30, 45)).all(-1).sum()
        bodies["puck"] = (image == (205, 75, 60)).all(-1).sum()
        bodies["goal"] = (image == (60, 160, 80)).all(-1).sum()
        pixel = 2 * (length + 0.25) / 640
        for name, area in {"arm": np.pi * TIP**2, "puck": np.pi * PUCK**2}.items():
            assert bodies[name] * pixel**2 == pytest.approx(area, rel=0.25)
        assert bodies["goal"] * pixel**2 == pytest.approx(2 * np.pi * 0.04 * 0.016, rel=0.4)
    assert observed == (1, 96, 96, 3)


@pytest.mark.slow
def test_a_core_renders_two_thousand_images_per_second():
    env = Push(50)
    env.reset(range(50))
    started = time.process_time()
    for _ in range(10):
        for k in range(50):
            env.render(k, CAMERA)
    assert 500 / (time.process_time() - started) > 2000

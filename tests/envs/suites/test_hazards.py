"""Hazards: geometry by brute force, rewards and costs from observations, and the controller."""

import numpy as np
import pytest

import envs
from envs.experts.budgets import HazardWalk, avoid
from envs.suites.safe.hazards import ENVS, Hazards, draw_hazards, lidar
from envs.tasks import COSTS

NAMES = {"safe/PointHazards": 1.0, "safe/AntHazards": 4.0}  # units, m


def play(env: Hazards, steps: int, seed: int = 0) -> list:
    """Return the observations and steps of random actions, from the positions of the hazards on."""
    rng = np.random.default_rng(seed)
    observations, played = env.reset(range(env.num_envs)), []
    for place, hazards in zip(env._data, env.hazards, strict=True):
        place.qpos[:2] = hazards[0] + 0.39 * env.unit_m  # on the diagonal, outside
        place.qvel[:2] = -0.5 * env.unit_m
    for _ in range(steps):
        step = env.step(rng.uniform(-1, 1, (env.num_envs, env.action_dim)))
        played.append((observations, env._qpos[:, :2].copy(), step))
        observations = step.observations
    return played


@pytest.mark.parametrize("name", NAMES)
def test_costs_and_rewards_follow_from_positions_and_from_observations(name: str) -> None:
    env, unit = ENVS[name](4), NAMES[name]
    outcomes, costs = envs.task(name).outcomes, []
    played = play(env, 6)
    for (_, before, _), (s, after, step) in zip(played, played[1:], strict=False):
        distances = np.linalg.norm(env.hazards - after[:, None], axis=2)
        np.testing.assert_array_equal(step.infos["cost"], (distances < 0.4 * unit).any(1))
        goals = s[:, -18:-16] + before
        d0, d1 = (np.linalg.norm(goals - x, axis=1) / unit for x in (before, after))
        np.testing.assert_allclose(step.rewards, d0 - d1 + (d1 <= 0.2), atol=1e-5)
        reward = outcomes.reward(s, None, step.observations)
        np.testing.assert_allclose(reward, step.rewards, atol=1e-5)
        cost = COSTS[name](s, None, None, step.observations)
        np.testing.assert_array_equal(cost, step.infos["cost"])
        costs += step.infos["cost"].tolist()
    assert {*costs} == {0, 1}


def test_the_ant_ends_upside_down_and_the_point_never() -> None:
    ant = ENVS["safe/AntHazards"](2)
    ant.reset([0, 1])
    ant._data[1].qpos[3:7] = (0, 1, 0, 0)  # half a turn about x
    step = ant.step(np.zeros((2, 8)))
    assert step.terminated.tolist() == [False, True]
    ends = envs.task("safe/AntHazards").outcomes.ends["task"]
    assert ends(None, None, step.observations).tolist() == [False, True]
    s2 = np.zeros((3, 22))
    assert not envs.task("safe/PointHazards").outcomes.ends["task"](None, None, s2).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_determines_the_episode_whatever_the_neighbors(name: str) -> None:
    alone, crowd = ENVS[name](1), ENVS[name](3, num_threads=2)
    np.testing.assert_array_equal(alone.reset([2])[0], crowd.reset([0, 1, 2])[2])
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = rng.uniform(-1, 1, (3, alone.action_dim))
        one, many = alone.step(actions[2:]), crowd.step(actions)
        np.testing.assert_array_equal(one.observations[0], many.observations[2])
        assert one.rewards[0] == many.rewards[2]
    assert (crowd.hazards[0] != crowd.hazards[1]).all()


def test_hazards_do_not_overlap_and_starts_and_goals_are_outside() -> None:
    env = ENVS["safe/PointHazards"](30)
    observations = env.reset(range(30))
    assert envs.task("safe/PointHazards").cost_limits == (10, 20, 40)
    for places in (observations[:, :2], env.goals):
        assert (np.linalg.norm(env.hazards - places[:, None], axis=2) > 0.4 + 0.15 - 1e-6).all()
    assert (np.linalg.norm(env.goals - observations[:, :2], axis=1) > 1).all()
    for k in range(20):
        centers = draw_hazards(np.random.default_rng(k))
        apart = np.linalg.norm(centers - centers[:, None], axis=2) + 9 * np.eye(9)
        assert apart.min() >= 1.05
        assert abs(centers).max() <= 2.0


def test_a_reached_goal_pays_one_and_is_replaced() -> None:
    env = ENVS["safe/PointHazards"](1)
    observations = env.reset([0])
    place = observations[0, :2].astype(float)
    env.goals[0] = place + np.array([0.1, 0])
    step = env.step(np.zeros((1, 2)))
    assert step.rewards[0] == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(env.goals[0] - place) > 1
    np.testing.assert_allclose(step.observations[0, 4:6], env.goals[0] - place, atol=1e-6)


def test_the_lidar_reads_hazards_by_direction_and_distance() -> None:
    """Three hazards: 1 m from the edge in sector 0, the same in sector 4, and around the agent."""
    east, north = np.array([1.4, 0.0]), np.array([0.0, 1.4])
    middle = 1.4 * np.array([np.cos(np.pi / 16), np.sin(np.pi / 16)])
    scan = lidar(middle[None, None], 1.0)[0]
    np.testing.assert_allclose(scan[[15, 0, 1]], [1 / 6, 1 / 3, 1 / 6])
    assert not scan[2:15].any()
    scan = lidar(np.stack([east, north])[None], 1.0)[0]
    np.testing.assert_allclose(scan[[15, 0, 3, 4]], 1 / 3)  # on the sectors' borders
    assert lidar(np.zeros((1, 1, 2)), 1.0).max() == pytest.approx(1 + 0.4 / 1.5)
    np.testing.assert_array_equal(lidar(4 * middle[None, None], 4.0), lidar(middle[None, None], 1))
    angles = np.linspace(0, 2 * np.pi, 5000)
    around = 1.4 * np.stack([np.cos(angles), np.sin(angles)], 1)
    scans = lidar(around[:, None], 1.0)
    assert abs(np.diff(scans, axis=0)).max() < 0.01  # continuous
    np.testing.assert_allclose(scans.max(1), 1 / 3)


def test_the_point_moves_at_most_one_meter_per_second_with_a_lag() -> None:
    env = ENVS["safe/PointHazards"](1)
    env.reset([0])
    env._data[0].qpos[:] = (-2, 0)
    speeds = [env.step(np.array([[1.0, 0]])).observations[0, 2] for _ in range(20)]
    times = 0.1 * np.arange(1, 21)
    np.testing.assert_allclose(speeds, 1 - np.exp(-3.3 * times), atol=0.03)
    assert env._qpos[0, 0] < 2.41


def test_walls_stop_the_point() -> None:
    env = ENVS["safe/PointHazards"](4)
    env.reset(range(4))
    for data, place in zip(env._data, [(2.2, 0), (-2.2, 0), (0, 2.2), (0, -2.2)], strict=True):
        data.qpos[:] = place
    for _ in range(20):
        env.step(np.sign(env._qpos).round() * (abs(env._qpos) > 1))
    assert (abs(env._qpos).max(1) < 2.45).all()
    assert (abs(env._qpos).max(1) > 2.35).all()


def test_the_controller_avoids_hazards_unless_it_has_cost_left() -> None:
    def costs(limit: float) -> np.ndarray:
        env = ENVS["safe/PointHazards"](6)
        walk = HazardWalk(env, limit, seed=1)
        walk.boldness[:], walk.speeds, walk.limits[:] = 1, (1, 1), limit
        observations, every, total = env.reset(range(6)), np.arange(6), np.zeros(6)
        for _ in range(120):
            step = env.step(walk(observations, every))
            observations, total = step.observations, total + step.infos["cost"]
        return total

    assert costs(0).max() == 0
    assert 5 <= costs(5).max() < 15  # it leaves a hazard as soon as its cost is used up
    assert costs(1000).mean() > 10


def test_a_way_around_a_hazard_bends_to_the_nearer_side() -> None:
    start, goal = np.zeros(2), np.array([2.0, 0])
    hazard = np.array([[1.0, 0.1]])
    np.testing.assert_allclose(avoid(start, goal, hazard + np.array([0, 2]), 0.1), [1, 0])
    side = np.array([1, 0.1 - 0.55])  # keep 0.5 and 0.05 from the center, below it
    np.testing.assert_allclose(avoid(start, goal, hazard, 0.1), side / np.linalg.norm(side))

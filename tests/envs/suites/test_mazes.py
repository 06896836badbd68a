"""D4RL's mazes: walls, dynamics computed by hand, goals, rewards and ends."""

import gymnasium
import mujoco
import numpy as np
import pytest

import envs
from envs.experts.walkers import AntWalk
from envs.physics import gymnasium_spec
from envs.suites.mazes import ENVS, cells
from envs.tasks import NATIVE


def test_every_maze_of_d4rl_has_an_environment_with_the_same_time_limit():
    names = [n for n in envs.cards() if n.startswith(("antmaze", "maze2d"))]
    assert len(names) == 44
    for name in names:
        card = envs.card(name)
        assert NATIVE[card.env].keywords["max_episode_steps"] == card.max_episode_steps
        assert ("eval" in name) == ("eval" in card.env)
        assert ("dense" in name) == ("Dense" in card.env)


def test_the_ant_equals_gymnasiums_except_for_time_step_and_motors():
    theirs = gymnasium_spec("ant.xml").compile()
    ours = ENVS["AntMaze-umaze"](1).model
    for field in ("body_mass", "body_inertia", "jnt_range", "dof_damping", "dof_armature", "qpos0"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
    assert (ours.opt.timestep, set(ours.actuator_gear[:, 0])) == (0.02, {30.0})
    np.testing.assert_array_equal(ours.actuator_trnid, theirs.actuator_trnid)
    factor = 2 if mujoco.mj_version() >= 3005000 else 1
    np.testing.assert_allclose(ours.geom_margin, 0.01 / factor)


def test_the_ants_walls_are_blocks_of_four_meters_around_its_start():
    model = ENVS["AntMaze-umaze"](1).model
    boxes = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    assert boxes.sum() == 18
    np.testing.assert_array_equal(model.geom_size[boxes], [[2, 2, 1]] * 18)
    places = {tuple(p) for p in model.geom_pos[boxes]}
    assert (-4, -4, 1) in places  # the map's corner; the start is cell (1, 1)
    assert (0, 4, 1) in places  # the wall between the two corridors
    assert (8, 4, 1) not in places  # the passage at its end


@pytest.mark.parametrize("name", ["AntMaze-umaze", "AntMaze-large", "AntMaze-eval-medium"])
def test_goals_lie_up_to_one_and_a_half_meters_beyond_their_cell(name: str):
    env = ENVS[name](40)
    first = env.reset(range(40))
    assert first.shape == (40, 29)
    assert abs(first[:, :2]).max() <= 0.1
    middle = np.array(env.center(*cells(env.maze, "G")[0]))
    offset = env._goals - middle
    assert (offset >= 0).all()
    assert offset.max() <= 1.5
    assert len(np.unique(offset[:, 1])) == 40  # a new goal for each seed
    np.testing.assert_array_equal(env.reset(range(40)), first)


def test_reaching_the_goal_gives_reward_1_and_ends_the_ants_episode():
    env = ENVS["AntMaze-umaze"](2)
    env.reset([0, 1])
    env._goals[:] = [[0.3, 0], [0.9, 0]]
    step = env.step(np.zeros((2, 8)))
    assert step.rewards.tolist() == [1, 0]
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]


def test_diverse_starts_are_at_the_centers_of_all_cells_except_the_goals():
    env = ENVS["AntMaze-medium-diverse"](60)
    places = env.reset(range(60))[:, :2]
    middles = np.array([env.center(*cell) for cell in cells("medium", ".R")])
    nearest = np.linalg.norm(places[:, None] - middles, axis=2).argmin(1)
    assert abs(places - middles[nearest]).max() <= 0.1
    assert len(set(nearest)) > 15
    goal = cells("medium", "G")[0]
    assert env.cell(np.array(env.center(*goal)) + 1.9) == goal


def test_ant_goal_rewards_speed_toward_consecutive_goals():
    env = ENVS["Ant-goal"](3)
    first = env.reset(range(3))
    assert first.shape == (3, 29)
    way = np.linalg.norm(first[:, 27:], axis=1)
    assert ((way >= 1) & (way <= 6)).all()
    env._goals[1] = env._qpos[1, :2] + 0.3
    goals, places = env._goals.copy(), env._qpos[:, :2].copy()
    env._data[2].qpos[3:7] = (0, 1, 0, 0)  # half a turn about x: on its back
    step = env.step(np.full((3, 8), 0.3))
    before, after = (np.linalg.norm(p - goals, axis=1) for p in (places, env._qpos[:, :2]))
    np.testing.assert_allclose(step.rewards, (before - after) / 0.1)
    assert step.infos["success"].tolist() == [False, True, False]
    assert step.terminated.tolist() == [False, False, True]
    np.testing.assert_allclose(step.observations[0, 27:], goals[0] - env._qpos[0, :2], rtol=1e-6)
    next_way = np.linalg.norm(step.observations[1, 27:])
    assert 1 <= next_way <= 6
    np.testing.assert_array_equal(step.observations[0, :13], env._qpos[0, 2:].astype(np.float32))


def test_ant_walk_passes_the_next_waypoint_to_its_policy():
    env = ENVS["AntMaze-umaze"](2)
    calls = []

    def policy(observations: np.ndarray) -> np.ndarray:
        calls.append(observations)
        return np.full((len(observations), 8), 0.5)

    walk = AntWalk(policy, env, noise=0.0, seed=0)
    observations = env.reset([0, 1])
    walk._paths = [[np.array([0.5, 0.0]), np.array([4.0, 0.0])], [np.array([4.0, 0.0])]]
    actions = walk(observations, np.arange(2))
    np.testing.assert_array_equal(actions, np.full((2, 8), 0.5, np.float32))
    np.testing.assert_array_equal(calls[0][:, :27], observations[:, 2:])
    # the first ant's first waypoint is less than a meter away, so its second one is used
    offsets = [[4, 0] - observations[0, :2], [4, 0] - observations[1, :2]]
    np.testing.assert_allclose(calls[0][:, 27:], offsets, rtol=1e-6)


def test_the_point_obeys_newton_with_damping():
    """m v' = 100 a - v, by MuJoCo's Euler step with implicit damping; 1000 kg/m3, radius 0.1 m."""
    env, h = ENVS["PointMaze-open-v0"](1), 0.01
    env.reset([0])
    data = env._data[0]
    data.qpos[:], data.qvel[:] = (1.0, 3.0), 0.0
    mass, v, x = 1000 * 4 / 3 * np.pi * 0.1**3, np.zeros(2), np.array([1.0, 3.0])
    action = np.array([0.2, 0.05])
    for _ in range(20):
        v = v + h * (100 * action - v) / (mass + h)
        x = x + h * v
        step = env.step(action[None])
        np.testing.assert_allclose(step.observations[0], [*x, *v], rtol=1e-5)


def test_walls_stop_the_point_at_asymmetric_distances():
    """Cell (1, 1) of the U: 1.5 + 0.1 - 1.2 to 2.5 - 0.1 - 1.2, because its origin is at 1.2."""
    env = ENVS["PointMaze-umaze-v1"](2)
    env.reset([0, 1])
    for data in env._data:
        data.qpos[:], data.qvel[:] = (1.0, 1.0), 0.0
    for _ in range(150):
        step = env.step(np.array([[1.0, 0.0], [-1.0, -1.0]]))
    np.testing.assert_allclose(step.observations[0, 0], 1.2, atol=0.02)
    np.testing.assert_allclose(step.observations[1, :2], 0.4, atol=0.02)


def test_the_point_is_rewarded_at_the_goal_without_termination():
    sparse, dense = ENVS["PointMaze-umaze-v1"](2), ENVS["PointMazeDense-umaze-v1"](2)
    for env in (sparse, dense):
        env.reset([0, 1])
        for data, x in zip(env._data, (1.4, 1.6), strict=True):
            data.qpos[:], data.qvel[:] = (1.0, x), 0.0
    step = sparse.step(np.zeros((2, 2)))
    assert step.rewards.tolist() == [1, 0]  # goal (1, 1), radius 0.5
    assert not step.terminated.any()
    rewards = dense.step(np.zeros((2, 2))).rewards
    np.testing.assert_allclose(rewards, np.exp([-0.4, -0.6]), rtol=1e-6)


def test_the_points_speed_is_clipped_before_each_step():
    env = ENVS["PointMaze-open-v0"](1)
    env.reset([0])
    env._data[0].qpos[:], env._data[0].qvel[:] = (2.0, 3.0), (0.0, 9.0)
    mass = 1000 * 4 / 3 * np.pi * 0.1**3
    step = env.step(np.zeros((1, 2)))
    assert step.observations[0, 3] == pytest.approx(5 - 0.01 * 5 / (mass + 0.01), rel=1e-5)


def test_a_point_maze_without_velocities_is_the_same_maze_with_positions_alone():
    hidden, shown = ENVS["PointMazeNoVelocity-umaze-v1"](2), ENVS["PointMaze-umaze-v1"](2)
    np.testing.assert_array_equal(hidden.reset([0, 1]), shown.reset([0, 1])[:, :2])
    assert hidden.observation_shape == (2,)
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.uniform(-1, 1, (2, 2)).astype(np.float32)
        ours, theirs = hidden.step(actions), shown.step(actions)
        np.testing.assert_array_equal(ours.observations, theirs.observations[:, :2])
        np.testing.assert_array_equal(ours.rewards, theirs.rewards)


@pytest.mark.parametrize("name", ["AntMaze-umaze", "PointMaze-large-v1"])
def test_neighbors_and_threads_change_nothing(name: str):
    alone, crowd = ENVS[name](1), ENVS[name](3, num_threads=2)
    first = alone.reset([7])
    np.testing.assert_array_equal(crowd.reset([5, 7, 6])[1], first[0])
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 3, alone.action_dim))
    for each in actions:
        step, all_steps = alone.step(each[1:2]), crowd.step(each)
        np.testing.assert_array_equal(all_steps.observations[1], step.observations[0])


def test_d4rls_name_makes_a_gymnasium_environment():
    env = envs.make("antmaze-umaze-v2")
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=3)
    assert observation.shape == (29,)
    assert env.action_space.shape == (8,)
    assert envs.task("antmaze-umaze-v2").score([0, 1]).tolist() == [0, 100]

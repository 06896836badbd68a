"""D4RL's mazes: walls where they stand, forces by hand, goals, rewards and ends."""

import gymnasium
import mujoco
import numpy as np
import pytest

import envs
from envs.mazes import ENVS, cells
from envs.physics import gymnasium_spec
from envs.tasks import NATIVE


def test_every_maze_of_d4rl_has_its_world_with_the_same_limit():
    names = [n for n in envs.cards() if n.startswith(("antmaze", "maze2d"))]
    assert len(names) == 44
    for name in names:
        card = envs.card(name)
        assert NATIVE[card.env].keywords["max_episode_steps"] == card.max_episode_steps
        assert ("eval" in name) == ("eval" in card.env)
        assert ("dense" in name) == ("Dense" in card.env)


def test_the_ant_is_gymnasiums_but_for_step_and_motors():
    theirs = gymnasium_spec("ant.xml").compile()
    ours = ENVS["AntMaze-umaze"](1).model
    for field in ("body_mass", "body_inertia", "jnt_range", "dof_damping", "dof_armature", "qpos0"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
    assert (ours.opt.timestep, set(ours.actuator_gear[:, 0])) == (0.02, {30.0})
    np.testing.assert_array_equal(ours.actuator_trnid, theirs.actuator_trnid)
    factor = 2 if mujoco.mj_version() >= 3005000 else 1
    np.testing.assert_allclose(ours.geom_margin, 0.01 / factor)


def test_the_ants_walls_are_blocks_of_four_metres_around_its_start():
    model = ENVS["AntMaze-umaze"](1).model
    boxes = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    assert boxes.sum() == 18
    np.testing.assert_array_equal(model.geom_size[boxes], [[2, 2, 1]] * 18)
    places = {tuple(p) for p in model.geom_pos[boxes]}
    assert (-4, -4, 1) in places  # the map's corner; the start is cell (1, 1)
    assert (0, 4, 1) in places  # the wall between the two corridors
    assert (8, 4, 1) not in places  # the passage at its end


@pytest.mark.parametrize("name", ["AntMaze-umaze", "AntMaze-large", "AntMaze-eval-medium"])
def test_goals_lie_up_to_one_and_a_half_metres_beyond_their_cell(name: str):
    env = ENVS[name](40)
    first = env.reset(range(40))
    assert first.shape == (40, 29)
    assert abs(first[:, :2]).max() <= 0.1
    middle = np.array(env.place(*cells(env.maze, "G")[0]))
    offset = env._goals - middle
    assert (offset >= 0).all()
    assert offset.max() <= 1.5
    assert len(np.unique(offset[:, 1])) == 40  # a new goal for each seed
    np.testing.assert_array_equal(env.reset(range(40)), first)


def test_reaching_the_goal_pays_one_and_ends_the_ants_episode():
    env = ENVS["AntMaze-umaze"](2)
    env.reset([0, 1])
    env._goals[:] = [[0.3, 0], [0.9, 0]]
    step = env.step(np.zeros((2, 8)))
    assert step.rewards.tolist() == [1, 0]
    assert step.terminated.tolist() == step.infos["success"].tolist() == [True, False]


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


def test_walls_hold_the_point_nearer_at_high_coordinates():
    """Cell (1, 1) of the U: 1.5 + 0.1 - 1.2 to 2.5 - 0.1 - 1.2, as the body begins at 1.2."""
    env = ENVS["PointMaze-umaze-v1"](2)
    env.reset([0, 1])
    for data in env._data:
        data.qpos[:], data.qvel[:] = (1.0, 1.0), 0.0
    for _ in range(150):
        step = env.step(np.array([[1.0, 0.0], [-1.0, -1.0]]))
    np.testing.assert_allclose(step.observations[0, 0], 1.2, atol=0.02)
    np.testing.assert_allclose(step.observations[1, :2], 0.4, atol=0.02)


def test_the_point_is_paid_near_the_goal_and_goes_on():
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


@pytest.mark.parametrize("name", ["AntMaze-umaze", "PointMaze-large-v1"])
def test_neighbours_and_threads_change_nothing(name: str):
    alone, crowd = ENVS[name](1), ENVS[name](3, num_threads=2)
    first = alone.reset([7])
    np.testing.assert_array_equal(crowd.reset([5, 7, 6])[1], first[0])
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 3, alone.action_dim))
    for each in actions:
        step, all_steps = alone.step(each[1:2]), crowd.step(each)
        np.testing.assert_array_equal(all_steps.observations[1], step.observations[0])


def test_by_d4rls_name_as_one_gymnasium_environment():
    env = envs.make("antmaze-umaze-v2")
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=3)
    assert observation.shape == (29,)
    assert env.action_space.shape == (8,)
    assert envs.task("antmaze-umaze-v2").score([0, 1]).tolist() == [0, 100]

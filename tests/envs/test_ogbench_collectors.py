"""Collectors of OGBench's trajectories: layout, seeds, and what the policies do."""

import numpy as np
import pytest

from envs.experts.ogbench import (
    Collector,
    collector_class,
    is_cube_visible,
    is_hallway,
    path_lengths,
)

MAZE = np.array([[c == "." for c in row] for row in ("#######", "#....##", "#.#.#.#", "#######")])


def collector(environment: str, kind: str, **options: float) -> Collector:
    pytest.importorskip("ogbench", reason="OGBench needs the extra ogbench")
    return collector_class(environment, kind)(environment, kind, **options)  # type: ignore[arg-type]


def test_path_lengths_are_the_steps_around_walls() -> None:
    free = [tuple(map(int, cell)) for cell in np.argwhere(MAZE)]
    assert path_lengths(free, (2, 1)) == {
        (2, 1): 0,
        (1, 1): 1,
        (1, 2): 2,
        (1, 3): 3,
        (1, 4): 4,
        (2, 3): 4,
    }  # (2, 5) is not reachable


def test_goals_are_all_free_cells_but_straight_passages() -> None:
    hallways = {tuple(map(int, c)) for c in np.argwhere(MAZE) if is_hallway(MAZE, tuple(c))}
    assert hallways == {(1, 2)}


def test_a_cube_may_leave_the_table_only_into_the_drawer() -> None:
    qpos = np.zeros((3, 25))
    assert is_cube_visible(qpos)
    for y, z, visible in ((0.3, 0, False), (-0.31, 0.07, True), (-0.31, 0.05, False)):
        qpos[1, 15:17] = y, z
        assert is_cube_visible(qpos) == visible


@pytest.mark.parametrize(
    ("environment", "kind", "observation", "qpos", "buttons"),
    [
        pytest.param("cube-single", "play", 28, 21, None, marks=pytest.mark.slow),
        pytest.param("cube-double", "noisy", 37, 28, None, marks=pytest.mark.slow),
        pytest.param("scene", "play", 40, 25, 2, marks=pytest.mark.slow),
        pytest.param("scene", "noisy", 40, 25, 2, marks=pytest.mark.slow),
        pytest.param("puzzle-3x3", "play", 55, 23, 9, marks=pytest.mark.slow),
        ("pointmaze-medium", "navigate", 2, 2, None),
        ("pointmaze-medium", "stitch", 2, 2, None),
    ],
)
def test_a_trajectory_depends_on_its_seed_alone_and_has_the_published_columns(
    environment: str, kind: str, observation: int, qpos: int, buttons: int | None
) -> None:
    options = {"steps": 40, "p_random": 0.1}
    first, second = (collector(environment, kind, **options) for _ in range(2))
    other = first.collect(1)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    rows = first.collect(2)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    again = second.collect(2)
    assert rows["observations"].shape == (41, observation)
    assert rows["qpos"].shape == (41, qpos)
    assert ("button_states" in rows) == (buttons is not None)
    if buttons is not None:
        assert rows["button_states"].shape == (41, buttons)
    assert rows["terminals"].tolist() == [False] * 40 + [True]
    for key, values in rows.items():
        np.testing.assert_array_equal(values, again[key])
    assert not np.array_equal(rows["actions"], other["actions"])
    assert abs(rows["actions"]).max() <= 1


def test_the_position_in_a_maze_is_the_simulator_state_of_the_same_row() -> None:
    walk = collector("pointmaze-medium", "navigate", steps=60).collect(0)
    np.testing.assert_array_equal(walk["observations"], walk["qpos"])


@pytest.mark.slow
def test_the_arm_and_the_cube_are_the_simulator_state_of_the_same_row() -> None:
    rows = collector("cube-single", "play", steps=60).collect(0)
    cube = 10 * (rows["qpos"][:, 14:17] - [0.425, 0, 0])  # OGBench scales positions by 10
    np.testing.assert_allclose(rows["observations"][:, 19:22], cube, atol=1e-4)
    np.testing.assert_allclose(rows["observations"][:, :6], rows["qpos"][:, :6], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["play", "noisy"])
def test_the_cube_is_lifted_and_set_down_elsewhere(kind: str) -> None:
    cube = collector("cube-single", kind, steps=300).collect(3)["qpos"][:, 14:17]
    assert cube[:, 2].max() > 0.1
    resting = cube[abs(cube[:, 2] - 0.02) < 0.005, :2]
    assert np.linalg.norm(resting - resting[0], axis=1).max() > 0.1


@pytest.mark.slow
def test_a_button_of_the_puzzle_toggles_itself_and_its_neighbors() -> None:
    states = collector("puzzle-3x3", "play", steps=400).collect(0)["button_states"]
    grid = states.reshape(-1, 3, 3)
    changes = [np.argwhere(now != last) for last, now in zip(grid, grid[1:], strict=False)]
    presses = [cells for cells in changes if len(cells)]
    crosses = [
        {(i + di, j + dj) for di, dj in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))}
        for i in range(3)
        for j in range(3)
    ]
    inside = [{(i, j) for i, j in cross if 0 <= i < 3 and 0 <= j < 3} for cross in crosses]
    assert len(presses) >= 3
    for cells in presses:
        assert {(int(i), int(j)) for i, j in cells} in inside


def test_stitch_ends_in_the_cell_four_steps_away_and_navigate_goes_on() -> None:
    stitch = collector("pointmaze-medium", "stitch", steps=200, noise=0.5)
    inner = stitch.env.unwrapped
    free = [tuple(map(int, cell)) for cell in np.argwhere(inner.maze_map == 0)]
    for seed in range(5):
        walk = stitch.collect(seed)["observations"]
        start, end = (inner.xy_to_ij(walk[row]) for row in (0, -1))
        assert path_lengths(free, start)[end] == 4
    walk = collector("pointmaze-medium", "navigate", noise=0.5).collect(0)["observations"]
    assert len({inner.xy_to_ij(position) for position in walk}) > 15
    speed = np.linalg.norm(np.diff(walk.astype(np.float64), axis=0), axis=1)
    assert (
        speed.max() < 0.2 * np.sqrt(2) + 1e-3
    )  # an action moves the point by up to 0.2 m per axis

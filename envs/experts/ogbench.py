"""Collectors of OGBench's trajectories: scripted manipulation, and waypoints in point mazes.

The manipulation policies are the oracles of the `ogbench` package (extra `ogbench`). `play` follows
plans with correlated noise. `noisy` acts on the current state, with independent noise. In the point
mazes, `navigate` moves from goal to goal. `stitch` moves to a goal that is four cells away, and
stays there.

Park et al., arXiv:2410.20092. `seohongpark/ogbench:data_gen_scripts` made the published sets. The
random numbers are drawn in the order of these scripts. Only the uniform actions (`p_random`)
differ, because the scripts do not seed their generator.
"""

# ruff: noqa: NPY002 - ogbench draws from NumPy's global generator
from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

Cell = tuple[int, int]  # row and column in a maze
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1))
STITCH_CELLS = 4  # distance of the goal of `stitch`
OBJECTS = {
    "cube": ("cube",),
    "scene": ("cube", "button", "drawer", "window"),
    "puzzle": ("button",),
}
ORACLES = {"play": "plan", "noisy": "markov"}
STACKING = {  # range of the probability of stacking cubes, sampled per episode
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
}
NOISE_SCALE = np.array([1, 1, 1, 3, 10])  # of x, y, z, yaw and gripper, for `noisy`


class Collector(ABC):
    """Collector of trajectories in one environment. A trajectory depends only on its seed.

    environment: name in OGBench without the version, such as cube-single.
    steps: number of transitions of a trajectory, which has steps + 1 rows.
    noise: standard deviation of the action noise. For `noisy` it is a maximum: each trajectory
    samples its standard deviation uniformly from [0, noise], and multiplies it by NOISE_SCALE.
    p_random: probability of a uniform action.
    """

    MODULE: str
    OPTIONS: Mapping[str, Any] = {}
    TYPES: tuple[str, ...]

    def __init__(
        self,
        environment: str,
        kind: str,
        *,
        steps: int = 1000,
        noise: float = 0.1,
        p_random: float = 0.0,
    ) -> None:
        """Create the environment. Raises ValueError if ogbench is missing."""
        self.load_package()
        self.environment, self.kind = environment, kind
        self.steps, self.noise, self.p_random = steps, noise, p_random
        self.env = gymnasium.make(
            f"{environment}-v0",
            terminate_at_goal=False,
            max_episode_steps=steps + 1,
            disable_env_checker=True,
            **self.OPTIONS,
        )
        self.inner: Any = self.env.unwrapped

    @classmethod
    def load_package(cls) -> None:
        """Import the environments. Raises ValueError if ogbench is missing."""
        try:
            importlib.import_module(cls.MODULE)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{cls.MODULE} is missing ({error}). Install this package's extra [ogbench]."
            ) from error

    def collect(self, seed: int) -> dict[str, np.ndarray]:
        """Return the columns of one trajectory, [steps + 1, ...].

        The last row is the final state. Its action was executed, but the next state is not stored.
        """
        state = np.random.get_state()  # ogbench draws from NumPy's global generator
        np.random.seed(seed)
        try:
            rows = self.rows(seed)
        finally:
            np.random.set_state(state)
        return {key: np.array(values) for key, values in rows.items()}

    @abstractmethod
    def rows(self, seed: int) -> dict[str, list[Any]]:
        """Return the columns of one trajectory as lists."""

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def append(
    rows: dict[str, list[Any]],
    observation: np.ndarray,
    action: np.ndarray,
    done: bool,
    info: Mapping[str, Any],
) -> None:
    """Append one row. info: returned by the step that executed the action."""
    rows["observations"].append(observation)
    rows["actions"].append(action)
    rows["terminals"].append(done)
    for key in ("qpos", "qvel", "button_states"):
        if f"prev_{key}" in info:
            rows[key].append(info[f"prev_{key}"])


class Manipulation(Collector):
    """Collector in the cube, scene and puzzle environments."""

    MODULE = "ogbench.manipspace"
    OPTIONS = {"mode": "data_collection"}
    TYPES = ("play", "noisy")

    def __init__(self, environment: str, kind: str, **options: Any) -> None:
        super().__init__(environment, kind, **options)
        family = environment.split("-")[0]
        oracle = ORACLES[kind]
        arguments: dict[str, Any] = {"noise": self.noise, "noise_smoothing": 0.5}
        if kind == "noisy":
            arguments = {"min_norm": 0.4}
        if family == "puzzle":
            arguments["gripper_always_closed"] = True
        self.oracles = {}
        for name in OBJECTS[family]:
            module = importlib.import_module(f"{self.MODULE}.oracles.{oracle}.{name}_{oracle}")
            make = getattr(module, f"{name.title()}{oracle.title()}Oracle")
            self.oracles[name] = make(env=self.env, **arguments)

    def rows(self, seed: int) -> dict[str, list[Any]]:
        self.env.reset(seed=seed)
        # Reset twice: the first reset computes contacts with the previous episode's joint damping.
        observation, info = self.env.reset(seed=seed)
        while True:
            rows = self.episode(observation, info)
            if self.environment != "scene" or is_cube_visible(np.array(rows["qpos"])):
                return rows
            observation, info = self.env.reset()

    def episode(self, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the columns of one episode. When an oracle is done, a new target is sampled."""
        rows: dict[str, list[Any]] = defaultdict(list)
        stacking = STACKING.get(self.environment)
        p_stack = np.random.uniform(*stacking) if stacking else 0.0
        scale = np.random.uniform(0, self.noise) * NOISE_SCALE if self.kind == "noisy" else None
        oracle = self.oracles[info["privileged/target_task"]]
        oracle.reset(observation, info)
        done = False
        while not done:
            if np.random.rand() < self.p_random:
                action = np.random.uniform(-1, 1, 5)
            else:
                action = np.array(oracle.select_action(observation, info))
                if scale is not None:
                    action = action + np.random.normal(0, scale, action.shape)
            action = action.clip(-1, 1)
            following, _, terminated, truncated, info = self.env.step(action)
            done = terminated or truncated
            append(rows, observation, action, done, info)
            if oracle.done:
                state = self.inner.set_new_target(p_stack=p_stack)
                oracle = self.oracles[state[1]["privileged/target_task"]]
                oracle.reset(*state)
            observation = following
        return rows


def is_cube_visible(qpos: np.ndarray) -> bool:
    """True if the scene's cube stays in view, or in the drawer, during an episode.

    A goal image does not show a cube that is elsewhere. qpos: [rows, Q].
    """
    y, z = qpos[:, 15], qpos[:, 16]
    in_drawer = (z >= 0.06) & (z <= 0.08)
    return not ((y >= 0.29) | ((y <= -0.3) & ~in_drawer)).any()


class PointMaze(Collector):
    """Collector in the point mazes: a unit step toward the next cell of a shortest path."""

    MODULE = "ogbench.locomaze"
    TYPES = ("navigate", "stitch")

    def __init__(self, environment: str, kind: str, **options: Any) -> None:
        super().__init__(environment, kind, **options)
        maze = self.inner.maze_map == 0
        self.free: list[Cell] = [(int(i), int(j)) for i, j in np.argwhere(maze)]
        self.goals = [cell for cell in self.free if not is_hallway(maze, cell)]
        self.distances = {cell: path_lengths(self.free, cell) for cell in self.free}

    def rows(self, seed: int) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = defaultdict(list)
        start = choose(self.free)
        goal = choose(self.goals) if self.kind == "navigate" else self.stitch_goal(start)
        options = {"task_info": {"init_ij": start, "goal_ij": goal}}
        observation, _ = self.env.reset(seed=seed, options=options)
        done = False
        while not done:
            action = self.direction(observation, goal)
            action = (action + np.random.normal(0, self.noise, action.shape)).clip(-1, 1)
            following, _, terminated, truncated, info = self.env.step(action)
            done = terminated or truncated
            append(rows, observation, action, done, info)
            if self.kind == "navigate" and info["success"]:
                goal = choose(self.goals)
                self.inner.set_goal(goal_xy=self.inner.add_noise(self.inner.ij_to_xy(goal)))
            observation = following
        return rows

    def stitch_goal(self, start: Cell) -> Cell:
        """Return a random cell at distance STITCH_CELLS, or the start if there is none."""
        cells = [c for c, length in self.distances[start].items() if length == STITCH_CELLS]
        return choose(cells) if cells else start

    def direction(self, position: np.ndarray, goal: Cell) -> np.ndarray:
        """Return the unit vector [2] from a position to the center of the next cell on the path.

        If the position is in the goal cell, it points to the center of this cell.
        """
        lengths, (i, j) = self.distances[goal], self.inner.xy_to_ij(position)
        cells = [(i, j), *((i + di, j + dj) for di, dj in NEIGHBORS)]
        cell = min((c for c in cells if c in lengths), key=lengths.__getitem__)
        offset = np.array(self.inner.ij_to_xy(cell)) - position
        return offset / (np.linalg.norm(offset) + 1e-6)


def choose(cells: list[Cell]) -> Cell:
    """Return a random cell."""
    return cells[np.random.randint(len(cells))]


def is_hallway(maze: np.ndarray, cell: Cell) -> bool:
    """True if the only free neighbors of a cell are those above and below, or left and right.

    maze: True where a cell is free.
    """
    i, j = cell
    column, row = (maze[i - 1, j], maze[i + 1, j]), (maze[i, j - 1], maze[i, j + 1])
    return (all(column) and not any(row)) or (all(row) and not any(column))


def path_lengths(free: list[Cell], start: Cell) -> dict[Cell, int]:
    """Return the number of steps from `start` to all reachable cells, by breadth-first search."""
    lengths, queue, cells = {start: 0}, [start], set(free)
    for i, j in queue:
        for cell in ((i + di, j + dj) for di, dj in NEIGHBORS):
            if cell in cells and cell not in lengths:
                lengths[cell] = lengths[(i, j)] + 1
                queue.append(cell)
    return lengths


def collector_class(environment: str, kind: str) -> type[Collector]:
    """Return the class of an environment's collector.

    Raises ValueError for an unknown environment or type, and if ogbench is missing.
    """
    family = environment.split("-")[0]
    classes: dict[str, type[Collector]] = dict.fromkeys(OBJECTS, Manipulation)
    classes["pointmaze"] = PointMaze
    if family not in classes:
        raise ValueError(f"{environment} has no collector. Use one of {', '.join(classes)}.")
    collector = classes[family]
    if kind not in collector.TYPES:
        types = " or ".join(collector.TYPES)
        raise ValueError(f"{environment} has no trajectories of type {kind!r}. Use {types}.")
    collector.load_package()
    if f"{environment}-v0" not in gymnasium.registry:
        raise ValueError(f"ogbench has no environment {environment}-v0. Correct the set's name.")
    return collector

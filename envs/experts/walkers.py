"""Who walks through mazes: from goal to goal on shortest ways."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from envs.suites.mazes import RADIUS, AntMaze, Maze, cells


class Walk(ABC):
    """From goal to goal: in free cells drawn at random, shortest ways between.

    near: a waypoint is passed so far from it, m; arrived: the last one, the goal.
    """

    near = arrived = 0.1

    def __init__(self, env: Maze, noise: float = 0.5, seed: int = 0) -> None:
        self.env, self.noise, self._rng = env, noise, np.random.default_rng(seed)
        self._free = cells(env.maze, ".RG")
        self._ways: list[list[np.ndarray]] = []
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New walks in `num_envs` environments."""
        self._ways = [[] for _ in range(num_envs)]

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[B, *obs], the environments they come from [B] -> actions [B, A]."""
        places = observations[:, :2].astype(np.float64)
        ways = np.stack([self._waypoint(i, x) - x for i, x in zip(indices, places, strict=True)])
        return self.toward(observations, ways).clip(-1, 1).astype(np.float32)

    @abstractmethod
    def toward(self, observations: np.ndarray, ways: np.ndarray) -> np.ndarray:
        """Actions [B, A] that lead along `ways` [B, 2], m."""

    def _waypoint(self, index: int, place: np.ndarray) -> np.ndarray:
        """The next one of an environment's walk; a new walk where the last one is done."""
        way = self._ways[index]
        if way and np.linalg.norm(place - way[0]) < (self.near if len(way) > 1 else self.arrived):
            way.pop(0)
        while not way:
            goal = self._free[self._rng.integers(len(self._free))]
            through = self.path(self.env.cell(place), goal)[1:]
            way += [np.array(self.env.place(*c)) + self.offset(c == goal) for c in through]
        return way[0]

    @abstractmethod
    def offset(self, last: bool) -> np.ndarray | float:
        """Where a waypoint lies from the middle of its cell, [2] m; last: the goal."""

    def path(self, start: tuple[int, int], goal: tuple[int, int]) -> list[tuple[int, int]]:
        """The cells of a shortest way, both ends included; breadth first from the goal."""
        onward: dict[tuple[int, int], tuple[int, int]] = {goal: goal}
        queue = [goal]
        for i, j in queue:
            for cell in ((i, j - 1), (i, j + 1), (i - 1, j), (i + 1, j)):
                if cell in self._free and cell not in onward:
                    onward[cell] = (i, j)
                    queue.append(cell)
        way = [start]
        while way[-1] != goal:
            way.append(onward[way[-1]])
        return way


class Waypoints(Walk):
    """Through point mazes. Action: 10 (waypoint - position) - velocity, and noise.

    Waypoints lie up to 0.2 m below the middles of the cells. As D4RL's
    pointmaze/waypoint_controller.py, which finds the ways by Q-iteration.
    """

    def offset(self, last: bool) -> np.ndarray | float:
        return 0.0 if last else -0.2 * self._rng.uniform(size=2)

    def toward(self, observations: np.ndarray, ways: np.ndarray) -> np.ndarray:
        return 10 * ways - observations[:, 2:] + self.noise * self._rng.standard_normal(ways.shape)


class AntWalk(Walk):
    """Through ant mazes, by a policy that learned in `AntGoal`; noise is added to its actions.

    policy: observations [B, 29] float32 -> actions [B, 8]. As D4RL's sets were made. Goals lie
    where the tasks' do, up to 1.5 m beyond the middles of their cells.
    """

    near, arrived = 1.0, RADIUS

    def __init__(
        self,
        policy: Callable[[np.ndarray], np.ndarray],
        env: AntMaze,
        noise: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(env, noise, seed)
        self.policy = policy

    def offset(self, last: bool) -> np.ndarray | float:
        return 1.5 * self._rng.uniform(size=2) if last else 0.0

    def toward(self, observations: np.ndarray, ways: np.ndarray) -> np.ndarray:
        seen = np.concatenate([observations[:, 2:], ways], 1).astype(np.float32)
        actions = self.policy(seen)
        return actions + self.noise * self._rng.standard_normal(actions.shape)


EXPERTS = {"waypoints": Waypoints, "ant": AntWalk}  # by their names in recipes

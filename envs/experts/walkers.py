"""Controllers that walk through mazes on shortest paths, from one random goal to the next."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from envs.suites.mazes import RADIUS, AntMaze, Maze, cells


class Walk(ABC):
    """Walk along shortest paths between random free cells.

    near: distance at which a waypoint counts as passed, m.
    arrived: distance at which the last waypoint, the goal, counts as reached, m.
    """

    near = arrived = 0.1

    def __init__(self, env: Maze, noise: float = 0.5, seed: int = 0) -> None:
        self.env, self.noise, self._rng = env, noise, np.random.default_rng(seed)
        self._free = cells(env.maze, ".RG")
        self._paths: list[list[np.ndarray]] = []
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """Start new walks in `num_envs` environments."""
        self._paths = [[] for _ in range(num_envs)]

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, A] for observations [B, *obs] of the environments `indices`."""
        positions = observations[:, :2].astype(np.float64)
        pairs = zip(indices, positions, strict=True)
        offsets = np.stack([self._waypoint(i, x) - x for i, x in pairs])
        return self.toward(observations, offsets).clip(-1, 1).astype(np.float32)

    @abstractmethod
    def toward(self, observations: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return actions [B, A] that move toward waypoints at `offsets` [B, 2] m."""

    def _waypoint(self, index: int, position: np.ndarray) -> np.ndarray:
        """Return the next waypoint of an environment's walk; start a new walk after the last."""
        path = self._paths[index]
        limit = self.near if len(path) > 1 else self.arrived
        if path and np.linalg.norm(position - path[0]) < limit:
            path.pop(0)
        while not path:
            goal = self._free[self._rng.integers(len(self._free))]
            route = self.path(self.env.cell(position), goal)[1:]
            path += [np.array(self.env.center(*c)) + self.offset(c == goal) for c in route]
        return path[0]

    @abstractmethod
    def offset(self, last: bool) -> np.ndarray | float:
        """Return a waypoint's offset from its cell's center, [2] m.

        last: the waypoint is the goal.
        """

    def path(self, start: tuple[int, int], goal: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the cells of a shortest path, both ends included.

        The path is found by breadth-first search from the goal.
        """
        onward: dict[tuple[int, int], tuple[int, int]] = {goal: goal}
        queue = [goal]
        for i, j in queue:
            for cell in ((i, j - 1), (i, j + 1), (i - 1, j), (i + 1, j)):
                if cell in self._free and cell not in onward:
                    onward[cell] = (i, j)
                    queue.append(cell)
        path = [start]
        while path[-1] != goal:
            path.append(onward[path[-1]])
        return path


class Waypoints(Walk):
    """Walk through point mazes. Action: 10 (waypoint - position) - velocity, plus noise.

    Waypoints lie up to 0.2 m below the cells' centers in both coordinates. The controller follows
    D4RL's pointmaze/waypoint_controller.py, which finds the paths by Q-iteration.
    """

    def offset(self, last: bool) -> np.ndarray | float:
        return 0.0 if last else -0.2 * self._rng.uniform(size=2)

    def toward(self, observations: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        noise = self.noise * self._rng.standard_normal(offsets.shape)
        return 10 * offsets - observations[:, 2:] + noise


class AntWalk(Walk):
    """Walk through ant mazes with a policy trained in `AntGoal`, plus noise on its actions.

    D4RL's data sets were made this way. As in the tasks, goals lie up to 1.5 m beyond the centers
    of their cells.
    policy: observations [B, 29] float32 -> actions [B, 8].
    """

    learned = True  # the first argument is a policy, which a recipe's agent learns
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

    def toward(self, observations: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        inputs = np.concatenate([observations[:, 2:], offsets], 1).astype(np.float32)
        actions = self.policy(inputs)
        return actions + self.noise * self._rng.standard_normal(actions.shape)


EXPERTS = {"waypoints": Waypoints, "ant": AntWalk}  # keys: names in recipes

"""Scripted expert that picks and places OGBench's cube."""

import numpy as np

from envs.experts.skilled import Skilled
from envs.vector import VectorEnv


class CubeExpert(Skilled):
    """P control of the gripper in cube-single's default task, from the observation only.

    The order of moves is that of OGBench's own expert
    (seohongpark/ogbench:ogbench/manipspace/oracles/markov).
    skill: in [0, 1]. Below 1, the goal is off by up to 0.15 (1 - skill) m for the complete episode,
    and every action has noise with standard deviation (1 - skill) / 2.
    """

    GOAL, CENTER, HEIGHT = np.array([0.5, 0, 0.02]), np.array([0.425, 0, 0]), 0.18  # meters
    OPEN, CLOSED = -1.0, 1.0

    def __init__(self, env: VectorEnv, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """Start new episodes in `num_envs` environments."""
        angle = self._rng.uniform(-np.pi, np.pi, num_envs)
        direction = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
        distance = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, (num_envs, 1))
        self._goals = self.GOAL + distance * direction

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, 5] for observations [B, 28] of the environments `indices`."""
        pairs = zip(observations.astype(np.float64), self._goals[indices], strict=True)
        return self.add_noise(np.stack([self.act(o, goal) for o, goal in pairs]))

    def act(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Return the action.

        Moves, in order: above the cube, down, close, up, above the goal, down, open, up.
        """
        grip, cube = o[12:15] / 10 + self.CENTER, o[19:22] / 10 + self.CENTER
        quarter = np.pi / 2  # the cube is symmetric under a quarter turn
        turn = np.arctan2(o[27], o[26]) - np.arctan2(o[16], o[15])
        turn = (turn + quarter / 2) % quarter - quarter / 2
        to_cube, to_goal = cube - grip, goal - cube
        above = np.array([0, 0, self.HEIGHT])
        if np.linalg.norm(to_goal) < 0.02:
            target, opening = grip + above, self.OPEN
        elif np.linalg.norm(to_cube[:2]) > 0.03:
            target, opening = cube + above, self.OPEN
        elif np.linalg.norm(to_cube) > 0.02:
            target, opening = cube, self.OPEN
        elif o[18] < 0.5:  # no contact of the fingers yet
            target, opening = cube, self.CLOSED
        elif np.linalg.norm(to_goal[:2]) < 0.02:
            target, opening = goal, self.CLOSED
        elif grip[2] < self.HEIGHT - 0.04:
            target, opening = grip + above, self.CLOSED
        else:
            target, opening = goal + above, self.CLOSED
        move = 12 * (target - grip)
        return np.array([*move, 3 * turn, opening]).clip(-1, 1)


EXPERTS = {"cube": CubeExpert}  # keys: names in recipes

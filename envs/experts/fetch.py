"""Who moves the Fetch arm."""

import numpy as np

from envs.experts.skilled import Skilled
from envs.suites.gymnasium_robotics import Fetch


class FetchExpert(Skilled):
    """P control of the gripper; what to do next is read off the observation alone.

    skill: in [0, 1]; below 1 it takes the goal to be up to 0.15 (1 - skill) m elsewhere, a whole
    episode long, and every action has noise of deviation (1 - skill) / 2.
    """

    OPEN, CLOSED = 1.0, -1.0

    def __init__(self, env: Fetch, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.name = env.name
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New episodes in `num_envs` environments."""
        way = self._rng.standard_normal((num_envs, 3)) * [1, 1, self.name == "reach"]
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        self._astray = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, (num_envs, 1)) * way

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[B, obs] -> actions [B, 4]; indices: of the environments they come from."""
        goals = observations[:, -3:].astype(np.float64) + self._astray[indices]
        act = {"reach": self.reach, "push": self.push, "pick-and-place": self.pick}[self.name]
        pairs = zip(observations.astype(np.float64), goals, strict=True)
        actions = np.stack([act(o, goal) for o, goal in pairs])
        return self.noisy(actions)

    def reach(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Straight to the goal."""
        return toward(o[:3], goal, self.CLOSED)

    def pick(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Above the object, down, close, and to the goal once it is held."""
        grip, thing, width = o[:3], o[3:6], o[9] + o[10]
        apart = thing - grip
        if np.linalg.norm(apart) < 0.02:
            held = width < 0.055
            return toward(grip, goal if held else thing, self.CLOSED)
        above = np.linalg.norm(apart[:2]) < 0.012
        return toward(grip, thing if above else thing + np.array([0, 0, 0.06]), self.OPEN)

    def push(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Over to the far side of the object, down, and through it toward the goal."""
        grip, thing = o[:3], o[3:6]
        way = goal[:2] - thing[:2]
        far = float(np.linalg.norm(way))
        if far < 0.02:
            return np.zeros(4)
        way = way / far
        offset = grip[:2] - thing[:2]
        behind, beside = -offset @ way, offset @ np.array([-way[1], way[0]])
        low = grip[2] - thing[2] < 0.03
        if low and behind > 0.02 and abs(beside) < 0.025:
            sideways = 8 * beside * np.array([way[1], -way[0]])
            move = way * np.clip(10 * far, 0.15, 1) + sideways
            return np.array([*move, 10 * (thing[2] - grip[2]), self.CLOSED])
        place = np.array([*(thing[:2] - 0.09 * way), thing[2]])
        if low or np.linalg.norm(grip[:2] - place[:2]) > 0.012:
            place[2] += 0.08
            if low:
                place[:2] = grip[:2]
        return toward(grip, place, self.CLOSED)


def toward(grip: np.ndarray, place: np.ndarray, opening: float) -> np.ndarray:
    """A move of the gripper to a place, [4]."""
    return np.array([*(12 * (place - grip)), opening])


EXPERTS = {"fetch": FetchExpert}  # by their names in recipes

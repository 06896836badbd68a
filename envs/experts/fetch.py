"""Scripted expert for the Fetch arm."""

import numpy as np

from envs.experts.skilled import Skilled
from envs.suites.gymnasium_robotics import Fetch


class FetchExpert(Skilled):
    """P controller of the gripper. It chooses each move from the observation only.

    skill: in [0, 1]. Below 1, the goal is off by up to 0.15 (1 - skill) m for the complete episode,
    and every action has noise with standard deviation (1 - skill) / 2.
    """

    OPEN, CLOSED = 1.0, -1.0

    def __init__(self, env: Fetch, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.name = env.name
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """Start new episodes in `num_envs` environments."""
        direction = self._rng.standard_normal((num_envs, 3)) * [1, 1, self.name == "reach"]
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        distance = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, (num_envs, 1))
        self._offset = distance * direction

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, 4] for observations [B, O] of the environments `indices`."""
        goals = observations[:, -3:].astype(np.float64) + self._offset[indices]
        act = {"reach": self.reach, "push": self.push, "pick-and-place": self.pick}[self.name]
        pairs = zip(observations.astype(np.float64), goals, strict=True)
        actions = np.stack([act(o, goal) for o, goal in pairs])
        return self.add_noise(actions)

    def reach(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Move straight to the goal."""
        return toward(o[:3], goal, self.CLOSED)

    def pick(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Move above the object, go down, close, and move to the goal with the grasped object."""
        grip, item, width = o[:3], o[3:6], o[9] + o[10]
        to_item = item - grip
        if np.linalg.norm(to_item) < 0.02:
            grasped = width < 0.055
            return toward(grip, goal if grasped else item, self.CLOSED)
        above = np.linalg.norm(to_item[:2]) < 0.012
        return toward(grip, item if above else item + np.array([0, 0, 0.06]), self.OPEN)

    def push(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Move above the far side of the object, go down, and push the object toward the goal."""
        grip, item = o[:3], o[3:6]
        direction = goal[:2] - item[:2]
        distance = float(np.linalg.norm(direction))
        if distance < 0.02:
            return np.zeros(4)
        direction = direction / distance
        offset = grip[:2] - item[:2]
        behind = -offset @ direction
        aside = offset @ np.array([-direction[1], direction[0]])
        low = grip[2] - item[2] < 0.03
        if low and behind > 0.02 and abs(aside) < 0.025:
            sideways = 8 * aside * np.array([direction[1], -direction[0]])
            move = direction * np.clip(10 * distance, 0.15, 1) + sideways
            return np.array([*move, 10 * (item[2] - grip[2]), self.CLOSED])
        target = np.array([*(item[:2] - 0.09 * direction), item[2]])
        if low or np.linalg.norm(grip[:2] - target[:2]) > 0.012:
            target[2] += 0.08
            if low:
                target[:2] = grip[:2]
        return toward(grip, target, self.CLOSED)


def toward(grip: np.ndarray, target: np.ndarray, opening: float) -> np.ndarray:
    """Return the action [4] that moves the gripper toward a target position."""
    return np.array([*(12 * (target - grip)), opening])


EXPERTS = {"fetch": FetchExpert}  # keys: names in recipes

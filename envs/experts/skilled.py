"""What scripted experts share: how good they are."""

import numpy as np


class Skilled:
    """skill: in [0, 1]; below 1 actions are `noisy`.

    Raises ValueError where it is out of range.
    """

    def __init__(self, skill: float, seed: int) -> None:
        if not 0 <= skill <= 1:
            raise ValueError(f"skill={skill} is not between 0 and 1")
        self.skill = skill
        self._rng = np.random.default_rng(seed)

    def noisy(self, actions: np.ndarray, part: float = 2) -> np.ndarray:
        """The actions that are taken, in [-1, 1], float32; deviation (1 - skill) / part."""
        noise = (1 - self.skill) / part * self._rng.standard_normal(actions.shape)
        return (actions + noise).clip(-1, 1).astype(np.float32)

    def astray(self, num_envs: int, furthest_m: float) -> np.ndarray:
        """By how much goals are mistaken for an episode, at most (1 - skill) of that; [B, 2] m."""
        angle = self._rng.uniform(0, 2 * np.pi, num_envs)
        far = furthest_m * (1 - self.skill) * self._rng.uniform(0, 1, num_envs)
        return far[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

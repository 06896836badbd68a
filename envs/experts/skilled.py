"""Base class of scripted experts with an adjustable skill."""

import numpy as np


class Skilled:
    """Expert with a skill in [0, 1]. Below 1, actions are noisy and goals are shifted.

    Raises ValueError if the skill is out of range.
    """

    def __init__(self, skill: float, seed: int) -> None:
        if not 0 <= skill <= 1:
            raise ValueError(f"skill={skill} is out of range. Use a value between 0 and 1")
        self.skill = skill
        self._rng = np.random.default_rng(seed)

    def add_noise(self, actions: np.ndarray, divisor: float = 2) -> np.ndarray:
        """Return the actions, float32, with noise of standard deviation (1 - skill) / divisor.

        The result is clipped to [-1, 1].
        """
        noise = (1 - self.skill) / divisor * self._rng.standard_normal(actions.shape)
        return (actions + noise).clip(-1, 1).astype(np.float32)

    def goal_offset(self, num_envs: int, limit_m: float) -> np.ndarray:
        """Return random goal errors [B, 2] m for an episode, at most (1 - skill) limit_m long."""
        angle = self._rng.uniform(0, 2 * np.pi, num_envs)
        distance = limit_m * (1 - self.skill) * self._rng.uniform(0, 1, num_envs)
        return distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

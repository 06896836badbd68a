"""What scripted experts share: how good they are."""

import numpy as np


class Skilled:
    """skill: in [0, 1]; below 1 every action has noise of deviation (1 - skill) / 2.

    Raises ValueError where it is out of range.
    """

    def __init__(self, skill: float, seed: int) -> None:
        if not 0 <= skill <= 1:
            raise ValueError(f"skill={skill} is not between 0 and 1")
        self.skill = skill
        self._rng = np.random.default_rng(seed)

    def noisy(self, actions: np.ndarray) -> np.ndarray:
        """The actions that are taken, in [-1, 1], float32."""
        noise = (1 - self.skill) / 2 * self._rng.standard_normal(actions.shape)
        return (actions + noise).clip(-1, 1).astype(np.float32)

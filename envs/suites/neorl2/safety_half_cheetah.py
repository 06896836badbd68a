"""NeoRL-2's SafetyHalfCheetah: `polixir/NeoRL2:neorl2/envs/safetyhalfcheetah.py`, arXiv:2503.19267.

A seed gives the same start as upstream's `reset(seed)`.
"""

import numpy as np

from envs.suites.locomotion import HalfCheetah
from envs.vector import Step


class SafetyHalfCheetah(HalfCheetah):
    """Gymnasium's half-cheetah with x in the observation [18] and a speed limit.

    A step above the limit has reward -100 and info `cost` 1. The episode continues.
    """

    hidden_positions = 0
    SPEED_LIMIT = 3.2096  # m/s

    def reward(self, speed: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.where(speed > self.SPEED_LIMIT, -100.0, super().reward(speed, actions))

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        step = super()._step(actions, indices)
        step.infos["cost"] = (step.infos["x_velocity"] > self.SPEED_LIMIT).astype(np.float64)
        return step


ENVS = {"neorl2/SafetyHalfCheetah": SafetyHalfCheetah}

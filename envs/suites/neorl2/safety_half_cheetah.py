"""NeoRL-2's SafetyHalfCheetah: `polixir/NeoRL2:neorl2/envs/safetyhalfcheetah.py`, arXiv:2503.19267.

A seed gives the same start as upstream's `reset(seed)`.
"""

from typing import Any

import numpy as np

from envs.outcomes import Outcomes, library, never
from envs.suites.locomotion import HalfCheetah, control_penalty

SPEED_LIMIT = 3.2096  # m/s
TOO_FAST = -100.0  # reward above the limit
DT_S = 0.05  # s per step; five simulation steps


class SafetyHalfCheetah(HalfCheetah):
    """Gymnasium's half-cheetah with x in the observation [18] and a speed limit.

    A step above the limit has reward -100 and info `cost` 1. The episode continues.
    """

    hidden_positions = 0
    speed_limit = SPEED_LIMIT

    def reward(self, speed: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return limited_reward(speed, actions)


def limited_reward(speed: Any, actions: Any) -> Any:
    """Return speed minus control cost, or -100 above the speed limit."""
    reward = speed - control_penalty(actions, HalfCheetah.control_cost)
    return library(speed).where(speed > SPEED_LIMIT, TOO_FAST, reward)


def speed(s: Any, a: Any, s2: Any) -> Any:
    """Return the speed along x in the transition, m/s."""
    return (s2[..., 0] - s[..., 0]) / DT_S


def is_too_fast(s: Any, a: Any, s2: Any) -> Any:
    """True above the speed limit, where NeoRL-2's function ends model rollouts."""
    return speed(s, a, s2) > SPEED_LIMIT


def cost(s: Any, a: Any, r: Any, s2: Any) -> Any:
    """Return 1 above the speed limit, where the reward is -100, else 0."""
    return 1.0 * (r == TOO_FAST)


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward of transitions."""
    return limited_reward(speed(s, a, s2), a)


ENVS = {"neorl2/SafetyHalfCheetah": SafetyHalfCheetah}
OUTCOMES = {"neorl2/SafetyHalfCheetah": Outcomes({"task": never, "published": is_too_fast}, reward)}
COSTS = {"neorl2/SafetyHalfCheetah": cost}

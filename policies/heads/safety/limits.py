"""Limit of a critic of discounted costs, for numbers, numpy arrays and torch tensors."""

from __future__ import annotations

from typing import Any


def discounted_limit(target_cost: Any, episode_steps: Any, discount: Any) -> Any:
    """Return the discounted cost of an episode that spends `target_cost` at a constant rate.

    It is the limit for a critic of discounted costs: (L/T) (1 - gamma^T) / (1 - gamma), with the
    limit L and T steps. With the remaining budget and the remaining steps, it is the limit from the
    current step on. `discount` is less than 1; `episode_steps` is at least 1.
    """
    return target_cost / episode_steps * (1 - discount**episode_steps) / (1 - discount)

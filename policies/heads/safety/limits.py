"""Limit of a discounted cost critic, for numpy arrays and torch tensors."""

from __future__ import annotations

from typing import Any


def remaining_limit(target_cost: float, spent: Any, steps_left: Any, discount: float) -> Any:
    """Return the discounted cost of spending the remaining budget at a constant rate, [B].

    It is max(L - spent, 0) / n (1 - gamma^n) / (1 - gamma), with the limit L on the undiscounted
    cost of an episode and n remaining steps.
    spent: [B], cost of the episode so far.  steps_left: [B], at least 1.  discount: below 1.
    """
    rate = (target_cost - spent).clip(0) / steps_left
    return rate * (1 - discount**steps_left) / (1 - discount)

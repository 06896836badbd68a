"""Cost limits: the options of constrained methods, and the limit of a discounted cost critic."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from offline_rl.algorithms.common.config import BUILT, BaseConfig, Discount
from offline_rl.utils.options import Count, NonNegative, frozen

Limit = Annotated[NonNegative | None, BUILT]
Steps = Annotated[Count | None, BUILT]


@frozen
class LimitConfig(BaseConfig):
    """Option of methods with a cost limit. A run takes a null value from its task."""

    target_cost: Limit = None  # limit on the undiscounted cost of an episode; null: the task's

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"target_cost": 5.0}


@frozen
class CostConfig(LimitConfig):
    """Options of methods with a cost critic. A run takes null values from its task."""

    episode_steps: Steps = None  # steps that the limit is for; null: the task's time limit
    cost_discount: Discount = 0.99  # discount factor of the cost critics

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"episode_steps": 30}


def discounted_limit(
    target_cost: float | Tensor, episode_steps: int | Tensor, discount: float | Tensor
) -> float | Tensor:
    """Return the discounted cost of an episode that spends `target_cost` at a constant rate.

    It is the limit for a critic of discounted costs: (L/T) (1 - gamma^T) / (1 - gamma), with the
    limit L and T steps. With the remaining budget and the remaining steps, it is the limit from the
    current step on. `discount` is less than 1; `episode_steps` is at least 1.
    """
    return target_cost / episode_steps * (1 - discount**episode_steps) / (1 - discount)

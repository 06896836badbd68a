"""Cost limits: the options of constrained methods, and the limit of a discounted cost critic."""

from __future__ import annotations

from typing import Annotated, Any

from offline_rl.algorithms.common.config import BUILT, BaseConfig, Discount
from offline_rl.algorithms.common.safety.guardian import GuardianConfig
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.safety.limits import discounted_limit as discounted_limit

Limit = Annotated[NonNegative | None, BUILT]
Steps = Annotated[Count | None, BUILT]


@frozen
class LimitConfig(BaseConfig):
    """Option of methods with a cost limit. A run replaces null by the value of its task."""

    target_cost: Limit = None  # limit on the undiscounted cost of an episode; null: the task's

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"target_cost": 5.0}


@frozen
class CostConfig(LimitConfig, GuardianConfig):
    """Options of methods with a cost critic. A run replaces null by the value of its task."""

    episode_steps: Steps = None  # steps of an episode; null: the task's time limit
    cost_discount: Discount = 0.99  # discount factor of the cost critics

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"episode_steps": 30}

"""Cost critics: combination of their ensemble, bootstrap target, and the rules of released code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from offline_rl.algorithms.common.config import Switch
from offline_rl.algorithms.common.safety.costs import CostConfig, discounted_limit
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import frozen


@frozen
class CostCriticConfig(CostConfig):
    """Options of methods with an ensemble of cost critics."""

    as_released: Switch = False  # cost rules of the released code (see `Differs`), to compare with


def highest_cost(cfg: Any, q: Tensor) -> Tensor:
    """Return the highest cost of an ensemble [E, ...] -> [...]; `as_released`: the lowest."""
    return q.amin(0) if cfg.as_released else q.amax(0)


def cost_limit(cfg: Any) -> Any:
    """Return the limit on discounted costs."""
    return discounted_limit(cfg.target_cost, cfg.episode_steps, cfg.cost_discount)


def bootstrap_costs(
    cfg: Any, batch: Batch, following: Tensor, *, ignore_ends: bool = False
) -> Tensor:
    """Return c + gamma_c * following, [B], without the second term where the episode terminated.

    following: [B], cost values of the next states.  ignore_ends: add the second term everywhere.
    """
    assert batch.costs is not None  # the run refuses data without costs
    mask = 1.0 if ignore_ends else batch.bootstrap_mask
    return batch.costs + cfg.cost_discount * mask * following

"""Safe behavior cloning (BC-Safe): imitation of the episodes that are within the cost limit.

The policy is that of `bc`. `episodes_kept` chooses whole episodes of the data by their undiscounted
costs C and returns R. It is the baseline of constrained offline RL: it needs no critic, and its
cost is that of the episodes that it imitates.

Paper:   Liu et al., DSRL, 2023, arXiv:2306.09303, baselines BC-Safe, BC-Risky, BC-Boundary and
         BC-Frontier. Settings and rules: liuzuxin/OSRL (osrl/common/dataset.py).
Differs: liuzuxin/OSRL fits the frontier with more coefficients than points if it has only one or
         two. The degree here is lower than the number of points.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from offline_rl.algorithms import bc
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.safety.augmentation import pareto_optimal
from offline_rl.algorithms.common.safety.costs import LimitConfig
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import Normalize
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, frozen

FIT = 0.9  # lowest R^2 at which the frontier's degree is not increased
WIDTH = 0.2  # distance of episodes from the frontier that are kept: share of the range of returns


@frozen
class Config(LimitConfig, bc.Config):
    """Defaults: liuzuxin/OSRL's for all tasks."""

    # C: cost and R: return of an episode, L: target_cost.
    episodes_kept: Annotated[Literal["all", "safe", "risky", "boundary", "frontier"], BUILT] = (
        "safe"  # safe: C <= L; risky: C >= 2L; boundary: L/2 < C <= 3L/2; frontier: best R for C
    )
    batch_size: Count = 512  # transitions per update; `batch_size=` sets it too
    lr: Rate = 1e-3  # learning rate
    normalize_observations: Normalize = False

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"target_cost": 10.0}


class BCSafe(bc.BC):
    Config: type = Config

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return cfg.episodes_kept == "frontier" or super().uses_rewards(cfg)

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Keep the episodes that `episodes_kept` names. Raises UserError if there are none."""
        kept, limit = self.cfg.episodes_kept, self.cfg.target_cost
        costs, returns = dataset.episode_costs(), dataset.episode_returns()
        mask = {
            "all": np.ones(len(costs), bool),
            "safe": costs <= limit,
            "risky": costs >= 2 * limit,
            "boundary": (costs > 0.5 * limit) & (costs <= 1.5 * limit),
            "frontier": near_frontier(costs, returns),
        }[kept]
        if not mask.any():
            raise UserError(
                f"episodes_kept={kept} with target_cost={limit:g} keeps no episode of "
                f"{dataset.path or dataset.name}, whose episodes cost {costs.min():g} to "
                f"{costs.max():g}. Change target_cost or algorithm.episodes_kept."
            )
        return super().prepare(dataset.select(np.flatnonzero(mask)))


def near_frontier(costs: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Return a mask of the episodes whose return is close to the frontier at their cost, [E].

    The frontier is a polynomial of the cost, fitted to the episodes that no other episode
    surpasses in return without a higher cost. costs, returns: [E].
    """
    best = pareto_optimal(costs, returns)
    c, r = costs[best], returns[best]
    frontier = np.poly1d([r.mean()])
    for degree in range(1, min(3, len(np.unique(c)))):
        if np.square(r - frontier(c)).sum() <= (1 - FIT) * np.square(r - r.mean()).sum():
            break
        frontier = np.poly1d(np.polyfit(c, r, degree))
    return np.abs(returns - frontier(costs)) <= WIDTH * np.ptp(returns)

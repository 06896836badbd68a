"""Guardians in training: penalties for states and actions out of the distribution of the data.

`policies.runtimes.guardian` computes the scores. Here, they change data and model rollouts:

    data      each row out of distribution has `ood_penalty` more cost; if the method reads no
              costs, `ood_penalty` less reward
    rollouts  a predicted transition out of distribution ends its episode, with `ood_penalty` less
              reward
"""

from __future__ import annotations

from dataclasses import replace
from math import log, pi, sqrt
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from offline_rl.algorithms.common.config import BUILT, BaseConfig
from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative, Range, frozen
from policies.runtimes.guardian import Guardian, Kind, fit

OPTIONS = ("guardian_rows", "guardian_quantile", "ood_penalty")
Quantile = Annotated[float, Range(above=0, below=1), BUILT]


@frozen
class GuardianConfig(BaseConfig):
    """Options of methods that can be guarded. Default quantile: OGSRL's (arXiv:2505.16242)."""

    guardian: Annotated[Literal["none", "kde", "neighbor"], BUILT] = (
        "none"  # score of state and action. kde: kernel density; neighbor: distance to the 5th row
    )
    guardian_rows: Annotated[Count, BUILT] = 2_000  # random rows of the data that it compares with
    guardian_quantile: Quantile = 0.05  # share of the data's rows that are out of distribution
    ood_penalty: Annotated[NonNegative, BUILT] = (
        1.0  # added to the cost of a step out of distribution; without costs: less reward
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guardian == "none":
            self.refuse_unread("guardian", *OPTIONS)


def fit_guardian(dataset: Dataset, kind: Kind, rows: int, quantile: float) -> Guardian:
    """Return the guardian of a data set. Raises UserError if it has channels or too few rows."""
    name = dataset.path or dataset.name
    if not isinstance(dataset.observations, np.ndarray) or dataset.observations.ndim != 2:
        raise UserError(
            f"{name}: a guardian compares observations of one vector, and these have channels or "
            "images. Use guardian=none."
        )
    count = dataset.num_rows
    try:
        return fit(
            dataset.observations[:count], dataset.actions, kind, rows=rows, quantile=quantile
        )
    except ValueError as error:
        raise UserError(f"{name}: {error}. Use more data or guardian=none.") from None


def guarded(dataset: Dataset, cfg: Any, *, has_costs: bool) -> Dataset:
    """Return the data with the penalty of the rows that are out of distribution.

    cfg: a config; without a guardian, the data is unchanged. has_costs: add the penalty to the
    costs; otherwise subtract it from the rewards. Raises UserError.
    """
    if getattr(cfg, "guardian", "none") == "none":
        return dataset
    guardian = fit_guardian(dataset, cfg.guardian, cfg.guardian_rows, cfg.guardian_quantile)
    observations = dataset.observations[: dataset.num_rows]
    inside, _ = guardian.in_distribution(observations, dataset.actions)
    penalty = np.where(inside, 0, cfg.ood_penalty).astype(np.float32)
    note = f"{(~inside).mean():.1%} of the rows are out of distribution (guardian={cfg.guardian})"
    dataset = replace(dataset, notes=(*dataset.notes, note))
    if has_costs:
        costs = dataset.extras["costs"] + penalty
        return replace(dataset, extras={**dataset.extras, "costs": costs})
    return replace(dataset, rewards=dataset.rewards - penalty)


def is_outside(guardian: Guardian, observations: Tensor, actions: Tensor) -> Tensor:
    """Return a mask of the pairs that are out of distribution, [B].

    observations: raw, [B, O].  actions: [B, A].
    """
    return score(guardian, observations, actions) < guardian.threshold


def score(guardian: Guardian, observations: Tensor, actions: Tensor) -> Tensor:
    """Return `Guardian.score` of tensors: [B, O], [B, A] -> [B]. It can be traced."""

    def constant(array: np.ndarray) -> Tensor:
        return torch.tensor(array.tolist(), dtype=actions.dtype, device=actions.device)

    center, width = constant(guardian.center), constant(guardian.width)
    x, points = torch.cat([(observations - center) / width, actions], -1), constant(guardian.points)
    squared = x.square().sum(-1, keepdim=True) - 2 * x @ points.T + points.square().sum(-1)
    squared = squared.clamp(min=0)  # [B, N]
    if guardian.kind == "neighbor":
        return -squared.topk(guardian.neighbor, largest=False).values.amax(-1).sqrt()
    total = (-squared / (2 * guardian.bandwidth**2)).logsumexp(-1)
    return total - log(len(guardian.points)) - log(guardian.bandwidth * sqrt(2 * pi))

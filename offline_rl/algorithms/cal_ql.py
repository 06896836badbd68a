"""Calibrated Q-learning (Cal-QL): CQL that does not push Q below the return observed in the data.

CQL lowers the values of its policy's actions without limit, so that fine-tuning must first undo
this. Cal-QL does not lower a value below the Monte-Carlo return of the data. Values then have
the scale of true returns when online training starts. Online, half of each batch is offline data,
and an episode enters the buffer when it has ended, with its returns.

Paper:   Nakamoto, Zhai, Singh, Mark, Ma, Finn, Kumar, Levine, NeurIPS 2023, arXiv:2303.05479.
Differs: from the authors' code (nakamotoo/Cal-QL:JaxCQL). All losses share one set of sampled
         actions; in the authors' code each loss samples its own. The return of a truncated episode
         includes the reward of the last row, if the file contains that row. Updates run between the
         steps of an episode. The authors' code runs the same number of updates after the episode,
         so one policy acts in the complete episode. With `tail=failures`, the return of a
         *terminated* episode has no tail, even if all rewards are `failure_reward`. A truncated
         episode whose last reward is `failure_reward` counts as receiving that reward forever, even
         if it succeeded earlier. Such episodes cannot occur in the authors' code, where episodes of
         the binary Adroit tasks end at their last success. Here, success does not end them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offline_rl.algorithms import cql
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.config import Rate, Sizes
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import ActionClip, Transform
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Number, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init

Tail = Literal["zero", "failures", "last_reward"]


@frozen
class Config(cql.Config):
    """Defaults: nakamotoo/Cal-QL:JaxCQL/conservative_sac_main.py."""

    tail: Tail = "zero"  # rewards assumed after a truncation: none, failure_reward, or the last one
    failure_reward: Number | None = None  # for tail=failures; null: the lowest reward in the data
    weight: NonNegative = 5.0
    max_target_backup: bool = True
    policy_lr: Rate = 1e-4
    policy_hidden: Sizes = (256, 256)
    critic_hidden: Sizes = (256, 256)
    normalize_observations: bool = False
    clip_actions: ActionClip = 0.99999

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failure_reward is not None and self.tail != "failures":
            raise ValueError(
                f"failure_reward is not used with tail={self.tail}. Remove it, or set "
                "tail=failures."
            )


class CalQL(cql.CQL):
    Config: type = Config
    Online: type = schedule.HalfAndHalf
    extra_columns: ClassVar = ("mc_returns",)

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `failure_reward`, if it is null, to the lowest reward in the offline data.

        Online returns use the same value, because an online episode may not contain this reward.
        """
        cfg = self.cfg
        if cfg.tail != "failures" or cfg.failure_reward is not None:
            return dataset, cfg
        transform = Transform.fit(replace(cfg, normalize_observations=False), dataset, ())
        lowest = float(transform.apply_to_rewards(dataset.rewards).min())
        return dataset, replace(cfg, failure_reward=lowest)

    def mc_returns(self, dataset: Dataset) -> np.ndarray:
        """Return the discounted return from each row on, G [N], of the rewards used for training.

        `tail` sets the rewards that are assumed after the last row of a truncated episode.
        zero: no rewards. G is then a lower bound only if rewards are not negative.
        failures: `failure_reward` forever, if the last reward is `failure_reward`; else no rewards.
        This is for sparse rewards. Otherwise a failed episode would look better the earlier it was
        truncated. If all rewards of a truncated episode are r = `failure_reward`, G is
        r / (1 - discount) in all rows.
        last_reward: the last reward forever. This is for rewards that stay once earned (kitchen).
        """
        cfg = self.cfg
        last = dataset.rewards[dataset.episode_ends].astype(np.float64)  # [episodes]
        forever = last / (1 - cfg.discount)
        if cfg.tail == "failures":
            failure = dataset.rewards.min() if cfg.failure_reward is None else cfg.failure_reward
            forever = np.where(last == failure, forever, 0.0)
        tail = None if cfg.tail == "zero" else forever
        return dataset.monte_carlo_returns(cfg.discount, tail)

    def networks(self) -> dict[str, nn.Module]:
        head = {"affine": (1.0, -1.0), "layer_norm": self.cfg.layer_norm}
        init = orthogonal_init(last_gain=1e-2)
        policy = self.build(TanhGaussianActor, self.cfg.policy_hidden, init=init, **head)
        return super().networks() | {"policy": policy}  # in this order: CQL's policy is discarded

    def penalized_values(self, q: Tensor, batch: Batch) -> Tensor:
        """Return Q, [E, M + 1, B], raised to at least G(s) for the policy's actions.

        Values of uniform actions and of the data's action are unchanged, as in CQL. The gradient is
        0 where G is larger than Q.
        """
        count = 0 if self.cfg.variant == "rho" else self.cfg.num_samples
        uniform, policy, data = q.split([count, q.shape[1] - 1 - count, 1], 1)
        return torch.cat([uniform, policy.maximum(batch.mc_returns), data], 1)

    def with_values(self, values: Mapping[str, Tensor]) -> Algorithm:
        """Raise ValueError for per-seed discounts: all seeds share one set of returns."""
        if "discount" in values:
            raise ValueError(
                "discount cannot differ between stacked seeds: cal_ql computes mc_returns once. "
                "Use one value."
            )
        return super().with_values(values)

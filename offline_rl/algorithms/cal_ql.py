"""Calibrated Q-learning (Cal-QL): CQL that does not unlearn what the data is known to earn.

CQL pushes the values of its policy's actions down without end, so that fine-tuning begins with an
unlearning. Cal-QL stops at the return that followed in the data: a value already below it is left
alone, and is on the scale of true returns when learning continues in an environment. There half of
each batch is data, and an episode is learned from when it has ended, with its returns.

Paper:   Nakamoto, Zhai, Singh, Mark, Ma, Finn, Kumar, Levine, NeurIPS 2023, arXiv:2303.05479.
Differs: from the authors' code (nakamotoo/Cal-QL:JaxCQL) in that all losses share one set of
         samples (there each draws its own), that the last row of an episode that was cut counts in
         its return where the file has it, that updates come beside an episode's steps, there as
         many after its end, so that one policy took them all; and with `tail=failures` in that an
         episode which only failed and then *terminated* keeps its plain return, and one cut while
         failing fails for ever after, whatever it had reached before. There such cannot be: the
         binary hands' episodes end with their last success, here success does not end them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offline_rl.algorithms import cql
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.config import Rate, Sizes
from offline_rl.data.transform import ActionClip, Transform
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Number
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


@dataclass(frozen=True)
class Config(cql.Config):
    """Defaults: nakamotoo/Cal-QL:JaxCQL/conservative_sac_main.py."""

    tail: Literal["zero", "failures", "last_reward"] = "zero"  # see mc_returns
    failure_reward: Number | None = None  # as learned from, of tail=failures; default: data's least
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
            raise ValueError(f"failure_reward is not read by tail={self.tail}: leave it out")


class CalQL(cql.CQL):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = schedule.HalfAndHalf
    extra_columns: ClassVar = ("mc_returns",)

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        """With the reward of failing, which an online episode alone does not tell."""
        if cfg.tail != "failures" or cfg.failure_reward is not None:
            return cfg
        transform = Transform.fit(replace(cfg, normalize_observations=False), dataset, ())
        return replace(cfg, failure_reward=float(transform.rewards(dataset.rewards).min()))

    @classmethod
    def mc_returns(cls, cfg: Any, dataset: Dataset) -> np.ndarray:
        """G [N], the discounted return from each row on; rewards as they are learned from.

        tail: what a cut episode would have earned after its last row.
        zero:         nothing. A lower bound only where rewards are not negative.
        failures:     if its last reward is that of failing, that reward for ever. For sparse
                      rewards, where a failure that was cut short would else seem better than one
                      that was watched for longer. All of a mere failure has G = r / (1 - discount).
        last_reward:  its last reward for ever. For rewards that stay once earned (kitchen).
        """
        last = dataset.rewards[dataset.episode_ends].astype(np.float64)  # [episodes]
        for_ever = last / (1 - cfg.discount)
        if cfg.tail == "failures":
            least = dataset.rewards.min() if cfg.failure_reward is None else cfg.failure_reward
            for_ever = np.where(last == least, for_ever, 0.0)
        tail = None if cfg.tail == "zero" else for_ever
        return dataset.monte_carlo_returns(cfg.discount, tail)

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        head: dict[str, Any] = {"affine": (1.0, -1.0), "layer_norm": cfg.layer_norm}
        init = orthogonal_init(last_gain=1e-2)
        policy = TanhGaussianActor(obs, act, cfg.policy_hidden, init=init, **head)
        return super().networks() | {"policy": policy}

    def penalized_values(self, q: Tensor, batch: Batch) -> Tensor:
        """max(Q(s, a), G(s)) for the policy's actions; uniform ones and the data's as in CQL.

        Where G is larger there is no gradient.
        """
        count = 0 if self.cfg.variant == "rho" else self.cfg.num_samples
        uniform, policy, data = q.split([count, q.shape[1] - 1 - count, 1], 1)
        return torch.cat([uniform, policy.maximum(batch.mc_returns), data], 1)

    def with_values(self, values: Mapping[str, Tensor]) -> Algorithm:
        """Raises ValueError for a stacked discount: returns are computed once, for all seeds."""
        if "discount" in values:
            raise ValueError("discount cannot be stacked: cal_ql's mc_returns are made of one")
        return super().with_values(values)

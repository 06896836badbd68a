"""Extreme Q-learning (XQL): the soft maximum of Q over the data's actions, by regression.

If errors of Q are Gumbel distributed, maximum likelihood makes V the log-sum-exp of Q under the
data's policy, t log E[exp(Q / t)]: its mean for t -> infinity, its maximum for t -> 0. Otherwise as
IQL: Q bootstraps from V, the policy clones by advantage.

Paper:   Garg, Hejna, Geist, Ermon, ICLR 2023, arXiv:2301.02328. Equation numbers are those of
         Div99/XQL:docs/extreme_q_learning.pdf; its beta is `temperature` here.
Differs: nowhere known from the authors' code (Div99/XQL:offline), which differs from the paper in
         Huber's error for eq. 14 and in gumbel_loss's clipping and rescaling (dual.py), but for
         LayerNorm's epsilon. Scores published for XQL are each run's best evaluation; expect less
         of the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, gumbel_loss
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, NonNegative, Positive


@dataclass(frozen=True)
class Config(DualConfig):
    """Defaults: Div99/XQL:offline/reproduce/mujoco/mujoco_consistent.sh."""

    temperature: Positive = 2.0  # in units of Q: how far below the maximum V stays
    max_clip: NonNegative = 7.0  # (Q - V) / temperature above this is ignored
    random_actions: Amount = 0  # uniform actions that V also sees, for each of the data's
    noise: bool = False  # V sees the data's actions under clipped noise, deviation 0.1, at most 0.5
    huber: Positive = 20.0  # error of Q from which on its loss grows linearly
    layer_norm: bool = True


class XQL(DualV):
    Config: ClassVar[type] = Config

    def value_loss(self, u: Tensor) -> Tensor:  # eq. 11
        """Gumbel regression of V on Q."""
        return gumbel_loss(u, self.cfg.temperature, self.cfg.max_clip).mean()

    def fitted(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """The data's pairs or those under noise, and `random_actions` uniform ones a state."""
        s, a, count = batch.observations, batch.actions, self.cfg.random_actions
        if self.cfg.noise:
            noise = (0.1 * state.random.normal(a.shape)).clamp(-0.5, 0.5)
            q = state.critic_target(s, (a + noise).clamp(-1, 1)).amin(0)
        if not count:
            return s, q
        uniform = 2 * state.random.uniform((count, *a.shape)) - 1  # [N, B, A]
        everywhere = s.expand(count, *s.shape)
        q_uniform = state.critic_target(everywhere, uniform).amin(0)  # [N, B]
        return torch.cat([s, everywhere.flatten(0, 1)]), torch.cat([q, q_uniform.flatten()])

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """Huber's error: x^2 / 2, from |x| = huber on its tangent; sum over both critics."""
        x = (critic(batch.observations, batch.actions) - y).abs()  # [2, B]
        inside = x.clamp(max=self.cfg.huber)
        return (inside * (x - inside / 2)).sum(0).mean()

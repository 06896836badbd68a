"""Extreme Q-learning (XQL): Gumbel regression of V on Q, a soft maximum over dataset actions.

If the errors of Q are Gumbel distributed, maximum likelihood makes V the log-sum-exp of Q under the
data's policy, t log E[exp(Q / t)]. This is the mean for t -> infinity and the maximum for t -> 0.
The rest is as in IQL: Q bootstraps from V, and the policy is trained by advantage-weighted
regression.

Paper:   Garg, Hejna, Geist, Ermon, ICLR 2023, arXiv:2301.02328. Equation numbers are those of
         Div99/XQL:docs/extreme_q_learning.pdf; its beta is `temperature` here.
Differs: no known difference from the authors' code (Div99/XQL:offline) except for LayerNorm's
         epsilon. That code differs from the paper in the Huber loss for eq. 14, and in the clipping
         and rescaling of gumbel_loss (common/in_sample.py). Scores published for XQL are the best
         evaluation of each run; expect less of the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, gumbel_loss
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, NonNegative, Positive, frozen


@frozen
class Config(DualConfig):
    """Defaults: Div99/XQL:offline/reproduce/mujoco/mujoco_consistent.sh."""

    temperature: Positive = 2.0  # t, in units of Q: larger values keep V further below the maximum
    max_clip: NonNegative = 7.0  # cap on (Q - V) / temperature; no gradient above it
    random_actions: Amount = 0  # uniform actions per state that V is also fitted to
    noise: bool = False  # fit V to actions with clipped noise: standard deviation 0.1, at most 0.5
    huber: Positive = 20.0  # error of Q above which its loss grows linearly
    layer_norm: bool = True  # layer normalization in V


class XQL(DualV):
    Config: type = Config

    def value_loss(self, u: Tensor) -> Tensor:
        """Return the Gumbel regression loss of V on Q (eq. 11)."""
        return gumbel_loss(u, self.cfg.temperature, self.cfg.max_clip).mean()

    def value_pairs(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the data's pairs (noisy if set) and `random_actions` uniform ones per state."""
        s, a, count = batch.observations, batch.actions, self.cfg.random_actions
        if self.cfg.noise:
            noise = (0.1 * state.random.normal(a.shape)).clamp(-0.5, 0.5)
            q = self.aggregate_q(state, state.critic_target(s, (a + noise).clamp(-1, 1)))
        if not count:
            return s, q
        uniform = 2 * state.random.uniform((count, *a.shape)) - 1  # [N, B, A]
        states = s.expand(count, *s.shape)
        q_uniform = self.aggregate_q(state, state.critic_target(states, uniform))  # [N, B]
        return torch.cat([s, states.flatten(0, 1)]), torch.cat([q, q_uniform.flatten()])

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """Return the Huber loss: x^2 / 2, linear from |x| = huber on; sum over both critics."""
        x = (critic(batch.observations, batch.actions) - y).abs()  # [2, B]
        inside = x.clamp(max=self.cfg.huber)
        return (inside * (x - inside / 2)).sum(0).mean()

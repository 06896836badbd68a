"""Mildly conservative Q-learning (MCQ): unseen actions are valued like the best action in the data.

Soft actor-critic with a second critic loss: at the policy's own actions, Q regresses on a pseudo
target, the highest value among actions that a VAE of the data proposes in that state. Unseen
actions are then not overestimated, and not penalized more than needed. The VAE is trained together
with the other networks.

Paper:   Lyu, Ma, Li, Lu, NeurIPS 2022, arXiv:2206.04745.
Differs: from the authors' code (dmksjfl/MCQ:offlinerl/algo/modelfree/MCQ.py). Pseudo targets below
         0 are not raised to 0. No data set has special rules; the authors' code has a margin,
         weights by distance and one-sided errors for some. Both critics receive the same samples.
         The losses of temperature and policy use separate samples; the authors' code uses one for
         both. The log density is exact; the authors add 1e-6 inside its logarithm. In the authors'
         code, a network has one hidden layer more than its setting says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import Metrics, State, minimize, update_targets
from offline_rl.algorithms.common.config import CriticConfig, Fraction, Rate, Sizes
from offline_rl.algorithms.common.critics import Critic, reduce_q
from offline_rl.algorithms.common.entropy import soft_target, update_policy, update_temperature
from offline_rl.algorithms.common.models.vae import VAE
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Scalar


@frozen
class Config(CriticConfig):
    """Defaults: the authors' code. `bellman_share` is tuned for each data set."""

    bellman_share: Fraction = 0.7  # lambda: share of the Bellman error in the critic loss
    num_samples: Count = 10  # VAE actions per state; the best one gives the pseudo target
    num_policy_samples: Count = 10  # policy actions per state that regress on the pseudo target
    alpha: NonNegative | None = None  # temperature; null: learned, with a target entropy of -|A|
    actor_lr: Rate = 3e-4  # learning rate of the policy and of the temperature
    vae_lr: Rate = 1e-3  # learning rate of the VAE
    policy_hidden: Sizes = (400, 400)  # units of each hidden layer of the policy
    critic_hidden: Sizes = (400, 400)  # units of each hidden layer of the critics
    vae_hidden: Sizes = (750, 750)  # units of each hidden layer of the VAE

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_policy_samples": 2}


class MCQ(ActorCritic):
    Config: type = Config

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor, self.cfg.policy_hidden, log_std_range=(-5.0, 2.0))

    def critic(self) -> nn.Module:
        return self.build(Critic, self.cfg.critic_hidden)

    def networks(self) -> dict[str, nn.Module]:
        temperature = {"log_alpha": Scalar(0)} if self.cfg.alpha is None else {}
        return super().networks() | {"vae": self.build(VAE, self.cfg.vae_hidden)} | temperature

    def optimizers(self) -> dict[str, Adam]:
        more = {"log_alpha": Adam(self.cfg.actor_lr), "vae": Adam(self.cfg.vae_lr)}
        return super().optimizers() | more

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update VAE, temperature, critics and policy in the authors' order, then the target."""
        s, a, s2, cfg = batch.observations, batch.actions, batch.next_observations, self.cfg

        def vae_loss(vae):  # sums over dimensions
            error, kl = vae.terms(s, a, state.random)
            return (error.sum(-1) + kl.sum(-1)).mean()

        state, vae_value = minimize(state, "vae", vae_loss)
        if cfg.alpha is None:
            _, log_pi = state.policy.sample(s, state.random)
            state = update_temperature(state, log_pi.mean(), -self.spec.action_dim)
        alpha = state.log_alpha().exp() if cfg.alpha is None else s.new_full((), cfg.alpha)

        y = soft_target(state, batch, alpha)  # [B]
        both = torch.cat([s, s2])  # [2 B, O]
        pi, _ = state.policy.sample(both, state.random, cfg.num_policy_samples)  # [M, 2 B, A]
        pseudo = self.pseudo_target(state, both)  # [2 B]

        def critic_loss(critic):
            td = (critic(s, a) - y).square().mean(1)  # [2]
            error = critic(both.expand(len(pi), *both.shape), pi) - pseudo  # [2, M, 2 B]
            pseudo_loss = error.square().mean((1, 2))  # [2]
            share = cfg.bellman_share
            return (share * td + (1 - share) * pseudo_loss).sum(), (td.sum(), pseudo_loss.sum())

        state, _, (td, pseudo_loss) = minimize(state, "critic", critic_loss)
        state, _, actor_metrics = update_policy(state, state, s, alpha)
        metrics = {"critic_loss": td, "pseudo_loss": pseudo_loss, "vae_loss": vae_value}
        metrics |= {"target": y.mean(), "pseudo_target": pseudo.mean()}
        return update_targets(state), metrics | actor_metrics

    def pseudo_target(self, state: State, s: Tensor) -> Tensor:
        """Return the critics' combined value of the maximum of Q over the VAE's actions, [B]."""
        proposed = state.vae.sample(s, state.random, self.cfg.num_samples)  # [N, B, A]
        q = state.critic(s.expand(len(proposed), *s.shape), proposed)  # [2, N, B]
        return reduce_q(state, q.amax(1))

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

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    State,
    minimize,
    minimize_with,
    soft_update,
)
from offline_rl.algorithms.common.config import BaseConfig, Discount, Fraction, Rate, Sizes, Tau
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.entropy import soft_policy_loss, soft_target, update_temperature
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vae import VAE
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Scalar


@dataclass(frozen=True)
class Config(BaseConfig):
    """Defaults: the authors' code. `bellman_share` is tuned for each data set."""

    bellman_share: Fraction = 0.7  # lambda: share of the Bellman error in the critic loss
    num_samples: Count = 10  # VAE actions per state; the best one gives the pseudo target
    num_policy_samples: Count = 10  # policy actions per state that regress on the pseudo target
    alpha: NonNegative | None = None  # temperature; null: learned, with a target entropy of -|A|
    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the critics mixed into the target
    actor_lr: Rate = 3e-4  # learning rate of the policy and of the temperature
    critic_lr: Rate = 3e-4  # learning rate of the critics
    vae_lr: Rate = 1e-3  # learning rate of the VAE
    policy_hidden: Sizes = (400, 400)  # units of each hidden layer of the policy
    critic_hidden: Sizes = (400, 400)  # units of each hidden layer of the critics
    vae_hidden: Sizes = (750, 750)  # units of each hidden layer of the VAE

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_policy_samples": 2}


class MCQ(Algorithm):
    Config = Config
    targets: ClassVar = {"critic_target": "critic"}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        networks: dict[str, nn.Module] = {
            "policy": TanhGaussianActor(obs, act, cfg.policy_hidden, log_std_range=(-5.0, 2.0)),
            "critic": Critic(obs, act, cfg.critic_hidden),
            "vae": VAE(obs, act, cfg.vae_hidden),
        }
        return networks | ({"log_alpha": Scalar(0)} if cfg.alpha is None else {})

    def optimizers(self) -> dict[str, Adam]:
        actor, critic, vae = (
            Adam(lr) for lr in (self.cfg.actor_lr, self.cfg.critic_lr, self.cfg.vae_lr)
        )
        return {"policy": actor, "log_alpha": actor, "critic": critic, "vae": vae}

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

        state, _, (td, pseudo_loss) = minimize_with(state, "critic", critic_loss)

        def policy_loss(policy):
            return soft_policy_loss(policy, state, s, alpha)

        state, policy_value, log_pi = minimize_with(state, "policy", policy_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": td, "pseudo_loss": pseudo_loss, "policy_loss": policy_value}
        metrics |= {"target": y.mean(), "pseudo_target": pseudo.mean(), "vae_loss": vae_value}
        return state, metrics | {"entropy": -log_pi, "alpha": alpha}

    def pseudo_target(self, state: State, s: Tensor) -> Tensor:
        """Return the minimum over critics of the maximum of Q over the VAE's actions, [B]."""
        proposed = state.vae.sample(s, state.random, self.cfg.num_samples)  # [N, B, A]
        return state.critic(s.expand(len(proposed), *s.shape), proposed).amax(1).amin(0)

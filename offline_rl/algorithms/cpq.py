"""Constraints penalized Q-learning (CPQ): Q bootstraps only from actions within the cost limit.

An action is unsafe if its cost critic exceeds the cost limit. Policy actions that are unlike the
data are made unsafe: a term in the loss of the cost critics raises their cost above the limit. A
VAE judges which actions are unlike the data, and a learned multiplier sets the weight of the term.
The policy maximizes Q where its action is safe, and minimizes the cost elsewhere. An unsafe next
action has the value 0, so rewards should not be negative.

Paper:   Xu, Zhan, Zhu, AAAI 2022, arXiv:2107.09003.
Differs: settings and order of updates of liuzuxin/OSRL:osrl/algorithms/cpq.py; `as_released=true`
         with `likely_share=0.75` reproduces its losses. There, the term for unlikely actions has no
         gradient, uses actions before the tanh, and counts likely actions as 0; a fixed share of
         the policy's actions is unlikely; unsafe actions have no gradient; costs bootstrap after
         terminations, and the lowest cost critic counts. Here, the data's actions define which
         actions are likely; the term stops at the threshold, because a term without bound lets
         costs grow in all states; unsafe actions reduce their cost, because a policy that is unsafe
         in all states would stop learning; costs end with the episode, and the highest cost critic
         counts. Time-outs bootstrap here. The authors removed their code; its last version
         (ryanxhr/CPQ at 7be1c69) has neither a VAE nor a term in the loss of the cost critic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Rate, Sizes
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.algorithms.common.models.vae import VAE, fit_vae
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.safety.cost_critics import (
    CostCriticConfig,
    bootstrap_costs,
    cost_limit,
    highest_cost,
)
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, Positive, Share, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Scalar

MAX_LOG = 5.0  # bound of the logarithm of the multiplier


@frozen
class Config(ActorCriticConfig, CostCriticConfig):
    """Defaults: liuzuxin/OSRL:examples/configs/cpq_configs.py."""

    batch_size: Count = 512
    num_samples: Count = 10  # policy actions sampled per state; costs of unlikely ones are raised
    likely_share: Annotated[Share, BUILT] = 0.95  # share of the data's actions that are likely
    ood_limit: Positive = 1.5  # costs of unlikely actions are raised to this times the limit
    multiplier_lr: Rate = 1e-4  # learning rate of the multiplier of the term for unlikely actions
    actor_lr: Rate = 1e-4  # learning rate of the policy
    critic_lr: Rate = 1e-3  # learning rate of the critics and of the cost critics
    vae_lr: Rate = 1e-3  # learning rate of the VAE
    vae_hidden: Sizes = (400, 400)  # units of each hidden layer of the VAE
    kl_weight: NonNegative = 0.5  # weight of the KL term in the loss of the VAE
    reward_scale: Number = 0.1


class CPQ(ActorCritic):
    Config: type = Config
    Online = schedule.OneBuffer
    mode = DATA_THEN_ONLINE
    targets: ClassVar = {"critic_target": "critic", "cost_critic_target": "cost_critic"}
    extra_columns = ("costs",)
    follows_card = False  # the cards' shifts of rewards are for reward_scale=1

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor)

    def networks(self) -> dict[str, nn.Module]:
        vae = VAE(self.spec.observation_dim, self.spec.action_dim, self.cfg.vae_hidden)
        more = {"cost_critic": self.critic(), "vae": vae, "log_multiplier": Scalar(0.0)}
        return super().networks() | more

    def optimizers(self) -> dict[str, Adam]:
        more = {"cost_critic": Adam(self.cfg.critic_lr), "vae": Adam(self.cfg.vae_lr)}
        return super().optimizers() | more

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update VAE, critics, cost critics and policy in this order, then the targets."""
        s, s2, limit = batch.observations, batch.next_observations, cost_limit(self.cfg)
        state, vae_loss = fit_vae(state, s, batch.actions, self.cfg.kl_weight)

        a2, _ = state.policy.sample(s2, state.random)
        safe = highest_cost(self.cfg, state.cost_critic_target(s2, a2)) <= limit  # [B]
        q = reduce_q(state, state.critic_target(s2, a2))  # [B]
        y = batch.rewards + batch.discount * safe * q
        state, metrics = regress(state, batch, y)
        state, cost_metrics = self.update_cost_critic(state, batch)
        old = state

        def policy_loss(policy):
            a, _ = policy.sample(s, old.random)
            cost = highest_cost(self.cfg, old.cost_critic(s, a))  # [B]
            unsafe = torch.zeros_like(cost) if self.cfg.as_released else -cost
            safe = cost <= limit
            value = torch.where(safe, reduce_q(old, old.critic(s, a)), unsafe)
            return -value.mean(), safe.float().mean()

        state, policy_value, safe_share = minimize(state, "policy", policy_loss)
        metrics |= {"vae_loss": vae_loss, "policy_loss": policy_value, "safe_share": safe_share}
        return update_targets(state), metrics | cost_metrics

    def update_cost_critic(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Update the cost critics, then the multiplier of the term for unlikely actions."""
        s, a, s2, cfg = batch.observations, batch.actions, batch.next_observations, self.cfg
        a2, _ = state.policy.sample(s2, state.random)
        following = highest_cost(cfg, state.cost_critic_target(s2, a2))  # [B]
        y = bootstrap_costs(cfg, batch, following, ignore_ends=cfg.as_released)
        states, sampled, unlikely = self.sample_unlikely(state, s, a)  # [N, B, …]
        log, threshold = state.log_multiplier(), cfg.ood_limit * cost_limit(cfg)

        def cost_loss(critic):
            td = (critic(s, a) - y).square().mean(1).sum()
            if cfg.as_released:  # no gradient
                costs = unlikely * state.cost_critic_target(states, sampled).amin(0)  # [N, B]
                return td, (td, costs.mean() - threshold)
            excess = unlikely * (critic(states, sampled) - threshold)  # [E, N, B]
            count = unlikely.sum().clamp(min=1)
            term = excess.clamp(max=0).sum() / count
            return td - log.exp() * term, (td, excess.mean(0).sum() / count)

        state, _, (td, excess) = minimize(state, "cost_critic", cost_loss)
        log = (log - cfg.multiplier_lr * log.exp() * excess).clamp(-MAX_LOG, MAX_LOG)
        state = replace(state, params={**state.params, "log_multiplier": {"value": log}})
        metrics = {"cost_critic_loss": td, "cost_target": y.mean(), "ood_excess": excess}
        return state, metrics | {"multiplier": log.exp()}

    def sample_unlikely(self, state: State, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, policy actions and a mask of the unlikely ones, [N, B, ...] each.

        a: the data's actions, with which the sampled actions are compared.
        """
        mean, log_std = state.policy(s)
        sampled = mean + log_std.exp() * state.random.normal((self.cfg.num_samples, *mean.shape))
        sampled = sampled if self.cfg.as_released else sampled.tanh()
        states = s.expand(len(sampled), *s.shape)
        kl = state.vae.unlikelihood(states, sampled)  # [N, B]
        compared = kl if self.cfg.as_released else state.vae.unlikelihood(s, a)
        return states, sampled, kl >= quantile(compared, self.cfg.likely_share)


def quantile(x: Tensor, share: float) -> Tensor:
    """Return the quantile of all values, linearly interpolated, 0-d.

    `torch.quantile` would run once for each stacked seed.
    """
    ordered, position = x.flatten().sort().values, share * (x.numel() - 1)
    index = min(int(position), x.numel() - 2)
    return torch.lerp(ordered[index], ordered[index + 1], position - index)

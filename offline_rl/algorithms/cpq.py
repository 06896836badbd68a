"""Constraints penalized Q-learning (CPQ): values of unsafe actions are set to 0.

An action is unsafe if its cost critic exceeds the cost limit. Cost critics are raised at sampled
policy actions that are unlike the data, judged by a VAE, until their mean exceeds the limit. Such
actions therefore count as unsafe. A learned multiplier sets the strength. Q bootstraps only from
safe actions, and the policy maximizes Q only where its action is safe. Rewards should not be
negative, because unsafe actions have the value 0.

Paper:   Xu, Zhan, Zhu, AAAI 2022, arXiv:2107.09003.
Differs: settings, order and quantile of liuzuxin/OSRL:osrl/algorithms/cpq.py; `as_released=true`
         reproduces it. There, the term for unlikely actions has no gradient and uses actions before
         the tanh. Its mean counts likely actions as 0; here it is over unlikely actions. Costs
         bootstrap there after terminations, and the lowest cost critic counts; here costs end with
         the episode and the highest counts. With gradient, the term acts on each cost critic, and
         the multiplier follows their mean. Time-outs bootstrap here. The authors removed their code
         (ryanxhr/CPQ); its last version (7be1c69) had neither a VAE nor a term on cost critics.
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
from offline_rl.algorithms.common.critics import regress
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
    num_samples: Count = 10  # policy actions per state, of which the unlikely ones have high costs
    likely_share: Annotated[Share, BUILT] = 0.75  # share of sampled actions that count as likely
    ood_limit: Positive = 1.5  # mean cost value that unlikely actions reach, divided by the limit
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
        y = batch.rewards + batch.discount * safe * state.critic_target(s2, a2).amin(0)
        state, metrics = regress(state, batch, y)
        state, cost_metrics = self.update_cost_critic(state, batch)
        old = state

        def policy_loss(policy):
            a, _ = policy.sample(s, old.random)
            safe = highest_cost(self.cfg, old.cost_critic(s, a)) <= limit  # [B]
            return -(safe * old.critic(s, a).amin(0)).mean(), safe.float().mean()

        state, policy_value, safe_share = minimize(state, "policy", policy_loss)
        metrics |= {"vae_loss": vae_loss, "policy_loss": policy_value, "safe_share": safe_share}
        return update_targets(state), metrics | cost_metrics

    def update_cost_critic(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Update the cost critics, then the multiplier toward mean unlikely costs above a limit."""
        s, a, s2, cfg = batch.observations, batch.actions, batch.next_observations, self.cfg
        a2, _ = state.policy.sample(s2, state.random)
        y = bootstrap_costs(cfg, batch, highest_cost(cfg, state.cost_critic_target(s2, a2)))
        states, sampled, unlikely = self.sample_unlikely(state, s)  # [N, B, …]
        log = state.log_multiplier()
        alpha = log.exp()

        def cost_loss(critic):
            td = (critic(s, a) - y).square().mean(1)  # [E]
            if cfg.as_released:
                costs = unlikely * state.cost_critic_target(states, sampled).amin(0)  # [N, B]
                costs = costs.mean()
            else:
                costs = (unlikely * critic(states, sampled)).sum((1, 2)) / unlikely.sum()  # [E]
            excess = costs - cfg.ood_limit * cost_limit(cfg)
            return td.sum() - alpha * excess.sum(), (td.sum(), costs.mean(), excess.mean())

        state, _, (td, costs, excess) = minimize(state, "cost_critic", cost_loss)
        log = (log - cfg.multiplier_lr * alpha * excess).clamp(-MAX_LOG, MAX_LOG)
        state = replace(state, params={**state.params, "log_multiplier": {"value": log}})
        metrics = {"cost_critic_loss": td, "cost_target": y.mean(), "ood_cost": costs}
        return state, metrics | {"multiplier": log.exp()}

    def sample_unlikely(self, state: State, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, policy actions and a mask of the unlikely ones, [N, B, ...] each."""
        mean, log_std = state.policy(s)
        a = mean + log_std.exp() * state.random.normal((self.cfg.num_samples, *mean.shape))
        a = a if self.cfg.as_released else a.tanh()
        states = s.expand(len(a), *s.shape)
        kl = state.vae.unlikelihood(states, a)  # [N, B]
        return states, a, kl >= quantile(kl, self.cfg.likely_share)


def quantile(x: Tensor, share: float) -> Tensor:
    """Return the quantile of all values, linearly interpolated, 0-d.

    `torch.quantile` would run once for each stacked seed.
    """
    ordered, position = x.flatten().sort().values, share * (x.numel() - 1)
    index = min(int(position), x.numel() - 2)
    return torch.lerp(ordered[index], ordered[index + 1], position - index)

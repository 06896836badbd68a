"""Advantage-weighted actor-critic (AWAC): imitation weighted by the advantage over the policy.

Twin critics learn the policy's value as in SAC, without entropy. The policy is trained by imitation
of the data's actions, each weighted by exp(advantage / temperature). The advantage compares the
data's action with a sampled action of the policy. The policy improves although it is only trained
on actions in the data.

Paper:   Nair, Gupta, Dalal, Levine, arXiv:2006.09359, algorithm 1.
Differs: Weights are capped and not normalized. The baseline is the value of one sampled action. The
         policy's standard deviation does not depend on the state. All this is as in tinkoff-ai/CORL
         (algorithms/offline/awac.py), whose settings are used offline and online.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import Sizes
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Positive, frozen
from policies.heads.gaussian import GaussianActor
from policies.networks.init import torch_init


@frozen
class Config(ActorCriticConfig):
    """Defaults: tinkoff-ai/CORL's for D4RL locomotion."""

    temperature: Positive = 1 / 3  # lambda: larger is closer to behavior cloning
    max_weight: NonNegative = 100.0  # cap on exp(advantage / temperature)
    hidden: Sizes = (256, 256, 256)
    normalize_observations: bool = True


class AWAC(ActorCritic):
    Config: type = Config
    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE

    def actor(self) -> nn.Module:
        head: dict[str, Any] = {"log_std_range": (-20.0, 2.0), "tanh_mean": False}
        return self.build(GaussianActor, init=torch_init, **head)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, then the policy with the new critics, then the target.

        Sampled actions are clipped before Q evaluates them.
        """
        s, a = batch.observations, batch.actions
        next_a = state.policy.explore_action(batch.next_observations, state.random)
        next_q = reduce_q(state, state.critic_target(batch.next_observations, next_a))  # [B]
        state, metrics = regress(state, batch, batch.rewards + batch.discount * next_q)

        pi = state.policy.explore_action(s, state.random)
        advantage = reduce_q(state, state.critic(s, a)) - reduce_q(
            state, state.critic(s, pi)
        )  # [B]
        weight = (advantage / self.cfg.temperature).exp().clamp(max=self.cfg.max_weight)

        def policy_loss(policy):
            return -(weight * policy.log_prob(s, a)).mean()

        state, loss = minimize(state, "policy", policy_loss)
        metrics |= {"policy_loss": loss, "advantage": advantage.mean(), "weight": weight.mean()}
        return update_targets(state), metrics

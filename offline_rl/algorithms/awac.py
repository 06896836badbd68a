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

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize, soft_update
from offline_rl.algorithms.common.config import BaseConfig, Discount, Rate, Sizes, Tau
from offline_rl.algorithms.common.critics import Critic, regress
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Positive
from policies.heads.gaussian import GaussianActor
from policies.networks.init import torch_init
from policies.networks.mlp import Activation


@dataclass(frozen=True)
class Config(BaseConfig):
    """Defaults: tinkoff-ai/CORL's for D4RL locomotion."""

    temperature: Positive = 1 / 3  # lambda: larger is closer to behavior cloning
    max_weight: NonNegative = 100.0  # cap on exp(advantage / temperature)
    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the critics mixed into the target
    actor_lr: Rate = 3e-4  # learning rate of the policy
    critic_lr: Rate = 3e-4  # learning rate of the critics
    hidden: Sizes = (256, 256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # activation between layers, of policy and critics
    normalize_observations: bool = True


class AWAC(Algorithm):
    Config = Config
    Online: ClassVar[type[schedule.Online]] = schedule.OneBuffer
    online = True
    targets: ClassVar = {"critic_target": "critic"}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        head: dict[str, Any] = {"log_std_range": (-20.0, 2.0), "tanh_mean": False}
        options: dict[str, Any] = {"activation": cfg.activation, "init": torch_init}
        return {
            "policy": GaussianActor(obs, act, cfg.hidden, **head, **options),
            "critic": Critic(obs, act, cfg.hidden, **options),
        }

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.actor_lr), "critic": Adam(self.cfg.critic_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, then the policy with the new critics, then the target.

        Sampled actions are clipped before Q evaluates them.
        """
        s, a, cfg = batch.observations, batch.actions, self.cfg
        next_a = state.policy.explore(batch.next_observations, state.random)
        next_q = state.critic_target(batch.next_observations, next_a).amin(0)  # [B]
        state, metrics = regress(state, batch, batch.rewards + batch.discount * next_q)

        pi = state.policy.explore(s, state.random)
        advantage = state.critic(s, a).amin(0) - state.critic(s, pi).amin(0)  # [B]
        weight = (advantage / cfg.temperature).exp().clamp(max=cfg.max_weight)

        def policy_loss(policy):
            return -(weight * policy.log_prob(s, a)).mean()

        state, policy_value = minimize(state, "policy", policy_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics |= {"advantage": advantage.mean(), "weight": weight.mean()}
        return state, metrics | {"policy_loss": policy_value}

"""Soft actor-critic (SAC): maximum-entropy actor-critic, trained online.

Twin critics learn the value of actions plus future entropy. The actor minimizes its divergence from
the Boltzmann policy of the critics. The temperature is adapted to a target entropy of -|A|.

Paper:   Haarnoja et al., arXiv:1812.05905 (learned temperature). Equation numbers refer to it.
Differs: The temperature's loss is linear in log alpha, as in rlkit, which was used to make the D4RL
         data. The first actions (`Online.warmup_steps`) are uniform. Networks have torch's default
         initialization. rlkit takes all losses at the old parameters; the order here is that of
         pranz24/pytorch-soft-actor-critic. Both of them add 1e-6 inside the logarithm of the log
         density; here the log density is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Annotated, ClassVar, Literal

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    State,
    minimize,
    minimize_with,
    soft_update,
)
from offline_rl.algorithms.common.config import BUILT, BaseConfig, Discount, Rate, Sizes, Tau
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.entropy import (
    soft_optimizers,
    soft_policy_loss,
    soft_target,
    update_temperature,
)
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Number, Positive
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Activation, Scalar


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Defaults: the paper's, table 1."""

    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the critics mixed into the target
    actor_lr: Rate = 3e-4  # learning rate of the policy
    critic_lr: Rate = 3e-4  # learning rate of the critics
    alpha_lr: Rate = 3e-4  # learning rate of the temperature
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # initial temperature
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # activation between layers, of policy and critics


@dataclass(frozen=True, kw_only=True)
class Online(schedule.Online):
    """Defaults: the paper's."""

    warmup_steps: Amount = 5_000
    warmup_policy: Literal["policy", "random"] = "random"


class SAC(Algorithm):
    Config = Config
    targets: ClassVar = {"critic_target": "critic"}
    Online = Online
    online = True
    follows_card = False  # starts without data

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return {
            "policy": TanhGaussianActor(obs, act, cfg.hidden, activation=cfg.activation),
            "critic": Critic(obs, act, cfg.hidden, activation=cfg.activation),
            "log_alpha": Scalar(log(cfg.initial_alpha)),
        }

    def optimizers(self) -> dict[str, Adam]:
        return soft_optimizers(self.cfg)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, then the actor with the new critics, temperature and target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        alpha = state.log_alpha().exp().detach()
        y = soft_target(state, batch, alpha)  # [B], eq. 2 and 3

        def critic_loss(critic):  # eq. 5, without its 1/2; [2, B] - [B]
            return (critic(s, a) - y).square().mean(1).sum()

        state, critic_value = minimize(state, "critic", critic_loss)

        def policy_loss(policy):  # eq. 9
            return soft_policy_loss(policy, state, s, alpha)

        state, policy_value, log_pi = minimize_with(state, "policy", policy_loss)
        state = update_temperature(
            state, log_pi, -cfg.entropy_scale * self.spec.action_dim
        )  # eq. 18
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": critic_value, "policy_loss": policy_value, "target": y.mean()}
        return state, metrics | {"entropy": -log_pi, "alpha": alpha}

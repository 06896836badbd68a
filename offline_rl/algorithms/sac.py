"""Soft actor-critic (SAC): act well and as randomly as the task forgives.

Twin critics learn the value of actions plus future entropy, the actor minimizes its divergence from
their Boltzmann policy, and the temperature follows a target entropy of -|A|.

Paper:   Haarnoja et al., arXiv:1812.05905 (learned temperature). Equation numbers are the paper's.
Differs: the temperature's loss is linear in log alpha, as in rlkit, which made the D4RL data; the
         first actions (`Online.warm_up`) are uniform; networks start as torch's do. rlkit takes all
         losses at the old parameters; the order here is pranz24/pytorch-soft-actor-critic's,
         without the 1e-6 that both add inside the log density.
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

    discount: Discount = 0.99  # gamma
    tau: Tau = 0.005  # share of the critic that enters its target each update
    actor_lr: Rate = 3e-4  # learning rate of the policy
    critic_lr: Rate = 3e-4  # of the critics
    alpha_lr: Rate = 3e-4  # of the temperature
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # the temperature at the start
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # between layers, of policy and critics


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
    follows_card = False  # it begins without data

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
        """Critics; actor, with the new ones; temperature; target."""
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

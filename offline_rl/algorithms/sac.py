"""Soft actor-critic (SAC): act well and as randomly as the task forgives.

Twin critics learn the value of actions plus future entropy, the actor minimises its divergence from
their Boltzmann policy, and the temperature follows a target entropy of -|A|.

Paper:   Haarnoja et al., arXiv:1812.05905 (learnt temperature). Equation numbers are the paper's.
Differs: the temperature's loss is linear in log alpha, as in rlkit, which made the D4RL data; the
         first `random_steps` actions are uniform; networks start as torch's do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

from torch import nn

from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    State,
    minimise,
    minimise_with,
    soft_update,
)
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.entropy import (
    soft_optimisers,
    soft_policy_loss,
    soft_target,
    temper,
)
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data.transform import Preprocessing
from offline_rl.replay.batch import Batch
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Scalar


@dataclass(frozen=True, kw_only=True)
class Config(Preprocessing):
    """Defaults: the paper's, table 1."""

    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the critic that enters its target each update
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4
    initial_alpha: float = 1.0  # > 0; read when the networks are built: one value for all seeds
    entropy_scale: float = 1.0  # target entropy is -entropy_scale * |A|
    hidden: tuple[int, ...] = (256, 256)
    random_steps: int = 5_000  # environment steps with uniform actions before the first update


class SAC(Algorithm):
    Config = Config
    targets: ClassVar = {"critic_target": "critic"}
    online = True
    follows_card = False  # it begins without data

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return {
            "policy": TanhGaussianActor(obs, act, cfg.hidden),
            "critic": Critic(obs, act, cfg.hidden),
            "log_alpha": Scalar(log(cfg.initial_alpha)),
        }

    def optimisers(self) -> dict[str, Adam]:
        return soft_optimisers(self.cfg)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Critics; actor, with the new ones; temperature; target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        alpha = state.log_alpha().exp().detach()
        y = soft_target(state, batch, alpha)  # [B], eq. 2 and 3

        def critic_loss(critic):  # eq. 5, without its 1/2; [2, B] - [B]
            return (critic(s, a) - y).square().mean(1).sum()

        state, critic_value = minimise(state, "critic", critic_loss)

        def policy_loss(policy):  # eq. 9
            return soft_policy_loss(policy, state, s, alpha)

        state, policy_value, log_pi = minimise_with(state, "policy", policy_loss)
        state = temper(state, log_pi, -cfg.entropy_scale * self.spec.action_dim)  # eq. 18
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": critic_value, "policy_loss": policy_value, "target": y.mean()}
        return state, metrics | {"entropy": -log_pi, "alpha": alpha}

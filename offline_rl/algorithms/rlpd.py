"""RLPD: SAC trained online, with half of every batch from offline data.

There are ten critics with layer normalization. The target is the minimum over two random ones.
Every environment step is followed by many critic updates and one actor update, which maximizes the
mean over critics. There is no offline training and no pessimism.

Paper:   Ball, Smith, Kostrikov, Levine, ICML 2023, arXiv:2302.02948, algorithm 1.
Differs: from the authors' code (ikostrikov/rlpd:rlpd/agents/sac/sac_learner.py). Every critic
         update samples its own batch, half from offline data and half from online data. The
         authors' code samples one batch of `utd` times that size and splits it into `utd` parts,
         each half and half. Both sample uniformly with replacement. Layer normalization has torch's
         eps of 1e-5; the authors' code has 1e-6. The data's actions are unchanged; the authors clip
         them to +-0.99999. Terminals of the binary Adroit data count; the authors remove them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from offline_rl.algorithms import sac
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DelayedActor,
    Metrics,
    Network,
    State,
    minimize,
    minimize_with,
    soft_update,
)
from offline_rl.algorithms.common.config import Ensemble
from offline_rl.algorithms.common.critics import Critic, sample_members
from offline_rl.algorithms.common.entropy import soft_optimizers
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Number, Positive
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import xavier_init
from policies.networks.mlp import Scalar


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Defaults: the authors' for locomotion (README, configs/rlpd_config.py)."""

    num_critics: Ensemble = 10  # number of critics (E)
    num_min_critics: Count = 2  # critics sampled in each update for the minimum in the target
    backup_entropy: bool = True  # include the entropy in the target, as SAC
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * |A|


@dataclass(frozen=True, kw_only=True)
class Online(schedule.HalfAndHalf):
    """Defaults: the authors'."""

    warmup_steps: Amount = 5_000
    warmup_policy: Literal["policy", "random"] = "random"
    utd: Positive = 20.0


class RLPD(DelayedActor):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = Online
    targets: ClassVar = {"critic_target": "critic"}
    online = True

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options: dict[str, Any] = {"activation": cfg.activation, "init": xavier_init}
        shape: dict[str, Any] = {"ensemble": cfg.num_critics, "layer_norm": True}
        return {
            "policy": TanhGaussianActor(obs, act, cfg.hidden, **options),
            "critic": Critic(obs, act, cfg.hidden, **shape, **options),
            "log_alpha": Scalar(log(cfg.initial_alpha)),
        }

    def optimizers(self) -> dict[str, Adam]:
        return soft_optimizers(self.cfg)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics and target; in the last step of a period also actor and temperature."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        alpha = state.log_alpha().exp().detach()
        y = self.target(state, batch, alpha)  # [B]

        def critic_loss(critic):  # [E, B] - [B]
            return (critic(s, a) - y).square().mean()

        state, critic_value = minimize(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": critic_value, "target": y.mean()}
        if not self.updates_actor(i):
            return state, metrics

        def policy_loss(policy):
            pi, log_pi = policy.sample(s, state.random)
            q = self.actor_q(state.critic(s, pi))  # [B]
            return (alpha * log_pi - q).mean(), log_pi.mean()

        old = state
        state, policy_value, log_pi = minimize_with(state, "policy", policy_loss)
        excess = (
            self.entropy_log_prob(old, batch, log_pi) - cfg.entropy_scale * self.spec.action_dim
        )

        def alpha_loss(log_alpha: Network) -> Tensor:  # linear in alpha, not in log alpha
            return -log_alpha().exp() * excess

        state, _ = minimize(state, "log_alpha", alpha_loss)
        return state, metrics | {"policy_loss": policy_value, "entropy": -log_pi, "alpha": alpha}

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return r + discount * (min of sampled Q_i(s', a') - alpha log pi(a'|s')), [B]."""
        pi, log_pi = state.policy.sample(batch.next_observations, state.random)
        members = sample_members(
            state, self.cfg.num_critics, self.cfg.num_min_critics, replace=False
        )
        q = state.critic_target(batch.next_observations, pi, members).amin(0)  # [B]
        if self.cfg.backup_entropy:
            q = q - alpha * log_pi
        return batch.rewards + batch.discount * q

    def entropy_log_prob(self, old: State, batch: Batch, log_pi: Tensor) -> Tensor:
        """Return the mean log density for the temperature, 0-d.

        log_pi: the mean log density from the policy loss.
        """
        return log_pi

    def actor_q(self, q: Tensor) -> Tensor:
        """Return the value that the actor maximizes, [E, B] -> [B]: the mean over critics."""
        return q.mean(0)

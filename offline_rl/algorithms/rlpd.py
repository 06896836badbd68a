"""RLPD: SAC that learns online, every batch half its own experience and half logged data.

Ten normalized critics, of which two drawn at random make the target, many critic updates for every
environment step and one of the actor, on their mean. No preliminary training, no pessimism.

Paper:   Ball, Smith, Kostrikov, Levine, ICML 2023, arXiv:2302.02948, algorithm 1.
Differs: from the authors' code (ikostrikov/rlpd:rlpd/agents/sac/sac_learner.py) in that every
         critic update draws a batch of its own, half and half, where there one of `utd` times the
         size is cut into as many, half and half; both are uniform draws with replacement. Layer
         normalization has torch's eps (1e-5, there 1e-6); the data's actions are as they are, there
         clipped to +-0.99999; terminals of the binary hands' data count, there they are removed.
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
from offline_rl.algorithms.common.critics import Critic, different
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

    num_critics: Ensemble = 10  # E
    num_min_critics: Count = 2  # critics whose least makes the target; drawn anew for every update
    backup_entropy: bool = True  # entropy in the target, as in SAC
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
        """Critics and their target; in the last place also the actor, then the temperature."""
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

        def alpha_loss(log_alpha: Network) -> Tensor:  # in alpha, not in its logarithm
            return -log_alpha().exp() * excess

        state, _ = minimize(state, "log_alpha", alpha_loss)
        return state, metrics | {"policy_loss": policy_value, "entropy": -log_pi, "alpha": alpha}

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """r + discount * (least of a few Q_i(s', a'), less alpha log pi(a'|s')), a' ~ pi; [B]."""
        pi, log_pi = state.policy.sample(batch.next_observations, state.random)
        few = different(state, self.cfg.num_critics, self.cfg.num_min_critics)
        least = state.critic_target(batch.next_observations, pi, few).amin(0)  # [B]
        if self.cfg.backup_entropy:
            least = least - alpha * log_pi
        return batch.rewards + batch.discount * least

    def entropy_log_prob(self, old: State, batch: Batch, log_pi: Tensor) -> Tensor:
        """The mean log density that the temperature follows, 0-d; log_pi: in the policy's loss."""
        return log_pi

    def actor_q(self, q: Tensor) -> Tensor:
        """What the actor climbs, [E, B] -> [B]: the mean over all critics."""
        return q.mean(0)

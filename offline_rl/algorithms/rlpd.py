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

from typing import Any, Literal

from torch import Tensor, nn

from offline_rl.algorithms import sac
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    DelayedActor,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import Ensemble
from offline_rl.algorithms.common.critics import Critic, reduce_q, sample_members
from offline_rl.algorithms.common.entropy import SoftActorCritic, update_policy
from offline_rl.algorithms.common.histories.encoding import WithHistories
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Number, Positive, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import xavier_init


@frozen
class Config(sac.Config):
    """Defaults: the authors' for locomotion (README, configs/rlpd_config.py)."""

    num_critics: Ensemble = 10  # number of critics (E)
    num_min_critics: Count = 2  # critics sampled in each update for the minimum in the target
    backup_entropy: bool = True  # include the entropy in the target, as SAC
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * |A|


@frozen
class Online(schedule.HalfAndHalf):
    """Defaults: the authors'."""

    warmup_steps: Amount = 5_000
    warmup_policy: Literal["policy", "random"] = "random"
    utd: Positive = 20.0


class RLPD(WithHistories, DelayedActor, SoftActorCritic):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor, init=xavier_init)

    def critic(self) -> nn.Module:
        shape: dict[str, Any] = {"ensemble": self.cfg.num_critics, "layer_norm": True}
        return self.build(Critic, init=xavier_init, **shape)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics and target; in the last step of a period also actor and temperature."""
        s, cfg, alpha = batch.observations, self.cfg, state.log_alpha().exp().detach()
        y = self.target(state, batch, alpha)  # [B]

        def critic_loss(critic):  # mean over batch and critics; [E, B] - [B]
            return (critic(s, batch.actions) - y).square().mean()

        state, value = minimize(state, "critic", critic_loss)
        state = update_targets(state)
        metrics = {"critic_loss": value, "target": y.mean()}
        if not self.updates_actor(i):
            return state, metrics

        old = state
        state, log_pi, actor_metrics = update_policy(state, old, s, alpha, self.actor_q)
        log_pi = self.entropy_log_prob(old, batch, log_pi)
        excess = log_pi - cfg.entropy_scale * self.spec.action_dim

        def alpha_loss(log_alpha: Network) -> Tensor:  # linear in alpha, not in log alpha
            return -log_alpha().exp() * excess

        state, _ = minimize(state, "log_alpha", alpha_loss)
        return state, metrics | actor_metrics

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return r + discount * (min of sampled Q_i(s', a') - alpha log pi(a'|s')), [B]."""
        pi, log_pi = state.policy.sample(batch.next_observations, state.random)
        members = sample_members(
            state, self.cfg.num_critics, self.cfg.num_min_critics, replace=False
        )
        q = reduce_q(state, state.critic_target(batch.next_observations, pi, members))  # [B]
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

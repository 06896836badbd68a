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

from typing import Annotated

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Metrics, Mode, State, update_targets
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.critics import regress
from offline_rl.algorithms.common.entropy import (
    SoftActorCritic,
    SoftConfig,
    soft_target,
    update_policy,
    update_temperature,
)
from offline_rl.algorithms.common.histories.encoding import HistoryConfig, WithHistories
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Number, Positive, frozen
from policies.heads.gaussian import TanhGaussianActor


@frozen
class Config(HistoryConfig, SoftConfig):
    """Defaults: the paper's, table 1."""

    initial_alpha: Annotated[Positive, BUILT] = 1.0  # initial temperature
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|


@frozen
class Online(schedule.RandomStart):
    """Defaults: the paper's."""

    warmup_steps: Amount = 5_000


class SAC(WithHistories, SoftActorCritic):
    Config: type = Config
    Online: type = Online
    mode = Mode(learns=("environment",))
    follows_card = False  # starts without data

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, then the actor with the new critics, temperature and target."""
        target_entropy = -self.cfg.entropy_scale * self.spec.action_dim
        alpha = state.log_alpha().exp().detach()
        y = soft_target(state, batch, alpha)  # [B], eq. 2 and 3
        state, metrics = regress(state, batch, y)  # eq. 5, without its 1/2
        s = batch.observations
        state, log_pi, actor_metrics = update_policy(state, state, s, alpha)  # eq. 9
        state = update_temperature(state, log_pi, target_entropy)  # eq. 18
        return update_targets(state), metrics | actor_metrics

"""MOBILE: model-based RL with a penalty for the model-Bellman inconsistency.

The members of the dynamics model predict different next states, so their Bellman targets differ.
The standard deviation of the next state's value over the elites, times `penalty`, is subtracted
from the targets of predicted transitions. Transitions of the data are not penalized.

Paper:   Sun et al., ICML 2023, PMLR 202 (proceedings.mlr.press/v202/sun23q.html).
Differs: from the authors' code (yihaosun1124/mobile) and yihaosun1124/OfflineRL-Kit. There, targets
         below 0 are set to 0, as with clamp_targets=true. This is off by default: if rewards are
         mostly negative, most values would be 0. The loss is the sum over critics; there, it is the
         mean. Rollouts have 5 steps; there, the default is 1. Other differences are those of
         `mopo`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.config import BUILT, Ensemble
from offline_rl.algorithms.common.critics import Critic, reduce_q
from offline_rl.algorithms.common.models.rollouts import ModelBased, ModelConfig
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive, frozen


@frozen
class Config(ModelConfig):
    """Defaults: the authors' (yihaosun1124/mobile:configs/gym/default.py)."""

    penalty: NonNegative = 1.0  # weight of the inconsistency (beta); larger: closer to the data
    num_samples: Count = 10  # predictions per member; with max_q_backup, also actions per state
    num_critics: Ensemble = 2  # number of critics
    max_q_backup: Annotated[bool, BUILT] = False  # bootstrap from the best of num_samples actions
    clamp_targets: Annotated[bool, BUILT] = False  # set targets below 0 to 0; only for rewards >= 0
    entropy_in_target: Annotated[bool, BUILT] = False  # include the entropy in critic targets
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # initial temperature

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_q_backup and self.entropy_in_target:
            raise ValueError(
                "entropy_in_target=true is not used with max_q_backup=true. Set only one of them."
            )


class MOBILE(ModelBased):
    Config: type = Config

    def critic(self) -> nn.Module:
        return self.build(Critic, ensemble=self.cfg.num_critics)

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return r - penalty * u + discount * min_k Q_k(s', a'), [B]; u is 0 for real rows."""
        cfg, s2 = self.cfg, batch.next_observations
        if cfg.max_q_backup:
            a2, _ = state.policy.sample(s2, state.random, cfg.num_samples)  # [N, B, A]
            q = state.critic_target(s2.expand(len(a2), *s2.shape), a2).amax(1)  # [E, B]
            y = batch.rewards + batch.discount * reduce_q(state, q)
        else:
            y = super().target(state, batch, alpha)
        rows = self.predicted_rows(batch)  # [P]
        u = self.inconsistency(state, batch.observations[rows], batch.actions[rows])
        y = y - cfg.penalty * torch.zeros_like(y).scatter(0, rows, u)
        return y.clamp(min=0) if cfg.clamp_targets else y

    def inconsistency(self, state: State, s: Tensor, a: Tensor) -> Tensor:
        """Return the standard deviation over elites of the value of the next state, [P].

        The value of an elite is the mean over N sampled next states.
        """
        elites = self.elite_members(state)  # [E]
        mean, log_variance = state.dynamics(torch.cat([s, a], -1), members=elites)
        change, std = mean[..., :-1], (0.5 * log_variance[..., :-1]).exp()  # [E, P, O]
        noise = state.random.normal((self.cfg.num_samples, *change.shape))
        s2 = s + change + std * noise  # [N, E, P, O]
        a2, _ = state.policy.sample(s2, state.random)
        return reduce_q(state, state.critic_target(s2, a2)).mean(0).std(0)

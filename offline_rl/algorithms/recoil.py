"""ReCOIL: imitation of an expert with additional data of any quality, without rewards.

Matching the expert's visitation distribution has a dual in which Q is high on the expert's pairs,
low on the other data's, and consistent under the dynamics. Other data that leads to the expert's
states gains value. V and the policy are trained as in XQL on the other data, which may contain
expert behavior.

Paper:   Sikchi, Zheng, Zhang, Niekum, ICLR 2024, arXiv:2302.08560.
Differs: objective=bounded is the released code (chufanchen/ReCOIL:offline, a copy of the authors'),
         with the bounded targets of LS-IQ (arXiv:2303.00599). objective=mixture is the paper's; the
         released learner never reads the coefficient `beta` of that objective. V and the policy are
         fitted to the other data alone, as in the released code. The released code's bound of 200
         is reward_gap / (1 - discount) here, with a reward_gap of 2.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, gumbel_loss
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive, Share, frozen

Objective = Literal["bounded", "mixture"]


@frozen
class Config(DualConfig):
    """Defaults: the authors' example, hopper-random."""

    objective: Objective = "bounded"  # loss of Q: the released code's or the paper's (mixture)
    temperature: Positive = 5.0  # as in XQL; increase it until Q stays finite
    max_clip: NonNegative = 7.0  # cap on (Q - V) / temperature; no gradient above it
    reward_gap: Positive = 2.0  # objective=bounded: cost of each step of the other data
    mixture: Share = 0.1  # objective=mixture: weight of the expert's data (beta in the paper)
    batch_size: Count = 1024  # other data's rows per update; as many expert rows are added

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unread("objective", "mixture" if self.objective == "bounded" else "reward_gap")


class ReCOIL(DualV):
    Config: type = Config
    extra_columns = ("expert",)
    follows_card = False  # it uses no rewards

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    def value_pairs(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of the other data, followed by the expert's pairs.

        The expert's pairs affect only the scale of V's loss, which is divided by the largest
        exponential of all pairs.
        """
        expert = expert_batch(batch)
        q_expert = state.critic_target(expert.observations, expert.actions)
        q_expert = self.aggregate_q(state, q_expert)  # [B]
        return torch.cat([batch.observations, expert.observations]), torch.cat([q, q_expert])

    def value_loss(self, u: Tensor) -> Tensor:
        """Return the Gumbel regression loss on the first half of u, the other data's."""
        return gumbel_loss(u, self.cfg.temperature, self.cfg.max_clip)[: len(u) // 2].mean()

    def target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Return the target of Q, without rewards, [B].

        bounded: -reward_gap per step, and -bound after a terminal step.
        """
        y = batch.discount * next_value
        if self.cfg.objective == "mixture":
            return y
        return y - self.cfg.reward_gap - (self.cfg.discount - batch.discount) * self.bound

    @property
    def bound(self) -> float | Tensor:
        """Value of receiving `reward_gap` forever."""
        return self.cfg.reward_gap / (1 - self.cfg.discount)

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """Return `bounded_loss` or `mixture_loss`, summed over both critics."""
        s, expert = batch.observations, expert_batch(batch)
        q, q_expert = critic(s, batch.actions), critic(expert.observations, expert.actions)
        if self.cfg.objective == "bounded":
            return bounded_loss(q, q_expert, y, self.bound).sum()
        q_policy = critic(s, state.policy.explore_action(s, state.random))
        y_expert = expert.discount * state.value(expert.next_observations)
        return mixture_loss(q, q_expert, q_policy, y, y_expert, self.cfg.mixture).sum()


def expert_batch(batch: Batch) -> Batch:
    """Return the expert's transitions that come with the batch."""
    assert batch.expert is not None
    return batch.expert


def bounded_loss(q: Tensor, q_expert: Tensor, y: Tensor, bound: float | Tensor) -> Tensor:
    """Return E_E[(Q - bound)^2] / 2 + E_S[(Q - y)^2] / 2; [..., B] -> [...]."""
    return ((q_expert - bound).square() / 2).mean(-1) + ((q - y).square() / 2).mean(-1)


def mixture_loss(
    q: Tensor, q_expert: Tensor, q_policy: Tensor, y: Tensor, y_expert: Tensor, beta: float | Tensor
) -> Tensor:
    """Return beta (E_S,pi[Q] - E_E[Q]) + E_mix[(y - Q)^2] / 4; [..., B] -> [...].

    mix = beta E + (1 - beta) S. This is the dual of chi-square, assuming E_S[discount V(s')] =
    E_E[discount V(s')].
    """
    error_expert, error = (y_expert - q_expert).square(), (y - q).square()
    bellman = beta * error_expert.mean(-1) + (1 - beta) * error.mean(-1)
    return beta * (q_policy.mean(-1) - q_expert.mean(-1)) + bellman / 4

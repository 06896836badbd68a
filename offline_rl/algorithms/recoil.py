"""ReCOIL: imitate an expert with the help of any other data, without rewards or a discriminator.

Matching the expert's visits is, in the dual, a Q that is high on the expert's pairs, low on the
others' and consistent with itself under the dynamics, so that other data that leads to the expert's
states is valued for it. V and the policy are XQL's, on the other data, in which experts may hide.

Paper:   Sikchi, Zheng, Zhang, Niekum, ICLR 2024, arXiv:2302.08560.
Differs: objective=bounded is the released code (chufanchen/ReCOIL:offline, a copy of the authors'),
         with the bounded targets of LS-IQ (arXiv:2303.00599); the paper's objective is `mixture`,
         whose coefficient `beta` the released learner reads nowhere. V's fit and the policy use
         the other data alone, as the code does. Its bound of 200 is 2 / (1 - discount) here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, gumbel_loss
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive, Share


@dataclass(frozen=True)
class Config(DualConfig):
    """Defaults: the authors' example, hopper-random."""

    objective: Literal["bounded", "mixture"] = "bounded"  # of Q: the released one, the paper's
    temperature: Positive = 5.0  # as XQL's; tuned by raising it until Q stays finite
    max_clip: NonNegative = 7.0  # (Q - V) / temperature above this is ignored
    reward_gap: Positive = 2.0  # `bounded` charges this for each step of the other data
    mixture: Share = 0.1  # share of the expert in `mixture`, beta in the paper
    batch_size: Count = 1024  # of the other data, and of the expert's

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unread("objective", "mixture" if self.objective == "bounded" else "reward_gap")


class ReCOIL(DualV):
    Config = Config
    needs: ClassVar = ("expert",)
    follows_card = False  # it sees no rewards

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    def fitted(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """Other pairs, then the expert's, whose part in V's loss is its scale alone."""
        expert = demonstrations(batch)
        q_expert = state.critic_target(expert.observations, expert.actions).amin(0)
        return torch.cat([batch.observations, expert.observations]), torch.cat([q, q_expert])

    def value_loss(self, u: Tensor) -> Tensor:
        """Gumbel regression on the first half of u, the other data's."""
        return gumbel_loss(u, self.cfg.temperature, self.cfg.max_clip)[: len(u) // 2].mean()

    def target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Without rewards; bounded: -gap a step, and the worst value, -bound, after the last."""
        y = batch.discount * next_value
        if self.cfg.objective == "mixture":
            return y
        return y - self.cfg.reward_gap - (self.cfg.discount - batch.discount) * self.bound

    @property
    def bound(self) -> float | Tensor:
        """The value of being paid `reward_gap` for ever."""
        return self.cfg.reward_gap / (1 - self.cfg.discount)

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """See `bounded_loss` and `mixture_loss`; sum over both critics."""
        s, expert = batch.observations, demonstrations(batch)
        q, q_expert = critic(s, batch.actions), critic(expert.observations, expert.actions)
        if self.cfg.objective == "bounded":
            return bounded_loss(q, q_expert, y, self.bound).sum()
        q_policy = critic(s, state.policy.explore(s, state.random))
        y_expert = expert.discount * state.value(expert.next_observations)
        return mixture_loss(q, q_expert, q_policy, y, y_expert, self.cfg.mixture).sum()


def demonstrations(batch: Batch) -> Batch:
    """The expert's transitions beside the batch's."""
    assert batch.expert is not None
    return batch.expert


def bounded_loss(q: Tensor, q_expert: Tensor, y: Tensor, bound: float | Tensor) -> Tensor:
    """E_E[(Q - bound)^2] / 2 + E_S[(Q - y)^2] / 2; [..., B] -> [...]."""
    return ((q_expert - bound).square() / 2).mean(-1) + ((q - y).square() / 2).mean(-1)


def mixture_loss(
    q: Tensor, q_expert: Tensor, q_policy: Tensor, y: Tensor, y_expert: Tensor, beta: float | Tensor
) -> Tensor:
    """beta (E_S,pi[Q] - E_E[Q]) + E_mix[(y - Q)^2] / 4, mix = beta E + (1 - beta) S; [..., B].

    The dual of chi-square, with E_S[discount V(s')] = E_E[discount V(s')] assumed.
    """
    error_expert, error = (y_expert - q_expert).square(), (y - q).square()
    bellman = beta * error_expert.mean(-1) + (1 - beta) * error.mean(-1)
    return beta * (q_policy.mean(-1) - q_expert.mean(-1)) + bellman / 4

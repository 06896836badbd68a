"""Implicit Q-learning (IQL): how good are the data's best actions, asked of the data alone.

V follows an upper expectile of Q over the actions in the data, Q bootstraps from V, and the policy
clones the data's actions weighted by exp(beta * advantage). No unseen action is ever valued.

Paper:   Kostrikov, Nair, Levine, ICLR 2022, arXiv:2110.06169. Equation numbers are the paper's;
         the order of the steps, eq. 6 and eq. 7 are in dual.py.
Differs: nowhere known from the authors' code (ikostrikov/implicit_q_learning:learner.py).
         `deterministic` is tinkoff-ai/CORL's (algorithms/offline/iql.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.config import Expectile
from offline_rl.algorithms.common.in_sample import DualConfig, DualV
from offline_rl.replay.batch import Batch
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import orthogonal_init


@dataclass(frozen=True)
class Config(DualConfig):
    """Defaults: the paper's for locomotion (appendix B)."""

    expectile: Expectile = 0.7  # 0.5 is the data's average action, towards 1 its best
    deterministic: bool = False  # a policy without deviation, trained by a weighted squared error


class IQL(DualV):
    Config = Config

    def value_loss(self, u: Tensor) -> Tensor:  # eq. 5
        """The expectile loss of Q - V."""
        return expectile_loss(u, self.cfg.expectile).mean()

    def actor(self) -> nn.Module:
        """A Gaussian, or tanh of a network."""
        if not self.cfg.deterministic:
            return super().actor()
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        init = orthogonal_init()
        return DeterministicActor(obs, act, cfg.hidden, dropout_rate=cfg.dropout, init=init)

    def policy_loss(self, policy: Network, state: State, batch: Batch, weight: Tensor) -> Tensor:
        """Eq. 7, or the squared error with the same weights."""
        if not self.cfg.deterministic:
            return super().policy_loss(policy, state, batch, weight)
        error = policy(batch.observations, state.random) - batch.actions
        return (weight * error.square().sum(-1)).mean()


def expectile_loss(u: Tensor, expectile: float | Tensor) -> Tensor:
    """|expectile - 1(u < 0)| * u**2, elementwise; eq. 4 without its expectation."""
    return (expectile - (u < 0).float()).abs() * u.square()

"""Implicit Q-learning (IQL): how good are the data's best actions, asked of the data alone.

V follows an upper expectile of Q over the actions in the data, Q bootstraps from V, and the policy
clones the data's actions weighted by exp(beta * advantage). No unseen action is ever valued.

Paper:   Kostrikov, Nair, Levine, ICLR 2022, arXiv:2110.06169. Equation numbers are the paper's;
         the order of the steps, eq. 6 and eq. 7 are in common/in_sample.py.
Differs: nowhere known from the authors' code (ikostrikov/implicit_q_learning:learner.py). Online it
         begins with a policy whose rate fell to 0 and learns at the whole rate again; there
         (train_finetune.py) it never fell; rewards are scaled as the data's, there raw in
         locomotion. `deterministic` is tinkoff-ai/CORL's (algorithms/offline/iql.py); online it
         explores with a deviation of 0.1, there 0.03. `num_critics`, `num_min_critics` and `squashed` are
         zhouzypaul/wsrl's (wsrl/agents/iql.py), as WSRL goes on from, but that its policy is not
         squashed there: algorithm.num_critics=10 algorithm.num_min_critics=2 algorithm.squashed=true
         algorithm.layer_norm=true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.config import Ensemble, Expectile, Switch
from offline_rl.algorithms.common.critics import Critic, drawn
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, expectile_loss
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count
from policies.heads.deterministic import DeterministicActor
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init


@dataclass(frozen=True)
class Config(DualConfig):
    """Defaults: the paper's for locomotion (appendix B)."""

    expectile: Expectile = 0.7  # 0.5 is the data's average action, toward 1 its best
    deterministic: Switch = False  # a policy without deviation, trained by a weighted squared error
    squashed: Switch = False  # CQL's policy, and layer normalization in it and in the critics
    num_critics: Ensemble = 2  # E
    num_min_critics: Count | None = None  # critics of which Q is the least; default: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.squashed and (self.deterministic or self.dropout):
            raise ValueError("squashed=true needs deterministic=false and dropout=0")


class IQL(DualV):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = schedule.OneBuffer
    online = True

    def least(self, state: State, q: Tensor) -> Tensor:
        """Of all critics, or of those drawn, [E, B] -> [B]."""
        return drawn(state, q, self.cfg.num_min_critics).amin(0)

    def value_loss(self, u: Tensor) -> Tensor:  # eq. 5
        """The expectile loss of Q - V."""
        return expectile_loss(u, self.cfg.expectile).mean()

    def actor(self) -> nn.Module:
        """A Gaussian, tanh of one, or tanh of a network."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options: dict[str, Any] = {"activation": cfg.activation, "init": orthogonal_init()}
        if cfg.squashed:
            head: dict[str, Any] = {"affine": (1.0, -1.0), "layer_norm": True}
            return TanhGaussianActor(obs, act, cfg.hidden, **head, **options)
        if cfg.deterministic:
            return DeterministicActor(obs, act, cfg.hidden, dropout_rate=cfg.dropout, **options)
        return super().actor()

    def critic(self) -> nn.Module:
        """As many as there are to be."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        shape: dict[str, Any] = {"ensemble": cfg.num_critics, "layer_norm": cfg.squashed}
        options: dict[str, Any] = {"activation": cfg.activation, "init": orthogonal_init()}
        return Critic(obs, act, cfg.hidden, **shape, **options)

    def policy_loss(self, policy: Network, state: State, batch: Batch, weight: Tensor) -> Tensor:
        """Eq. 7, or the squared error with the same weights."""
        if self.cfg.squashed:
            return -(weight * policy.log_prob(batch.observations, batch.actions)).mean()
        if not self.cfg.deterministic:
            return super().policy_loss(policy, state, batch, weight)
        error = policy(batch.observations, state.random) - batch.actions
        return (weight * error.square().sum(-1)).mean()

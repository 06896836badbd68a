"""Common parts of methods with a policy and an ensemble of critics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State
from offline_rl.algorithms.common.config import CriticConfig, Rate, Sizes
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.optim import Adam, Number
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import frozen
from policies.networks.mlp import Activation


@frozen
class ActorCriticConfig(CriticConfig):
    """Options of methods whose networks all have the same hidden layers."""

    actor_lr: Rate = 3e-4  # learning rate of the policy
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # activation between layers, of policy and critics


class ActorCritic(Algorithm):
    """Method with the networks `policy`, `critic` and `critic_target`. Define `actor`."""

    targets: ClassVar = {"critic_target": "critic"}

    @property
    def input_size(self) -> int:
        """Size of the networks' input from observations."""
        return self.spec.observation_dim

    def networks(self) -> dict[str, nn.Module]:
        return {"policy": self.actor(), "critic": self.critic()}

    def actor(self) -> nn.Module:
        """Return the policy network."""
        raise NotImplementedError

    def critic(self) -> nn.Module:
        """Return the critics."""
        return self.build(Critic)

    def build(
        self, kind: Callable[..., nn.Module], hidden: Sequence[int] | None = None, **options: Any
    ) -> nn.Module:
        """Return a network of observations and actions.

        Default: `hidden` and `activation` of the config.
        """
        obs, act, cfg = self.input_size, self.spec.action_dim, self.cfg
        if hasattr(cfg, "activation"):
            options = {"activation": cfg.activation} | options
        return kind(obs, act, cfg.hidden if hidden is None else hidden, **options)

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": self.adam(self.cfg.actor_lr), "critic": self.adam(self.cfg.critic_lr)}

    def adam(self, lr: Number) -> Adam:
        """Return the optimizer for a learning rate of the config."""
        return Adam(lr)


class CloningFirst(ActorCritic):
    """Method whose policy is first trained by imitation, for `bc_updates` updates.

    A subclass defines `learn`.
    """

    @property
    def phases(self) -> Mapping[str, int]:
        return {"clone": self.cfg.bc_updates} if self.cfg.bc_updates else {}

    def clone(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Preliminary phase: train the policy by imitation, and the other networks as usual."""
        return self.learn(state, batch, clone=True)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        return self.learn(state, batch, clone=False)

    def learn(self, state: State, batch: Batch, *, clone: bool) -> tuple[State, Metrics]:
        """Update all networks; with `clone`, the policy by imitation."""
        raise NotImplementedError

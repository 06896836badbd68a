"""The head of a deterministic MLP policy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from policies.heads.head import Actor
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.init import Init, torch_init
from policies.networks.mlp import MLP, Activation


class DeterministicActor(Actor):
    """The deterministic action tanh(MLP(observation))."""

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        noise: float = 0.1,
        dropout_rate: float = 0.0,
        init: Init = torch_init,
    ) -> None:
        """Create the head.

        noise: standard deviation of the exploration noise.
        dropout_rate: probability of dropping a hidden unit, in training only.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"activation": activation}
        self.trunk = MLP(observations, actions, hidden, activation=activation, init=init)
        self.noise, self.dropout_rate = noise, dropout_rate

    def forward(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return the actions [..., A] for observations [..., O].

        random: source of random numbers for dropout, in training only.
        """
        return self.trunk(observations, hidden_dropout(self.dropout_rate, random)).tanh()

    def act(self, observations: Tensor) -> Tensor:
        """See `Actor.act`."""
        return self(observations)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return the action plus Gaussian noise, clipped to [-1, 1]."""
        actions = self(observations)
        return (actions + self.noise * random.normal(actions.shape)).clamp(-1, 1)

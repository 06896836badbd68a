"""Heads of deterministic policies: an MLP, and polynomials of the observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.heads.head import Actor
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.init import Init, torch_init
from policies.networks.mlp import MLP, Activation
from policies.networks.polynomial import Library, format_sum


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


class SparseActor(Actor):
    """Actions that are sums of polynomial terms of the observation, clipped to [-1, 1]."""

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        degree: int = 3,
        interactions: bool = True,
        constant: bool = True,
    ) -> None:
        """Create the head; all coefficients are 0. The other arguments are those of `Library`."""
        super().__init__()
        options = {"degree": degree, "interactions": interactions, "constant": constant}
        self.arguments = {"observations": observations, "actions": actions, **options}
        self.library = Library(observations, products=False, **options)  # type: ignore[arg-type]
        self.coefficients = nn.Parameter(torch.zeros(len(self.library.terms), actions))

    def forward(self, observations: Tensor) -> Tensor:
        """Return the sums [..., A], not clipped, for observations [..., O]."""
        return self.library(observations) @ self.coefficients

    def act(self, observations: Tensor) -> Tensor:
        """See `Actor.act`."""
        return self(observations).clamp(-1, 1)

    def describe(
        self, weights: Any, observation_names: Sequence[str], action_names: Sequence[str]
    ) -> dict[str, Any]:
        """Return the policy as formulas, one per action."""
        names = self.library.names(observation_names)
        sums = (format_sum(c, names) for c in weights["coefficients"].T.tolist())
        pairs = zip(action_names, sums, strict=True)
        return {"formula": [f"{action} = clip({terms}, -1, 1)" for action, terms in pairs]}

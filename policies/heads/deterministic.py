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
    """Sums of polynomial terms of the observation, mapped to [-1, 1] by clipping or tanh."""

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        degree: int = 3,
        interactions: bool = True,
        constant: bool = True,
        tanh: bool = False,
    ) -> None:
        """Create the head; all coefficients are 0.

        tanh: apply tanh to the sums instead of clipping. Other arguments: see `Library`.
        """
        super().__init__()
        options = {"degree": degree, "interactions": interactions, "constant": constant}
        self.arguments = {"observations": observations, "actions": actions, **options}
        self.arguments |= {"tanh": tanh}
        self.library = Library(observations, products=False, **options)  # type: ignore[arg-type]
        self.coefficients = nn.Parameter(torch.zeros(len(self.library.terms), actions))
        self.tanh = tanh

    def forward(self, observations: Tensor) -> Tensor:
        """Return the sums [..., A] for observations [..., O]."""
        return self.library(observations) @ self.coefficients

    def squash(self, sums: Tensor) -> Tensor:
        """Return the actions [..., A] for sums [..., A]."""
        return sums.tanh() if self.tanh else sums.clamp(-1, 1)

    def act(self, observations: Tensor) -> Tensor:
        """See `Actor.act`."""
        return self.squash(self(observations))

    def describe(
        self, weights: Any, observation_names: Sequence[str], action_names: Sequence[str]
    ) -> dict[str, Any]:
        """Return the policy as formulas, one per action."""
        names = self.library.names(observation_names)
        sums = (format_sum(c, names) for c in weights["coefficients"].T.tolist())
        squash = "tanh({})" if self.tanh else "clip({}, -1, 1)"
        pairs = zip(action_names, sums, strict=True)
        return {"formula": [f"{action} = {squash.format(terms)}" for action, terms in pairs]}

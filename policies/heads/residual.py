"""The head of a residual policy, which adds to the action of a base policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.heads.head import Actor
from policies.networks.dropout import Random
from policies.networks.init import small_output_init
from policies.networks.mlp import MLP, Activation


class ResidualActor(Actor):
    """The action clip(base + scale * tanh(MLP), -1, 1).

    base is the action of the base policy, the last A values of the observation. The output layer is
    initialized to zero. Before training, the actions therefore equal the actions of the base policy
    bit for bit.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        scale: float = 0.1,
        activation: Activation = "relu",
        layer_norm: bool = True,
        noise: float = 0.05,
    ) -> None:
        """Create the head.

        scale: maximum absolute residual action. It is a parameter, so that seeds that are trained
        together can have different values. It is not trained.
        noise: standard deviation of the exploration noise.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"activation": activation, "layer_norm": layer_norm}
        init = small_output_init(0.0)
        options = {"activation": activation, "layer_norm": layer_norm}
        self.trunk = MLP(observations, actions, hidden, init=init, **options)  # type: ignore[arg-type]
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.actions, self.noise = actions, noise

    def residual_action(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return the residual actions [..., A], in [-scale, scale], for observations [..., O]."""
        return self.scale.detach() * self.trunk(observations).tanh()

    def add_to_base(self, observations: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return base action + residual action + noise, [..., A], clipped to [-1, 1]."""
        base = observations[..., -self.actions :]
        return (base + (self.residual_action(observations) + noise)).clamp(-1, 1)

    def forward(
        self, observations: Tensor, random: Random | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        """See `add_to_base`."""
        return self.add_to_base(observations, noise)

    def act(self, observations: Tensor) -> Tensor:
        """See `Actor.act`."""
        return self.add_to_base(observations)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return an action with Gaussian noise. `scale` does not affect the noise."""
        shape = (*observations.shape[:-1], self.actions)
        return self.add_to_base(observations, self.noise * random.normal(shape))

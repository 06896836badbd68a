"""What is added to another policy's action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.init import small_output_init
from policies.networks.mlp import MLP, Activation


class ResidualActor(nn.Module):
    """clip(base + scale * tanh(MLP), -1, 1), where base is the last A numbers of what is observed.

    The output layer begins at zero: until it has learned, the actions are the base's, to the bit.
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
        """scale: the largest correction.  noise: deviation of the exploration's.

        The scale is kept among the parameters, where each stacked seed has its own; nothing
        trains it.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"activation": activation, "layer_norm": layer_norm}
        init = small_output_init(0.0)
        options = {"activation": activation, "layer_norm": layer_norm}
        self.trunk = MLP(observations, actions, hidden, init=init, **options)  # type: ignore[arg-type]
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.actions, self.noise = actions, noise

    def correction(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """[..., O] -> [..., A], within the scale."""
        return self.scale.detach() * self.trunk(observations).tanh()

    def added(self, observations: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """The base's action, its correction and some noise, clipped; [..., A]."""
        base = observations[..., -self.actions :]
        return (base + (self.correction(observations) + noise)).clamp(-1, 1)

    def forward(
        self, observations: Tensor, random: Random | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        """`added`: [..., O] -> [..., A]."""
        return self.added(observations, noise)

    def act(self, observations: Tensor) -> Tensor:
        """See `heads.head`."""
        return self.added(observations)

    def explore(self, observations: Tensor, random: Random) -> Tensor:
        """The action with Gaussian noise on the correction, as large whatever the scale is."""
        shape = (*observations.shape[:-1], self.actions)
        return self.added(observations, self.noise * random.normal(shape))

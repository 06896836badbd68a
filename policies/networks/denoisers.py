"""Networks that denoise chunks of actions, by name.

Each maps x [R, T, A], times [R, times] and features [R, n_obs_steps, F] to [R, T, A].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from policies.networks.mlp import MLP, Activation
from policies.networks.time import TimeEmbedding
from policies.networks.transformer import ChunkTransformer
from policies.networks.unet import UNet

Kind = Literal["unet", "transformer", "mlp"]


class DenoisingMLP(nn.Module):
    """An MLP on the concatenated chunk, times and observation history."""

    def __init__(
        self,
        actions: int,
        horizon: int,
        observations: int,
        *,
        hidden: Sequence[int] = (512, 512, 512),
        activation: Activation = "mish",
        time_size: int = 32,
        times: int = 1,
    ) -> None:
        """Create the network.

        observations: size of the flattened observation history.
        time_size: size of the embedding of each of `times` times.
        """
        super().__init__()
        self.embed_time = TimeEmbedding(time_size)
        inputs = horizon * actions + times * time_size + observations
        self.trunk = MLP(inputs, horizon * actions, hidden, activation=activation)

    def forward(
        self, x: Tensor, times: Tensor, features: Tensor, drop: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """See the module's docstring. drop: dropout of the hidden units."""
        parts = [x.flatten(-2), self.embed_time(times).flatten(-2), features.flatten(-2)]
        return self.trunk(torch.cat(parts, -1), drop).unflatten(-1, x.shape[-2:])


def build_denoiser(
    kind: Kind, actions: int, horizon: int, n_obs_steps: int, features: int, **options: Any
) -> nn.Module:
    """Build the network `kind`.

    features: size of one encoded observation.  options: arguments of its class.
    """
    if kind == "transformer":
        return ChunkTransformer(actions, horizon, n_obs_steps, features, **options)
    network = UNet if kind == "unet" else DenoisingMLP
    return network(actions, horizon, n_obs_steps * features, **options)

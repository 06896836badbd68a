"""Networks that denoise chunks of actions, and a function that builds them by name.

Each network maps noisy chunks x [R, T, A], time inputs [R, I] and observation features
[R, n_obs_steps, F] to outputs [R, T, A]. R is the number of rows, T is the horizon. I is the number
of time inputs per chunk, which the constructor argument `times` sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from policies.heads.schedules import FLOW_TIME
from policies.networks.init import lecun_init, xavier_init
from policies.networks.mlp import ACTIVATIONS, MLP, Activation, LayerNorm
from policies.networks.time import TimeEmbedding
from policies.networks.transformer import ChunkTransformer
from policies.networks.unet import UNet

Kind = Literal["unet", "transformer", "mlp", "plain", "ln_resnet"]


class DenoisingMLP(nn.Module):
    """An MLP on the concatenated chunk, time embeddings and observation history."""

    def __init__(
        self,
        actions: int,
        horizon: int,
        observations: int,
        *,
        hidden: Sequence[int] = (512, 512, 512),
        activation: Activation = "mish",
        time_size: int = 32,
        time_hidden: int | None = None,
        times: int = 1,
    ) -> None:
        """Create the network.

        observations: size of the flattened observation history.
        time_size: size of the embedding of each time input.  times: number of time inputs.
        time_hidden: hidden units of the time embedding; default 4 * time_size.
        """
        super().__init__()
        self.embed_time = TimeEmbedding(time_size, time_hidden)
        inputs = horizon * actions + times * time_size + observations
        self.trunk = MLP(inputs, horizon * actions, hidden, activation=activation)

    def forward(
        self, x: Tensor, times: Tensor, features: Tensor, drop: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the network's output, see the module's docstring.

        drop: dropout function of the hidden units.
        """
        parts = [x.flatten(-2), self.embed_time(times).flatten(-2), features.flatten(-2)]
        return self.trunk(torch.cat(parts, -1), drop).unflatten(-1, x.shape[-2:])


class PlainMLP(nn.Module):
    """An MLP on the concatenated observation history, chunk and flow time in [0, 1].

    The network of FQL's flow (seohongpark/fql:utils/networks.py).
    """

    def __init__(
        self,
        actions: int,
        horizon: int,
        observations: int,
        *,
        hidden: Sequence[int] = (512, 512, 512, 512),
        activation: Activation = "gelu_tanh",
        times: int = 1,
    ) -> None:
        """Create the network, with Xavier's initialization.

        observations: size of the flattened observation history.  times: number of time inputs.
        """
        super().__init__()
        sizes = observations + horizon * actions + times, horizon * actions
        self.trunk = MLP(*sizes, hidden, activation=activation, init=xavier_init)

    def forward(
        self, x: Tensor, times: Tensor, features: Tensor, drop: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the network's output; see `DenoisingMLP.forward`."""
        parts = [features.flatten(-2), x.flatten(-2), times / FLOW_TIME]
        return self.trunk(torch.cat(parts, -1), drop).unflatten(-1, x.shape[-2:])


class ResidualBlock(nn.Module):
    """A residual block, x + MLP(LayerNorm(x))."""

    def __init__(self, width: int, activation: Activation) -> None:
        super().__init__()
        self.norm = LayerNorm(width, eps=1e-6)
        options: dict[str, Any] = {"activation": activation, "init": lecun_init}
        self.perceptron = MLP(width, width, (4 * width,), inner=True, **options)

    def forward(self, x: Tensor, drop: Callable[[Tensor], Tensor]) -> Tensor:
        """Return [R, width] for x [R, width].  drop: dropout function of the MLP's inputs."""
        output: Tensor = x + self.perceptron(self.norm(drop(x)))
        return output


class LayerNormResNet(nn.Module):
    """Residual blocks of MLPs, on the concatenated chunk, observation history and time features.

    The network of IDQL (Hansen-Estruch et al., arXiv:2304.10573). Its time features are an MLP of
    cosines and sines of the times, with learned frequencies.
    """

    def __init__(
        self,
        actions: int,
        horizon: int,
        observations: int,
        *,
        width: int = 256,
        blocks: int = 3,
        activation: Activation = "mish",
        time_size: int = 64,
        times: int = 1,
    ) -> None:
        """Create the network.

        observations: size of the flattened observation history.
        width: units of each block, whose hidden layer has 4 * width.
        time_size: number of cosines and sines.  times: number of time inputs.
        """
        super().__init__()
        if time_size % 2:
            raise ValueError(f"time_size={time_size} of the time features must be even")
        size, options = horizon * actions, {"activation": activation, "init": xavier_init}
        self.frequencies = nn.Parameter(0.2 * torch.randn(times, time_size // 2))
        features = 2 * time_size
        self.embed_time = MLP(time_size, features, (features,), inner=True, **options)  # type: ignore[arg-type]
        self.first = MLP(size + observations + features, width, (), inner=True, init=xavier_init)
        self.blocks = nn.ModuleList(ResidualBlock(width, activation) for _ in range(blocks))
        self.last, self.activation = MLP(width, size, (), init=xavier_init), activation

    def forward(
        self, x: Tensor, times: Tensor, features: Tensor, drop: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the network's output; see `DenoisingMLP.forward`."""
        waves = 2 * math.pi * times @ self.frequencies
        time = self.embed_time(torch.cat([waves.cos(), waves.sin()], -1))
        hidden = self.first(torch.cat([x.flatten(-2), features.flatten(-2), time], -1))
        for block in self.blocks:
            hidden = block(hidden, drop)
        output: Tensor = self.last(ACTIVATIONS[self.activation](hidden))
        return output.unflatten(-1, x.shape[-2:])


def build_denoiser(
    kind: Kind, actions: int, horizon: int, n_obs_steps: int, features: int, **options: Any
) -> nn.Module:
    """Build the denoising network called `kind`.

    features: size of one encoded observation.  options: arguments of the network's class.
    """
    if kind == "transformer":
        return ChunkTransformer(actions, horizon, n_obs_steps, features, **options)
    networks = {"unet": UNet, "mlp": DenoisingMLP, "plain": PlainMLP, "ln_resnet": LayerNormResNet}
    return networks[kind](actions, horizon, n_obs_steps * features, **options)

"""The 1-D U-Net of Diffusion Policy, which denoises chunks (Chi et al., arXiv:2303.04137).

Shapes: R rows, L steps, C channels. Channels come last, and convolutions are written as matrix
multiplications. `offline_rl.engine` can therefore stack them over seeds and set their dtype, as for
linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, mish, pad

from policies.networks.init import Init, torch_init
from policies.networks.mlp import MLP
from policies.networks.time import TimeEmbedding

Drop = Callable[[Tensor], Tensor]


class Conv(nn.Module):
    """A convolution along the steps of a chunk."""

    compute_dtype = torch.float32

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, init: Init = torch_init
    ) -> None:
        """Create the convolution.

        size: kernel size, odd. Each side gets zero padding of size // 2.
        """
        super().__init__()
        self.size, self.stride = size, stride
        self.weight = nn.Parameter(torch.empty(size * inputs, outputs))  # earliest step first
        self.bias = nn.Parameter(torch.empty(outputs))
        init(self.weight, self.bias, size * inputs, False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, L / stride, outputs] for x [R, L, inputs]."""
        edge, dtype = self.size // 2, self.compute_dtype
        windows = gather_neighbors(x, range(-edge, edge + 1), self.stride)
        return (windows.to(dtype) @ self.weight.to(dtype)).float() + self.bias


class Upsample(nn.Module):
    """A transposed convolution that doubles the steps: kernel size 4, stride 2, padding 1."""

    compute_dtype = torch.float32

    def __init__(self, channels: int) -> None:
        super().__init__()
        # output step 2 k depends on input steps k - 1 and k; step 2 k + 1 depends on k and k + 1
        self.even = nn.Parameter(torch.empty(2 * channels, channels))
        self.odd = nn.Parameter(torch.empty(2 * channels, channels))
        self.bias = nn.Parameter(torch.empty(channels))
        for weight in (self.even, self.odd):
            torch_init(weight, self.bias, 4 * channels, False)  # torch's fan_in of this layer

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, 2 L, C] for x [R, L, C]."""
        dtype, halves = self.compute_dtype, (((-1, 0), self.even), ((0, 1), self.odd))
        outputs = [
            (gather_neighbors(x, offsets).to(dtype) @ w.to(dtype)).float() for offsets, w in halves
        ]
        return (torch.stack(outputs, -2) + self.bias).flatten(-3, -2)


class GroupNorm(nn.Module):
    """Group normalization over steps and each group of channels, with torch's default eps."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"{channels} channels are not a multiple of {groups} groups")
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [R, L, C]."""
        grouped = x.unflatten(-1, (self.groups, -1)).transpose(-3, -2)  # [R, G, L, C / G]
        normal = layer_norm(grouped, grouped.shape[-2:]).transpose(-3, -2).flatten(-2)
        return normal * self.weight + self.bias


class ConvBlock(nn.Module):
    """A convolution, group normalization and Mish."""

    def __init__(self, inputs: int, outputs: int, size: int, groups: int) -> None:
        super().__init__()
        self.conv, self.norm = Conv(inputs, outputs, size), GroupNorm(outputs, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, L, outputs] for x [R, L, inputs]."""
        return mish(self.norm(self.conv(x)))


class FilmBlock(nn.Module):
    """Two convolution blocks and a skip connection, with FiLM conditioning in between.

    FiLM (Perez et al., arXiv:1709.07871) computes scale * x + shift. Scale and shift are linear
    maps of Mish(condition). The scale has no offset of 1.
    """

    def __init__(self, inputs: int, outputs: int, condition: int, size: int, groups: int) -> None:
        super().__init__()
        self.first = ConvBlock(inputs, outputs, size, groups)
        self.film = MLP(condition, 2 * outputs, (), inner=True)
        self.second = ConvBlock(outputs, outputs, size, groups)
        self.skip = MLP(inputs, outputs, (), inner=True) if inputs != outputs else None

    def forward(self, x: Tensor, condition: Tensor, drop: Drop) -> Tensor:
        """Return [R, L, outputs] for x [R, L, inputs] and condition [R, condition].

        drop: dropout function, in training only.
        """
        scale, shift = self.film(mish(condition))[..., None, :].chunk(2, -1)
        inner = self.second(scale * drop(self.first(x)) + shift)
        return drop(inner + (x if self.skip is None else self.skip(x)))


class Level(nn.Module):
    """Two FiLM blocks, one level of the U-Net."""

    def __init__(self, inputs: int, outputs: int, condition: int, size: int, groups: int) -> None:
        super().__init__()
        self.first = FilmBlock(inputs, outputs, condition, size, groups)
        self.second = FilmBlock(outputs, outputs, condition, size, groups)

    def forward(self, x: Tensor, condition: Tensor, drop: Drop) -> Tensor:
        """See `FilmBlock`."""
        return self.second(self.first(x, condition, drop), condition, drop)


class UNet(nn.Module):
    """A U-Net over the steps of a chunk.

    The down path has one level per entry of `widths`. The entry is the level's number of channels.
    Between two levels, the number of steps is halved. The up path reverses this, with skip
    connections from the down path. As in the authors' code, the output of the first level has no
    skip connection.
    """

    def __init__(
        self,
        actions: int,
        horizon: int,
        observations: int,
        *,
        widths: Sequence[int] = (256, 512, 1024),
        time_size: int = 256,
        times: int = 1,
        size: int = 5,
        groups: int = 8,
    ) -> None:
        """Create the network.

        horizon: number of steps in a chunk, a multiple of 2 ** (levels - 1).
        observations: size of the flattened observation history.
        time_size: size of the embedding of each time input.  times: number of time inputs.
        size: kernel size of the convolutions.
        """
        super().__init__()
        if horizon % 2 ** (len(widths) - 1):
            raise ValueError(
                f"horizon={horizon} is not a multiple of {2 ** (len(widths) - 1)}, which a U-Net "
                f"with {len(widths)} levels requires"
            )
        condition = times * time_size + observations

        def make_level(inputs: int, outputs: int) -> Level:
            return Level(inputs, outputs, condition, size, groups)

        self.embed_time = TimeEmbedding(time_size)
        down_widths = pairwise([actions, *widths])
        self.down = nn.ModuleList(make_level(inputs, outputs) for inputs, outputs in down_widths)
        # the stride 2 halves the number of steps
        self.narrow = nn.ModuleList(Conv(width, width, 3, 2) for width in widths[:-1])
        self.middle = make_level(widths[-1], widths[-1])
        up_widths = [(inputs, outputs) for outputs, inputs in pairwise(widths)][::-1]
        # 2 * inputs: the skip connection is concatenated to the input
        self.up = nn.ModuleList(make_level(2 * inputs, outputs) for inputs, outputs in up_widths)
        self.widen = nn.ModuleList(Upsample(outputs) for _, outputs in up_widths)
        self.last = ConvBlock(widths[0], widths[0], size, groups)
        self.answer = MLP(widths[0], actions, ())

    def forward(self, x: Tensor, times: Tensor, features: Tensor, drop: Drop) -> Tensor:
        """Return [R, L, actions] for x [R, L, actions].

        times: [R, number of time inputs].  features: [R, n_obs_steps, F].
        """
        condition = torch.cat([self.embed_time(times).flatten(-2), features.flatten(-2)], -1)
        skips = []
        for k, level in enumerate(self.down):
            x = level(x, condition, drop)
            skips.append(x)
            x = self.narrow[k](x) if k < len(self.narrow) else x
        x = self.middle(x, condition, drop)
        for level, widen in zip(self.up, self.widen, strict=True):
            x = widen(level(torch.cat([x, skips.pop()], -1), condition, drop))
        return self.answer(self.last(x))


def gather_neighbors(x: Tensor, offsets: Sequence[int], stride: int = 1) -> Tensor:
    """Concatenate the steps at `offsets` from every `stride`-th step. Steps outside x are zero.

    x: [R, L, C].  Returns [R, L / stride, len(offsets) * C].
    """
    before, after = max(0, -min(offsets)), max(0, *offsets)
    padded, steps = pad(x, (0, 0, before, after)), x.shape[-2]
    parts = [padded[..., before + k : before + k + steps : stride, :] for k in offsets]
    return torch.cat(parts, -1)

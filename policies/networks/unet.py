"""A U-Net along time: Diffusion Policy's network for chunks (Chi et al., arXiv:2303.04137).

Shapes: R rows, L steps, C channels. Channels come last and convolutions are products of matrices:
so they are stacked over seeds and take the engine's precision like any linear layer.
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
    """A convolution along time: `size` neighbors of every `stride`-th step."""

    compute_dtype = torch.float32

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, init: Init = torch_init
    ) -> None:
        """size: odd; edges are padded with zeros, size // 2 on each side."""
        super().__init__()
        self.size, self.stride = size, stride
        self.weight = nn.Parameter(torch.empty(size * inputs, outputs))  # earliest neighbor first
        self.bias = nn.Parameter(torch.empty(outputs))
        init(self.weight, self.bias, size * inputs, False)

    def forward(self, x: Tensor) -> Tensor:
        """[R, L, inputs] -> [R, L / stride, outputs]."""
        edge, dtype = self.size // 2, self.compute_dtype
        near = shifted(x, range(-edge, edge + 1), self.stride)
        return (near.to(dtype) @ self.weight.to(dtype)).float() + self.bias


class Upsample(nn.Module):
    """Twice as many steps: a transposed convolution of size 4, stride 2 and padding 1."""

    compute_dtype = torch.float32

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.even = nn.Parameter(torch.empty(2 * channels, channels))  # of the step before and its
        self.odd = nn.Parameter(torch.empty(2 * channels, channels))  # own; its own and the next
        self.bias = nn.Parameter(torch.empty(channels))
        for weight in (self.even, self.odd):
            torch_init(weight, self.bias, 4 * channels, False)  # as torch counts it

    def forward(self, x: Tensor) -> Tensor:
        """[R, L, C] -> [R, 2 L, C]."""
        dtype, halves = self.compute_dtype, (((-1, 0), self.even), ((0, 1), self.odd))
        made = [(shifted(x, near).to(dtype) @ w.to(dtype)).float() for near, w in halves]
        return (torch.stack(made, -2) + self.bias).flatten(-3, -2)


class GroupNorm(nn.Module):
    """Normalized over time and each of `groups` of channels; eps is torch's."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"{channels} channels do not divide into {groups} groups")
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[R, L, C] -> the same."""
        grouped = x.unflatten(-1, (self.groups, -1)).transpose(-3, -2)  # [R, G, L, C / G]
        normal = layer_norm(grouped, grouped.shape[-2:]).transpose(-3, -2).flatten(-2)
        return normal * self.weight + self.bias


class ConvBlock(nn.Module):
    """Convolution, normalization, Mish."""

    def __init__(self, inputs: int, outputs: int, size: int, groups: int) -> None:
        super().__init__()
        self.conv, self.norm = Conv(inputs, outputs, size), GroupNorm(outputs, groups)

    def forward(self, x: Tensor) -> Tensor:
        """[R, L, inputs] -> [R, L, outputs]."""
        return mish(self.norm(self.conv(x)))


class FilmBlock(nn.Module):
    """Two convolutions beside a skip; between them what is known scales and shifts each channel.

    FiLM (Perez et al., arXiv:1709.07871): scale * x + shift, both a linear map of Mish(known); the
    scale is not 1 plus it.
    """

    def __init__(self, inputs: int, outputs: int, known: int, size: int, groups: int) -> None:
        super().__init__()
        self.first = ConvBlock(inputs, outputs, size, groups)
        self.film = MLP(known, 2 * outputs, (), inner=True)
        self.second = ConvBlock(outputs, outputs, size, groups)
        self.skip = MLP(inputs, outputs, (), inner=True) if inputs != outputs else None

    def forward(self, x: Tensor, known: Tensor, drop: Drop) -> Tensor:
        """x: [R, L, inputs]. known: [R, known]. drop: in training. -> [R, L, outputs]."""
        scale, shift = self.film(mish(known))[..., None, :].chunk(2, -1)
        inner = self.second(scale * drop(self.first(x)) + shift)
        return drop(inner + (x if self.skip is None else self.skip(x)))


class Level(nn.Module):
    """Two blocks with FiLM."""

    def __init__(self, inputs: int, outputs: int, known: int, size: int, groups: int) -> None:
        super().__init__()
        self.first = FilmBlock(inputs, outputs, known, size, groups)
        self.second = FilmBlock(outputs, outputs, known, size, groups)

    def forward(self, x: Tensor, known: Tensor, drop: Drop) -> Tensor:
        """See `FilmBlock`."""
        return self.second(self.first(x, known, drop), known, drop)


class UNet(nn.Module):
    """Down through `widths`, halving the steps between them, and up again beside what was there.

    As the authors' code has it, the widest and the first level differ: the first one's own steps
    come back by no skip.
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
        """window: steps, a multiple of 2 ** (levels - 1).  observations: numbers in a history.

        time_size: of the embedding of each of `times` times.  size: of convolutions.
        """
        super().__init__()
        if horizon % 2 ** (len(widths) - 1):
            raise ValueError(
                f"a U-Net of {len(widths)} levels halves its window {len(widths) - 1} times: "
                f"horizon={horizon} is no multiple of {2 ** (len(widths) - 1)}"
            )
        known = times * time_size + observations

        def level(inputs: int, outputs: int) -> Level:
            return Level(inputs, outputs, known, size, groups)

        self.embed_time = TimeEmbedding(time_size)
        self.down = nn.ModuleList(level(a, b) for a, b in pairwise([actions, *widths]))
        self.narrow = nn.ModuleList(Conv(width, width, 3, 2) for width in widths[:-1])
        self.middle = level(widths[-1], widths[-1])
        upwards = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(level(2 * wide, narrow) for narrow, wide in upwards)
        self.widen = nn.ModuleList(Upsample(narrow) for narrow, _ in upwards)
        self.last = ConvBlock(widths[0], widths[0], size, groups)
        self.answer = MLP(widths[0], actions, ())

    def forward(self, x: Tensor, times: Tensor, seen: Tensor, drop: Drop) -> Tensor:
        """x: [R, L, actions]. times: [R, times]. seen: [R, n_obs_steps, F]. -> [R, L, actions]."""
        known = torch.cat([self.embed_time(times).flatten(-2), seen.flatten(-2)], -1)
        skips = []
        for place, level in enumerate(self.down):
            x = level(x, known, drop)
            skips.append(x)
            x = self.narrow[place](x) if place < len(self.narrow) else x
        x = self.middle(x, known, drop)
        for level, widen in zip(self.up, self.widen, strict=True):
            x = widen(level(torch.cat([x, skips.pop()], -1), known, drop))
        return self.answer(self.last(x))


def shifted(x: Tensor, offsets: Sequence[int], stride: int = 1) -> Tensor:
    """Beside every `stride`-th step those at `offsets` from it, zero outside.

    [R, L, C] -> [R, L / stride, offsets C].
    """
    before, after = max(0, -min(offsets)), max(0, *offsets)
    padded, steps = pad(x, (0, 0, before, after)), x.shape[-2]
    parts = [padded[..., before + k : before + k + steps : stride, :] for k in offsets]
    return torch.cat(parts, -1)

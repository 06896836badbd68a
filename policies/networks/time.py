"""The time of a diffusion or a flow as a network sees it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from policies.networks.mlp import MLP


def sinusoids(times: Tensor, size: int) -> Tensor:
    """[...] -> sines, then cosines, [..., size], of wavelengths from 2 pi to 20,000 pi."""
    half = size // 2
    place = torch.arange(half, device=times.device)
    waves = times[..., None] * (place * (-math.log(10_000) / (half - 1))).exp()
    return torch.cat([waves.sin(), waves.cos()], -1)


class TimeEmbedding(nn.Module):
    """Sinusoids and a perceptron of four times their size."""

    def __init__(self, size: int) -> None:
        """size: even, at least 4."""
        super().__init__()
        if size % 2 or size < 4:
            raise ValueError(f"a time is embedded in an even number of at least 4, found {size}")
        self.size = size
        self.perceptron = MLP(size, size, (4 * size,), activation="mish", inner=True)

    def forward(self, times: Tensor) -> Tensor:
        """[...] -> [..., size]."""
        return self.perceptron(sinusoids(times, self.size))

"""Embeddings of the time of a diffusion or a flow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from policies.networks.mlp import MLP


def sinusoids(times: Tensor, size: int) -> Tensor:
    """Return sines, then cosines, [..., size], of times [...].

    The wavelengths are from 2 pi to 20,000 pi.
    """
    half = size // 2
    index = torch.arange(half, device=times.device)
    waves = times[..., None] * (index * (-math.log(10_000) / (half - 1))).exp()
    return torch.cat([waves.sin(), waves.cos()], -1)


class TimeEmbedding(nn.Module):
    """Sinusoids and an MLP with four times as many hidden units."""

    def __init__(self, size: int) -> None:
        """Create the embedding. size: even, at least 4."""
        super().__init__()
        if size % 2 or size < 4:
            raise ValueError(
                f"the size of a time embedding must be even and at least 4, not {size}"
            )
        self.size = size
        self.perceptron = MLP(size, size, (4 * size,), activation="mish", inner=True)

    def forward(self, times: Tensor) -> Tensor:
        """Return the embeddings [..., size] of times [...]."""
        return self.perceptron(sinusoids(times, self.size))

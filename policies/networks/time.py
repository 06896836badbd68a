"""Embeddings of the time input of diffusion and flow networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from policies.networks.mlp import MLP


def sinusoids(times: Tensor, size: int) -> Tensor:
    """Return sinusoidal embeddings [..., size] of times [...]: first the sines, then the cosines.

    The wavelengths range from 2 pi to 20,000 pi.
    """
    half = size // 2
    index = torch.arange(half, device=times.device)
    waves = times[..., None] * (index * (-math.log(10_000) / (half - 1))).exp()
    return torch.cat([waves.sin(), waves.cos()], -1)


class TimeEmbedding(nn.Module):
    """Sinusoidal embeddings, followed by an MLP with one hidden layer."""

    def __init__(self, size: int, hidden: int | None = None) -> None:
        """Create the embedding.

        size: an even number of at least 4.  hidden: units of the hidden layer; default 4 * size.
        """
        super().__init__()
        if size % 2 or size < 4:
            raise ValueError(f"size={size} of a time embedding must be even and at least 4")
        self.size = size
        self.perceptron = MLP(size, size, (hidden or 4 * size,), activation="mish", inner=True)

    def forward(self, times: Tensor) -> Tensor:
        """Return the embeddings [..., size] of times [...]."""
        return self.perceptron(sinusoids(times, self.size))

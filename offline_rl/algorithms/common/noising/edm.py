"""EDM noise levels and losses (Karras et al., arXiv:2206.00364), as Consistency Policy uses them.

Shapes: K noise levels, B chunk, T step, A action.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.schedules import EDM_TIME, SIGMA_DATA, boundary_coefficients, sigma

Distance = Literal["norm", "elements"]
BINS = 80  # noise levels of consistency training


def expand_chunk(values: Tensor) -> Tensor:
    """Append two dimensions, [...] -> [..., 1, 1]."""
    return values[..., None, None]


def sample_std(random: Random, shape: tuple[int, ...]) -> Tensor:
    """Sample standard deviations whose logarithm has mean -1.2 and standard deviation 1.2 (EDM).

    shape: [K, B].
    """
    return (1.2 * random.normal(shape, groups=shape[0]) - 1.2).exp()


def sample_consistency_std(random: Random, shape: tuple[int, ...]) -> Tensor:
    """Sample half from the noisier 70 % of the noise levels, half by `sample_std`."""
    noisy = sigma(0.7 * random.uniform(shape))
    first = torch.arange(math.prod(shape), device=noisy.device).reshape(shape) % 2 == 0
    return torch.where(first, noisy, sample_std(random, shape))


def denoise(network: Any, observations: Tensor, x: Tensor, std: Tensor, *arguments: Any) -> Tensor:
    """Return the denoised chunk for x [..., B, T, A] with noise of `std` [..., B]."""
    skip, out, scale = (expand_chunk(c) for c in boundary_coefficients(std))
    return skip * x + out * network(observations, scale * x, EDM_TIME * std.log(), *arguments)


def jump(
    network: Any, observations: Tensor, x: Tensor, start: Tensor, end: Tensor, random: Random | None
) -> Tensor:
    """Return x moved along its path from noise `start` to noise `end`.

    It is CTM's G (arXiv:2310.02279, eq. 9). It returns x if `start` equals `end`.
    """
    ratio = expand_chunk(end / start)
    chunk = denoise(network, observations, x, start, random, EDM_TIME * end.log())
    return ratio * x + (1 - ratio) * chunk


def heun_step(network: Any, observations: Tensor, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return x after one second-order step of EDM's flow (arXiv:2206.00364, algorithm 1)."""
    step = expand_chunk(end - start)
    slope = (x - denoise(network, observations, x, start)) / expand_chunk(start)
    euler_end = x + step * slope
    end_slope = (euler_end - denoise(network, observations, euler_end, end)) / expand_chunk(end)
    return x + step * (slope + end_slope) / 2


def karras_weight(std: Tensor) -> Tensor:
    """Return EDM's weight of a squared error."""
    return (std**2 + SIGMA_DATA**2) / (std * SIGMA_DATA) ** 2


def distance(a: Tensor, b: Tensor, weight: Tensor | None, kind: Distance) -> Tensor:
    """Return the pseudo-Huber distance per element [..., T, A].

    norm: sqrt(|a - b|^2 + c^2) - c of the complete chunk, repeated for each element, as in the
    paper (Song and Dhariwal, arXiv:2310.14189, eq. 8).
    elements: sqrt(e^4 + c^2) - c of each element's error e, as in the authors' code. That code
    squares twice, so the result is nearly a squared error.
    """
    c = 0.00054 * math.sqrt(a.shape[-1] * a.shape[-2])
    error = (a - b).square()
    if kind == "norm":
        error = error.sum((-2, -1), keepdim=True)
        result = (error + c**2).sqrt() - c + torch.zeros_like(a)
    else:
        result = (error.square() + c**2).sqrt() - c
    return result if weight is None else expand_chunk(weight) * result

"""EDM's noise (Karras et al., arXiv:2206.00364) as Consistency Policy uses it, in tensors.

Shapes: B chunk, T step, A action, and K noise levels of each before B.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.schedules import EDM_TIME, SPREAD, boundary, sigma

Distance = Literal["norm", "elements"]
BINS = 80  # places that consistency is taught at


def expand_chunk(values: Tensor) -> Tensor:
    """[...] -> [..., 1, 1]."""
    return values[..., None, None]


def sample_std(random: Random, shape: tuple[int, ...]) -> Tensor:
    """Deviations as EDM learns from: their logarithm has mean -1.2 and deviation 1.2."""
    return (1.2 * random.normal(shape) - 1.2).exp()


def sample_consistency_std(random: Random, shape: tuple[int, ...]) -> Tensor:
    """Half of them from the noisier seven tenths of the places, half as `log_normal`."""
    places = sigma(0.7 * random.uniform(shape))
    first = torch.arange(math.prod(shape), device=places.device).reshape(shape) % 2 == 0
    return torch.where(first, places, sample_std(random, shape))


def denoise(network: Any, seen: Tensor, x: Tensor, deviation: Tensor, *rest: Any) -> Tensor:
    """The chunk behind x [..., B, T, A] of such noise [..., B]."""
    skip, out, scale = (expand_chunk(c) for c in boundary(deviation))
    return skip * x + out * network(seen, scale * x, EDM_TIME * deviation.log(), *rest)


def jump(
    network: Any, seen: Tensor, x: Tensor, start: Tensor, end: Tensor, random: Random | None
) -> Tensor:
    """x of deviation `start` where its path has deviation `end`: CTM's G (arXiv:2310.02279, eq. 9).

    It is x where they are the same.
    """
    ratio = expand_chunk(end / start)
    found = denoise(network, seen, x, start, random, EDM_TIME * end.log())
    return ratio * x + (1 - ratio) * found


def heun_step(network: Any, seen: Tensor, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """One step of EDM's flow, of second order (arXiv:2206.00364, algorithm 1)."""
    step = expand_chunk(end - start)
    slope = (x - denoise(network, seen, x, start)) / expand_chunk(start)
    near = x + step * slope
    there = (near - denoise(network, seen, near, end)) / expand_chunk(end)
    return x + step * (slope + there) / 2


def karras_weight(deviation: Tensor) -> Tensor:
    """EDM's of a squared error."""
    return (deviation**2 + SPREAD**2) / (deviation * SPREAD) ** 2


def distance(a: Tensor, b: Tensor, weight: Tensor | None, kind: Distance) -> Tensor:
    """Pseudo-Huber, of each element [..., T, A] or, by `norm`, the same for all of a chunk.

    norm: sqrt(|a - b|^2 + c^2) - c of a whole chunk, as the paper has it (Song and Dhariwal,
    arXiv:2310.14189, eq. 8).  elements: sqrt(e^4 + c^2) - c of each, the authors' code, which
    squares twice: nearly a squared error.
    """
    c = 0.00054 * math.sqrt(a.shape[-1] * a.shape[-2])
    error = (a - b).square()
    if kind == "norm":
        error = error.sum((-2, -1), keepdim=True)
        far = (error + c**2).sqrt() - c + torch.zeros_like(a)
    else:
        far = (error.square() + c**2).sqrt() - c
    return far if weight is None else expand_chunk(weight) * far

"""Random numbers that are a pure function of (seed, update, call site, element).

No generator state: a 64-bit key is made from the seed and the update, varied by the place of the
call within the update, and each element's number is a hash of its position under that key. So
stacked seeds draw what single ones draw, compiled code what eager code draws, and a resumed run
what the undisturbed one would have drawn. Integers are 32-bit values held in int64; every product
stays below 2**63.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MASK = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers (in int64) that scatters neighbors (xor-shift, multiply)."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & MASK
    x = (x ^ (x >> 15)) * 0x735A2D97 & MASK
    return x ^ (x >> 15)


class Random:
    """The numbers of one update of one seed; each call is the next call site."""

    def __init__(self, seed: Tensor, update: Tensor) -> None:
        """seed, update: 0-d int64, in [0, 2**31); a seed's bits from 32 on tell streams apart."""
        self.seed, self.update = seed, update
        low, high = seed & 0x7FFFFFFF, seed >> 32
        self.key = mix((low * 0x1E3779B1 + update + high * 0x5BD1E995) & MASK)
        self.key2 = mix((update * 0x2545F491 + low * 0x3C6EF372 + high) & MASK)
        self.site = 0

    def bits(self, shape: Sequence[int]) -> Tensor:
        """Uniform integers in [0, 2**32), int64."""
        import torch

        self.site += 1
        element = torch.arange(math.prod(shape), device=self.key.device).reshape(tuple(shape))
        first = mix((element + self.key + (self.site * 0x9E3779B1 & MASK)) & MASK)
        return mix(first ^ self.key2 ^ (self.site * 0x85EBCA6B & MASK))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Float32 in [0, 1), multiples of 2**-24."""
        return (self.bits(shape) >> 8).float() * 2**-24

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal float32, by Box-Muller."""
        radius = (-2 * (1 - self.uniform(shape)).log()).sqrt()
        return radius * (2 * math.pi * self.uniform(shape)).cos()

    def integers(self, high: Tensor | int, shape: Sequence[int]) -> Tensor:
        """Uniform int64 in [0, high), for 0 < high < 2**31 (Lemire's multiply-shift)."""
        return self.bits(shape) * high >> 32

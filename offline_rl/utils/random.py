"""Counter-based random numbers: a pure function of (seed, update, call, element).

No generator has a state. The seed and the update give a 64-bit key, and the index of the call
within the update modifies the key. The number of an element is a hash of the element's index under
this key. Therefore stacked seeds get the same numbers as single seeds, compiled code the same as
eager code, and a resumed run the same as an uninterrupted one. Integers are 32-bit values in int64
tensors; every product is below 2**63.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MASK = 0xFFFFFFFF
_forbidden: str | None = None  # set by `forbid_random`


@contextmanager
def forbid_random(where: str) -> Iterator[None]:
    """Refuse random numbers within the block with a ValueError that names `where`."""
    global _forbidden
    before, _forbidden = _forbidden, where
    try:
        yield
    finally:
        _forbidden = before


def mix(x: Tensor) -> Tensor:
    """Hash 32-bit integers (in int64) by a bijection (xor-shift and multiply)."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & MASK
    x = (x ^ (x >> 15)) * 0x735A2D97 & MASK
    return x ^ (x >> 15)


class Random:
    """The random numbers of one update of one seed; every call gives new numbers.

    The methods have the argument `groups`: the first axis of `shape` has this many consecutive
    groups, each with one entry, or several, for every row of the batch. Only `SlicedRandom` reads
    it.
    """

    def __init__(self, seed: Tensor, update: Tensor) -> None:
        """Derive the keys from the seed and the update.

        seed, update: 0-d int64, in [0, 2**31). Higher bits of the seed, from 32 on, select another
        stream of random numbers.
        """
        self.seed, self.update = seed, update
        low, high = seed & 0x7FFFFFFF, seed >> 32
        self.key = mix((low * 0x1E3779B1 + update + high * 0x5BD1E995) & MASK)
        self.key2 = mix((update * 0x2545F491 + low * 0x3C6EF372 + high) & MASK)
        self.site = 0  # number of calls so far

    def elements(self, shape: Sequence[int], groups: int) -> Tensor:
        """Return the indices of the elements of `shape`, on which their numbers depend."""
        import torch

        return torch.arange(math.prod(shape), device=self.key.device).reshape(tuple(shape))

    def bits(self, shape: Sequence[int], groups: int = 1) -> Tensor:
        """Return uniform integers in [0, 2**32), int64."""
        if _forbidden is not None:
            raise ValueError(f"random numbers cannot be drawn {_forbidden}.")
        self.site += 1
        element = self.elements(shape, groups)
        first = mix((element + self.key + (self.site * 0x9E3779B1 & MASK)) & MASK)
        return mix(first ^ self.key2 ^ (self.site * 0x85EBCA6B & MASK))

    def uniform(self, shape: Sequence[int], groups: int = 1) -> Tensor:
        """Return uniform float32 numbers in [0, 1), multiples of 2**-24."""
        return (self.bits(shape, groups) >> 8).float() * 2**-24

    def normal(self, shape: Sequence[int], groups: int = 1) -> Tensor:
        """Return standard normal float32 numbers, by the Box-Muller transform."""
        radius = (-2 * (1 - self.uniform(shape, groups)).log()).sqrt()
        return radius * (2 * math.pi * self.uniform(shape, groups)).cos()

    def integers(self, high: Tensor | int, shape: Sequence[int], groups: int = 1) -> Tensor:
        """Return uniform int64 in [0, high), for 0 < high < 2**31 (Lemire's multiply-shift)."""
        return self.bits(shape, groups) * high >> 32


class SlicedRandom(Random):
    """The random numbers of a slice of the batch: equal to that slice of the batch's numbers.

    `rank` of `world_size` equal slices is the slice of one process. Every shape that a method
    receives is that of the slice. With `groups`, it consists of one slice of each group.
    """

    def __init__(self, seed: Tensor, update: Tensor, rank: int, world_size: int) -> None:
        """Derive the keys; see `Random`. rank: in [0, world_size)."""
        super().__init__(seed, update)
        self.rank, self.world_size = rank, world_size

    def elements(self, shape: Sequence[int], groups: int) -> Tensor:
        """Return the indices that the elements of `shape` have in the shape of the batch."""
        import torch

        size = math.prod(shape) // groups  # elements of the slice in one group
        group = torch.arange(groups, device=self.key.device)[:, None]
        first = (group * self.world_size + self.rank) * size
        element = first + torch.arange(size, device=self.key.device)
        return element.reshape(tuple(shape))

"""Dropout whose numbers are handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor


class Random(Protocol):
    """A source of random numbers."""

    def normal(self, shape: Sequence[int]) -> Tensor: ...
    def uniform(self, shape: Sequence[int]) -> Tensor: ...
    def integers(self, high: int, shape: Sequence[int]) -> Tensor: ...


def dropout(x: Tensor, rate: float, random: Random) -> Tensor:
    """Zeroes a share `rate` of `x` and scales the rest up by 1/(1 - rate)."""
    kept = random.uniform(x.shape) >= rate
    return x * (kept.to(x.dtype) / (1 - rate))


def hidden_dropout(rate: float, random: Random | None) -> Callable[[Tensor], Tensor] | None:
    """What `MLP` takes: dropout with the numbers of `random`, None where there is none to do."""
    return None if random is None or not rate else partial(dropout, rate=rate, random=random)

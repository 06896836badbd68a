"""Dropout that takes its random numbers from an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor


class Random(Protocol):
    """Interface of a source of random numbers."""

    def normal(self, shape: Sequence[int]) -> Tensor: ...
    def uniform(self, shape: Sequence[int]) -> Tensor: ...
    def integers(self, high: int, shape: Sequence[int]) -> Tensor: ...


def dropout(x: Tensor, rate: float, random: Random) -> Tensor:
    """Set values of `x` to zero with probability `rate`, and scale the rest by 1 / (1 - rate)."""
    mask = random.uniform(x.shape) >= rate
    return x * (mask.to(x.dtype) / (1 - rate))


def hidden_dropout(rate: float, random: Random | None) -> Callable[[Tensor], Tensor] | None:
    """Return the dropout function for `MLP`. None if `random` is None or the rate is 0."""
    return None if random is None or not rate else partial(dropout, rate=rate, random=random)

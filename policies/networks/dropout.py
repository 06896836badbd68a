"""Dropout that takes its random numbers from an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor


class Random(Protocol):
    """Interface of a source of random numbers.

    groups: number of consecutive groups of the first axis, each with entries for the whole batch.
    """

    def normal(self, shape: Sequence[int], groups: int = 1) -> Tensor: ...
    def uniform(self, shape: Sequence[int], groups: int = 1) -> Tensor: ...
    def integers(self, high: int, shape: Sequence[int], groups: int = 1) -> Tensor: ...


def dropout(x: Tensor, rate: float, random: Random, groups: int = 1) -> Tensor:
    """Set values of `x` to zero with probability `rate`, and scale the rest by 1 / (1 - rate).

    groups: see `Random`.
    """
    mask = random.uniform(x.shape, groups) >= rate
    return x * (mask.to(x.dtype) / (1 - rate))


def hidden_dropout(
    rate: float, random: Random | None, groups: int = 1
) -> Callable[[Tensor], Tensor] | None:
    """Return the dropout function for `MLP`. None if `random` is None or the rate is 0.

    groups: see `Random`.
    """
    if random is None or not rate:
        return None
    return partial(dropout, rate=rate, random=random, groups=groups)

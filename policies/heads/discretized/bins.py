"""Coarse-to-fine bins of actions in [-1, 1].

Each of L levels divides the current interval of an action dimension into K bins and selects one of
them. The selected bin is the interval of the next level. The decoded action is the midpoint of the
last interval, so the resolution is 2 / K^L.
"""

from __future__ import annotations

import torch
from torch import Tensor


def find_bin(actions: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return the index, as floats, of the bin of [low, high] that contains each action."""
    return ((actions - low) / ((high - low) / bins)).floor().clamp(0, bins - 1)


def zoom_in(low: Tensor, high: Tensor, index: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return the interval of the bin `index` of the interval [low, high]."""
    width = (high - low) / bins
    start = (low + width * index).clamp(-1, 1)
    return start, (start + width).clamp(-1, 1)


def discretize(actions: Tensor, levels: int, bins: int) -> tuple[Tensor, Tensor]:
    """Return the bins of actions [..., A], and the midpoints of the intervals before each level.

    The bins are int64, [..., L, A]. The midpoints are [..., L + 1, A]: entry l is from before level
    l, and the last entry is the decoded action.
    """
    low, high = torch.full_like(actions, -1), torch.ones_like(actions)
    indices, middles = list[Tensor](), [(low + high) / 2]
    for _ in range(levels):
        indices.append(find_bin(actions, low, high, bins))
        low, high = zoom_in(low, high, indices[-1], bins)
        middles.append((low + high) / 2)
    return torch.stack(indices, -2).long(), torch.stack(middles, -2)


def one_hot(index: Tensor, bins: int) -> Tensor:
    """Return a mask [..., K] of the bin `index` [...]."""
    return index[..., None] == torch.arange(bins, device=index.device)


def top_gap(values: Tensor) -> Tensor:
    """Return the largest of values [..., K] minus the second largest, [...]."""
    best, second = values.topk(2).values.unbind(-1)
    return best - second

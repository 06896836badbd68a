"""Concatenation of data sets with the same columns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offline_rl.data.dataset import Dataset
from policies import channels


def join(parts: Sequence[Dataset]) -> Dataset:
    """Return the episodes of all data sets in order, with name, spec and notes of the first."""
    rows = [part.num_rows for part in parts]
    sizes = [channels.size(part.observations) for part in parts]
    first_row, first_extra = 0, sum(rows)
    indices = []
    for part, count, size in zip(parts, rows, sizes, strict=True):
        index = part.next_index
        moved = index + np.where(index < count, first_row, first_extra - count)
        indices.append(np.where(index < 0, -1, moved))
        first_row, first_extra = first_row + count, first_extra + size - count
    stored = [channels.take(p.observations, slice(n)) for p, n in zip(parts, rows, strict=True)]
    stored += [
        channels.take(p.observations, slice(n, None)) for p, n in zip(parts, rows, strict=True)
    ]
    names = ("actions", "rewards", "terminated", "truncated")
    columns: dict[str, Any] = {k: np.concatenate([getattr(p, k) for p in parts]) for k in names}
    if any(part.continues is not None for part in parts):
        flags = [
            np.zeros(n, bool) if p.continues is None else p.continues
            for p, n in zip(parts, rows, strict=True)
        ]
        columns["continues"] = np.concatenate(flags)
    return replace(
        parts[0],
        observations=channels.concatenate(stored),
        next_index=np.concatenate(indices),
        extras={k: np.concatenate([p.extras[k] for p in parts]) for k in parts[0].extras},
        sha256=None,
        **columns,
    )

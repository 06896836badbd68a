"""Noise for acting: a pure function of an episode's seed and the chunks predicted so far.

numpy generates it for every runtime, so that a policy gets the same noise in torch, numpy and ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def normal(seeds: np.ndarray, decisions: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return standard normal numbers [R, *shape], float32.

    seeds: [R] integers >= 0, one for each episode.
    decisions: [R] integers >= 0, the number of chunks predicted in the episode so far.
    """
    rows = np.empty((len(seeds), *shape), np.float32)
    for row, seed, decision in zip(rows, seeds, decisions, strict=True):
        if rows[0].size:
            key = np.array([seed, decision], np.uint64)
            source = np.random.Generator(np.random.Philox(key=key))
            source.standard_normal(out=row, dtype=np.float32)
    return rows

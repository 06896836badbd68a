"""Noise for acting, a pure function of the episode's seed and the number of predicted chunks.

numpy generates it for every runtime, so that a policy gets the same noise in torch, numpy and ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def normal(seeds: np.ndarray, num_chunks: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return standard normal numbers [R, *shape], float32.

    seeds: [R] integers >= 0, one per episode.
    num_chunks: [R] integers >= 0, the number of chunks predicted so far in each episode.
    """
    rows = np.empty((len(seeds), *shape), np.float32)
    for row, seed, chunk in zip(rows, seeds, num_chunks, strict=True):
        if rows[0].size:
            key = np.array([seed, chunk], np.uint64)
            source = np.random.Generator(np.random.Philox(key=key))
            source.standard_normal(out=row, dtype=np.float32)
    return rows

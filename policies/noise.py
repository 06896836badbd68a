"""The noise of acting: a pure function of an episode's seed and the number of the decision in it.

Drawn by numpy whatever a policy runs on, so that torch, numpy and ONNX take the same actions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def normal(seeds: np.ndarray, decisions: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """seeds, decisions: [R] integers >= 0. Standard normal numbers [R, *shape], float32."""
    rows = np.empty((len(seeds), *shape), np.float32)
    for row, seed, decision in zip(rows, seeds, decisions, strict=True):
        if rows[0].size:
            key = np.array([seed, decision], np.uint64)
            source = np.random.Generator(np.random.Philox(key=key))
            source.standard_normal(out=row, dtype=np.float32)
    return rows

"""Conversion of tensors, lists and numbers to NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike


def as_array(values: Any, dtype: DTypeLike | None = None) -> np.ndarray:
    """Return `values` as a NumPy array.

    Tensors may require grad and be on any device. A bfloat16 tensor becomes a float32 array.
    """
    if isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        values = [as_array(value) for value in values]
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no such type
            values = values.float()
    return np.asarray(values, dtype)

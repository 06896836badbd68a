"""The dtype of matrix multiplications in a network.

Modules with matrix multiplications (linear layers, convolutions, attention) have an attribute
`compute_dtype`. It is float32 by default, and `set_compute_dtype` changes it: `offline_rl.engine`
sets bfloat16 for precision=bf16. Weights and network outputs stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def set_compute_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Set the dtype of all matrix multiplications in `module`."""
    for part in find_product_modules(module):
        part.compute_dtype = dtype


def find_product_modules(module: nn.Module) -> list[Any]:
    """Return the submodules of `module` that have matrix multiplications."""
    return [part for part in module.modules() if hasattr(part, "compute_dtype")]


@contextmanager
def in_float32(module: nn.Module) -> Iterator[None]:
    """Run all matrix multiplications of `module` in float32 inside the `with` block."""
    dtypes = [part.compute_dtype for part in find_product_modules(module)]
    set_compute_dtype(module, torch.float32)
    try:
        yield
    finally:
        for part, dtype in zip(find_product_modules(module), dtypes, strict=True):
            part.compute_dtype = dtype

"""In which type matrix products run: a property of the blocks that have products.

A block (linear layers, a convolution, attention) has an attribute `compute_dtype`, float32 unless
set here; its weights, and what a network answers, stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def set_compute_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Of all blocks in `module`."""
    for block in blocks(module):
        block.compute_dtype = dtype


def blocks(module: nn.Module) -> list[Any]:
    """Those that have products."""
    return [block for block in module.modules() if hasattr(block, "compute_dtype")]


@contextmanager
def in_float32(module: nn.Module) -> Iterator[None]:
    """All products of `module` in float32, for as long as the block lasts."""
    before = [block.compute_dtype for block in blocks(module)]
    set_compute_dtype(module, torch.float32)
    try:
        yield
    finally:
        for block, dtype in zip(blocks(module), before, strict=True):
            block.compute_dtype = dtype

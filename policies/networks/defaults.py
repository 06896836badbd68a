"""Context managers for PyTorch's global settings: use the defaults, then restore the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Run the block with PyTorch's default settings, and restore the caller's settings afterward.

    The settings are the default dtype and device, the precision of float32 matrix multiplications
    on the CPU, autocast and inference mode. They apply to all code in the block, including
    environments. The function also works as a decorator.
    """
    with ExitStack() as stack:
        if (dtype := torch.get_default_dtype()) != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        _use_full_precision(stack)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


def _use_full_precision(stack: ExitStack) -> None:
    """Compute float32 matrix multiplications in float32 until `stack` closes."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller set the precision per backend, with the newer interface
        matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        stack.callback(setattr, matmul, "fp32_precision", matmul.fp32_precision)
        matmul.fp32_precision = "ieee"
        return
    if precision != "highest":
        stack.callback(torch.set_float32_matmul_precision, precision)
        torch.set_float32_matmul_precision("highest")


@contextmanager
def denormals_restored() -> Iterator[None]:
    """Restore this thread's setting for flushing denormal numbers to zero after the block."""
    smallest = torch.tensor(torch.finfo(torch.float32).smallest_normal, dtype=torch.float32)
    is_flushing = (smallest / 2).item() == 0
    try:
        yield
    finally:
        torch.set_flush_denormal(is_flushing)

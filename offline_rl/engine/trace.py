"""Tracing of Python functions into graphs of tensor operations."""

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from envs.faults import user_line
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError


def trace(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """Run `function` on `arguments` and return the graph of its tensor operations.

    Fake tensors describe the results of operations. They share one FakeTensorMode: make_fx would
    create one for each result, which takes longer than everything else. Raises UserError if the
    user's code reads the value of a tensor, whose line is named, or uses torch's random numbers.
    """
    try:
        fake = FakeTensorMode(allow_fallback_kernels=True)
        with hardware.release_freed_memory(), tracing(TracingContext(fake)):
            graph = make_fx(function)(*arguments)
    except (RuntimeError, DataDependentOutputException) as error:
        message = str(error)
        if RANDOM in message and (where := user_line(error)) is not None:
            raise UserError(f"{where}: {NO_TORCH_RANDOM}") from error
        if not any(words in message for words in READS) or (where := user_line(error)) is None:
            raise
        raise UserError(
            f"{where}: a tensor's value (`if`, `while`, float(), .item()) is not known while an "
            "update is traced. Use torch.where(condition, a, b) instead."
        ) from error
    graph.graph.eliminate_dead_code()
    refuse_torch_random(graph)
    graph.recompile()
    return graph


def refuse_torch_random(graph: GraphModule) -> None:
    """Raise UserError if the graph uses random numbers of torch, which no resumed run repeats."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise UserError(f"{node.target}: {NO_TORCH_RANDOM}")


# Parts of torch's error messages if traced code reads the value of a tensor. The message depends on
# whether there is one seed, there are several seeds, or the tensor is a scalar.
READS = (
    "get value out of a tracing tensor",
    "data-dependent control flow",
    ".item()",
    "_local_scalar_dense",
)
RANDOM = "called random operation"  # part of torch's error message with several seeds
NO_TORCH_RANDOM = (
    "a resumed run could not repeat torch's random numbers. Use state.random, for example "
    "state.random.normal(x.shape)."
)

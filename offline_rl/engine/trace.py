"""From a Python function of tensors to the graph of its tensor operations."""

from collections.abc import Callable
from typing import Any

from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """What `function` does with tensors such as `arguments`, which it is run on.

    Each operation's result is described by a tensor without memory. These share one mode here:
    left alone, make_fx makes a mode for each, which takes longer than all the rest.
    """
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        return make_fx(function)(*arguments)

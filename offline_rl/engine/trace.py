"""From a Python function of tensors to the graph of its tensor operations."""

from collections.abc import Callable
from typing import Any

from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from envs.faults import line
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError


def traced(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """What `function` does with tensors such as `arguments`, which it is run on.

    Each operation's result is described by a tensor without memory. These share one mode here:
    left alone, make_fx makes a mode for each, which takes longer than all the rest.
    Raises UserError naming the user's line where a tensor's value is asked for, which there is not.
    """
    try:
        fake = FakeTensorMode(allow_fallback_kernels=True)
        with hardware.giving_back(), tracing(TracingContext(fake)):
            return make_fx(function)(*arguments)
    except (RuntimeError, DataDependentOutputException) as error:
        said = str(error)
        if not any(words in said for words in VALUES) or (where := line(error)) is None:
            raise
        raise UserError(
            f"{where}: a tensor's value (`if`, `while`, float(), .item()) is not known when an "
            "update is traced: choose by it with torch.where(condition, this, that)"
        ) from error


VALUES = (  # what torch says where a value is asked for: of one seed, of several, of a scalar
    "get value out of a tracing tensor",
    "data-dependent control flow",
    ".item()",
    "_local_scalar_dense",
)

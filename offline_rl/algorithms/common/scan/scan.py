"""A loop inside an update whose body is traced once, for recurrent networks and model rollouts.

A Python loop of H steps adds H copies of its body to the graph of the update. `scan` adds one node,
a `Loop`, for any H. Its gradient is a second loop, over the steps in reverse order.

`torch._higher_order_ops.scan` cannot be used: it has no rule for `torch.func.grad` (PyTorch 2.11 to
2.13). Inductor's C++ wrapper cannot compile its loop in 2.11, and frees memory twice in 2.13 if an
operand is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level, maybe_get_level
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.overrides import TorchFunctionMode, wrap_torch_function
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from offline_rl.algorithms.common.scan.gradient import trace_gradient
from offline_rl.algorithms.common.scan.loop import Loop, LoopFunction, Step, split, trace
from offline_rl.utils.random import forbid_random


def scan(body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` for each x of xs; return the last carry and all y.

    carry, xs, y: trees of tensors. Steps are along axis 0 of xs and of the returned ys. The shapes
    and types of the carry stay the same. `body` may use other tensors, such as the parameters of
    networks; gradients reach all of them. If `body` differentiates with respect to such a tensor,
    with `torch.func.grad`, it must pass a view of it. `body` must have no side effects, because it
    is traced and not called in every step. It cannot sample random numbers: sample them for all
    steps and pass them in xs. Raises ValueError if carry, xs or body violate these rules.
    """
    carry_leaves, carry_tree = tree_flatten(carry)
    xs_leaves, xs_tree = tree_flatten(xs)
    _check_operands(carry_leaves, xs_leaves)
    n, m = sizes = len(carry_leaves), len(xs_leaves)
    # New objects: the body may also use a tensor of the carry as a constant.
    first_carry, first = [x.clone() for x in carry_leaves], [x[0] for x in xs_leaves]
    with forbid_random("in the body of scan. Draw them before the loop and pass them in xs"):
        with _FindTensors([*first_carry, *first]) as used:
            new_carry, y = body(
                tree_unflatten(first_carry, carry_tree), tree_unflatten(first, xs_tree)
            )
        _check_carry(carry_leaves, carry_tree, new_carry)

        def step(*operands: Tensor) -> tuple[Tensor, ...]:
            c, x, constants = split(operands, n, m)
            with _ReplaceTensors(dict(zip(used.tensors, constants, strict=True))):
                c, y = body(tree_unflatten(c, carry_tree), tree_unflatten(x, xs_tree))
            return (*tree_leaves(c), *tree_leaves(y))

        results = run_steps(step, sizes, [*carry_leaves, *xs_leaves, *used.tensors.values()])
    last, ys, _ = split(results, n, len(tree_leaves(y)))
    return tree_unflatten(last, carry_tree), tree_unflatten(ys, tree_flatten(y)[1])


@wrap_torch_function(lambda step, sizes, operands: operands)
def run_steps(step: Step, sizes: tuple[int, int], operands: list[Tensor]) -> tuple[Tensor, ...]:
    """Trace `step` and run the loop.

    The decorator lets a surrounding loop replace the operands of a loop in its body.
    """
    n, m = sizes
    length = len(operands[n])
    if get_proxy_mode() is None:
        return Loop(step, sizes, length).run(*operands)
    needs_grad = [_requires_grad(x) for x in operands]
    with disable_proxy_modes_tracing(), temporarily_clear_interpreter_stack():
        examples = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in operands]
        examples[n : n + m] = [x[0] for x in examples[n : n + m]]
        if any(needs_grad):
            loop, gradient = trace_gradient(step, sizes, length, examples, needs_grad)
        else:
            loop, gradient = Loop(trace(step, examples), sizes, length), None
    return LoopFunction.apply(loop, gradient, *operands)


def _requires_grad(x: Tensor) -> bool:
    """Return True if some level of `torch.func` or autograd needs the gradient of x."""
    if not x.is_floating_point():
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if x.requires_grad:
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return x.requires_grad


class _FindTensors(TorchFunctionMode):
    """Collects the tensors that torch functions receive, except known tensors and results."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.known = {id(x): x for x in known}  # tensors stay alive, so that ids stay unique
        self.level = maybe_current_level() or 0  # number of transforms around the body
        self.tensors: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for x in _tensors((args, kwargs)):
            within = self.level < maybe_get_level(x) <= (maybe_current_level() or 0)
            if id(x) not in self.known and not within:  # not made by a transform of the body
                self.tensors[id(x)] = x
        results = function(*args, **(kwargs or {}))
        self.known.update((id(x), x) for x in _tensors(results) if id(x) not in self.tensors)
        return results


class _ReplaceTensors(TorchFunctionMode):
    """Replaces the tensors that torch functions receive. replacements: id -> tensor."""

    def __init__(self, replacements: dict[int, Tensor]) -> None:
        super().__init__()
        self.replacements = replacements

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(
            Tensor, lambda x: self.replacements.get(id(x), x), (args, kwargs or {})
        )
        return function(*args, **kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _check_operands(carry: list[Any], xs: list[Any]) -> None:
    if not carry or not xs or not all(isinstance(x, Tensor) for x in [*carry, *xs]):
        raise ValueError(
            "scan: carry and xs must be trees of tensors, each with at least one tensor."
        )
    lengths = {len(x) if x.dim() else 0 for x in xs}
    if len(lengths) > 1 or lengths == {0}:
        raise ValueError(
            f"scan: xs have {sorted(lengths)} steps. Pass tensors with the same number of steps, "
            "at least 1, along axis 0."
        )


def _check_carry(old_leaves: list[Tensor], tree: Any, carry: Any) -> None:
    new_leaves, new_tree = tree_flatten(carry)
    if new_tree != tree:
        raise ValueError(f"scan: body changes the structure of the carry: {tree} to {new_tree}.")
    for before, after in zip(old_leaves, new_leaves, strict=True):
        if before.shape != after.shape or before.dtype != after.dtype:
            raise ValueError(
                f"scan: body changes a tensor of the carry from {tuple(before.shape)} "
                f"{before.dtype} to {tuple(after.shape)} {after.dtype}. Shapes and types must stay "
                "the same."
            )

"""A loop over a traced step: one node of an update's graph, with a gradient and a vmap rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._ops import OpOverload
from torch.func import functionalize, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)

Step = Callable[..., Sequence[Tensor]]  # (*carry, *x, *constants) -> (*carry, *y)


@dataclass(frozen=True, eq=False)
class Loop:
    """H calls of a step, a function (*carry, *x, *constants) -> (*carry, *y).

    loop(*carry, *xs, *constants) returns (*carry, *ys). In a traced graph, a loop is the target of
    one node, and its step is a graph.
    """

    step: Any  # a function; in a traced graph, a GraphModule
    sizes: tuple[int, int]  # numbers of tensors of the carry and of xs
    length: int  # number of steps
    reverse: bool = False  # True: start at the last step

    __name__ = "loop"  # name of nodes

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        transform = retrieve_all_functorch_interpreters()[-1:]
        functionalized = any(x.key() == TransformType.Functionalize for x in transform)
        if functionalized or (get_proxy_mode() is None and not transform):
            return self.run(*operands)
        return LoopFunction.apply(self, None, *operands)

    def run(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Call the step H times."""
        carry, xs, constants = split(operands, *self.sizes)
        steps = list(zip(*(x.unbind() for x in xs), strict=True))
        outputs = []
        for x in reversed(steps) if self.reverse else steps:
            # A compiled step needs equal strides in all calls.
            results = self.step(*(c.contiguous() for c in carry), *x, *constants)
            carry = list(results[: self.sizes[0]])
            outputs.append(results[self.sizes[0] :])
        if self.reverse:
            outputs.reverse()
        carry = [c.clone() if any(c is x for x in operands) else c for c in carry]
        return (*carry, *(torch.stack(y) for y in zip(*outputs, strict=True)))


class Gradient(NamedTuple):
    """Gradient of a loop. Positions count the operands of the loop."""

    loop: Loop  # (*carry gradients, *sums over steps, *residuals, *xs, *y gradients, *constants)
    carry: list[int]  # positions of the floating-point carry
    constants: list[int]  # positions of constants with a gradient
    xs: list[int]  # positions of xs with a gradient
    ys: list[int]  # positions of floating-point ys among the results of the loop
    results: int  # number of carry and ys; residuals are the results after them


class LoopFunction(torch.autograd.Function):
    """A loop with a gradient and a rule for batches."""

    @staticmethod
    def forward(loop: Loop, gradient: Gradient | None, *operands: Tensor) -> tuple[Tensor, ...]:
        mode = get_proxy_mode()
        if mode is None:
            return loop.run(*operands)
        n, m = loop.sizes
        with disable_proxy_modes_tracing():
            if not isinstance(loop.step, GraphModule):  # a batch of steps
                carry, xs, constants = split(operands, n, m)
                examples = [*(x.contiguous() for x in carry), *(x[0] for x in xs), *constants]
                # make_fx compares tensors by identity, and operands may be the same tensor
                step = trace(loop.step, [x.view_as(x) for x in examples])
                loop = replace(loop, step=step)
            results = loop.run(*operands)
        tracer: Any = mode.tracer
        proxies = tuple(tracer.unwrap_proxy(x) for x in operands)
        node = tracer.create_proxy("call_function", loop, proxies, {})
        return track_tensor_tree(results, node, constant=None, tracer=tracer)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loop, gradient, *operands = inputs
        ctx.gradient, ctx.sizes, ctx.size = gradient, loop.sizes, len(operands)
        if gradient is not None:
            residuals = output[gradient.results :]
            ctx.save_for_backward(*residuals, *operands[loop.sizes[0] :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        gradient: Gradient | None = ctx.gradient
        if gradient is None:
            raise RuntimeError("scan: second derivatives are not supported.")
        _, num_xs = ctx.sizes
        residuals, xs, constants = split(ctx.saved_tensors, len(grads) - gradient.results, num_xs)
        first = ctx.size - len(constants)  # position of the first constant
        sums = [torch.zeros_like(constants[k - first]) for k in gradient.constants]
        gradients = LoopFunction.apply(
            gradient.loop,
            None,
            *(grads[k] for k in gradient.carry),
            *sums,
            *residuals,
            *xs,
            *(grads[k] for k in gradient.ys),
            *constants,
        )
        results: list[Tensor | None] = [None] * ctx.size
        positions = [*gradient.carry, *gradient.constants, *gradient.xs]
        for k, x in zip(positions, gradients, strict=True):
            results[k] = x
        return None, None, *results

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, loop: Loop, gradient: Gradient | None, *operands: Tensor
    ) -> tuple[Any, Any]:
        """Return the results of a batch of loops, which is a loop over a batch of steps.

        The batch axis is axis 0 of the carry and of constants, and axis 1 of xs and ys. The carry
        and all operands with a gradient are batched.
        """
        n, m = loop.sizes
        batched = set(range(n))
        if gradient is not None:
            batched |= {*gradient.constants, *gradient.xs}
        arguments, axes = [], list[int | None]()
        for k, (x, dim) in enumerate(zip(operands, in_dims[2:], strict=True)):
            target = 1 if n <= k < n + m else 0
            if dim is None and k in batched:
                shape = [*x.shape[:target], info.batch_size, *x.shape[target:]]
                x = x.unsqueeze(target).expand(shape)
            elif dim is not None and dim != target:
                x = x.movedim(dim, target)
            arguments.append(x)
            axes.append(None if dim is None and k not in batched else 0)
        if gradient is not None:
            num_carry, num_each_step = gradient.loop.sizes
            before = num_carry + num_each_step - m - len(gradient.ys)
            every = [0] * before, axes[n : n + m], [0] * len(gradient.ys), axes[n + m :]
            step = vmap(gradient.loop.step, in_dims=tuple(x for part in every for x in part))
            gradient = gradient._replace(loop=replace(gradient.loop, step=step))
        loop = replace(loop, step=vmap(loop.step, in_dims=tuple(axes)))
        results = LoopFunction.apply(loop, gradient, *arguments)
        return results, tuple(0 if k < n else 1 for k in range(len(results)))


def trace(function: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    """Return the graph of a function of tensors, without operations in place.

    Raises ValueError if it contains the value of a tensor that is not an argument.
    """
    module = make_fx(function)(*examples)
    targets = [x.target for x in module.graph.nodes if isinstance(x.target, OpOverload)]
    if any(x._schema.is_mutable for x in targets):
        module = make_fx(functionalize(module))(*examples)
    lifted = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)
    for node in module.graph.nodes:
        if node.op == "get_attr" and any(user.target not in lifted for user in node.users):
            raise ValueError(
                "scan: body uses a tensor in a way that is invisible to torch functions. Pass the "
                "tensor in the carry or in xs."
            )
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def split(items: Sequence[Any], n: int, m: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the first n, the next m and the remaining items."""
    return list(items[:n]), list(items[n : n + m]), list(items[n + m :])

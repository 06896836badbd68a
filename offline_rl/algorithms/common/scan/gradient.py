"""Gradient of a loop. The step and its gradient are traced as one graph, which is then split."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import vjp
from torch.fx import Graph, GraphModule, Node

from offline_rl.algorithms.common.scan.loop import Gradient, Loop, Step, split, trace


def trace_gradient(
    step: Step, sizes: tuple[int, int], length: int, examples: list[Tensor], needs_grad: list[bool]
) -> tuple[Loop, Gradient]:
    """Return the loop of `step` and its gradient. needs_grad: one flag for each operand.

    The forward loop also returns residuals: the intermediate results that the gradient needs.
    """
    n, m = sizes
    size = len(examples)
    outputs = step(*examples)
    carry = [k for k in range(n) if examples[k].is_floating_point()]
    constants = [k for k in range(n + m, size) if needs_grad[k]]
    xs = [k for k in range(n, n + m) if needs_grad[k]]
    ys = [k for k in range(n, len(outputs)) if outputs[k].is_floating_point()]
    positions = [*carry, *constants, *xs]
    num_sums = len(carry) + len(constants)

    def forward_and_backward(*args: Tensor) -> tuple[Tensor, ...]:
        operand_values, sums, y_grads = split(args, size, num_sums)

        def differentiated(*values: Tensor) -> tuple[tuple[Tensor, ...], Any]:
            replaced = dict(zip(positions, values, strict=True))
            results = step(*(replaced.get(k, x) for k, x in enumerate(operand_values)))
            return tuple(results[k] for k in [*carry, *ys]), results

        traced: Any = vjp(differentiated, *(operand_values[k] for k in positions), has_aux=True)
        _, back, results = traced
        grads = list(back((*sums[: len(carry)], *y_grads)))
        for k in range(len(carry), num_sums):
            grads[k] = sums[k] + grads[k]
        return (*results, *grads)

    like = [*(examples[k] for k in [*carry, *constants]), *(outputs[k] for k in ys)]
    inputs = [*examples, *(torch.zeros_like(x) for x in like)]
    joint = trace(forward_and_backward, inputs).graph
    operands, _, gradients = split([x for x in joint.nodes if x.op == "placeholder"], size, 0)
    joint_results: Any = joint.output_node().args[0]
    results, grads = joint_results[: len(outputs)], joint_results[len(outputs) :]
    residuals = find_residuals(grads, operands[:n], operands[n : n + m], gradients)
    forward = extract(joint, operands, [*results, *residuals])
    each_step = [*residuals, *operands[n : n + m], *gradients[num_sums:]]
    backward = extract(joint, [*gradients[:num_sums], *each_step, *operands[n + m :]], grads)
    loop = Loop(backward, (num_sums, len(each_step)), length, reverse=True)
    return Loop(forward, sizes, length), Gradient(loop, carry, constants, xs, ys, len(outputs))


def find_residuals(
    outputs: list[Node], carry: list[Node], xs: list[Node], gradients: list[Node]
) -> list[Node]:
    """Return the results of the forward pass that the backward pass uses to compute `outputs`.

    gradients: inputs of the backward pass only. Its other inputs are xs and constants. Views, and
    results that depend on constants only, are computed again.
    """
    backward, varying = set(gradients), {*carry, *xs}
    for node in outputs[0].graph.nodes:
        for group in (backward, varying):
            if any(x in group for x in node.all_input_nodes):
                group.add(node)
    residuals: dict[Node, None] = {}
    pending, visited = list(outputs), set(xs)
    while pending:
        node = pending.pop()
        if node in visited:
            continue
        visited.add(node)
        if node in varying and node not in backward and not _is_view(node):
            residuals[node] = None
        else:
            pending.extend(node.all_input_nodes)
    return list(residuals)


def _is_view(node: Node) -> bool:
    """Return True if the node is a view of its input, or an element of a list of views."""
    if node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and node.target.is_view


def extract(graph: Graph, inputs: list[Node], outputs: list[Node]) -> GraphModule:
    """Return the part of `graph` that computes `outputs` from `inputs`."""
    part = Graph()
    copies: dict[Node, Node] = {}
    for x in inputs:
        copies[x] = part.placeholder(x.name)
        copies[x].meta = x.meta.copy()
    for node in graph.nodes:
        computable = node.op not in ("placeholder", "output")
        if computable and node not in copies and all(x in copies for x in node.all_input_nodes):
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[x] for x in outputs))
    part.eliminate_dead_code()
    assert graph.owning_module is not None
    return GraphModule(graph.owning_module, part)

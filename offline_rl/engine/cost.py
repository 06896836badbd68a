"""Cost of an update. It decides how many threads run the update and whether it is compiled.

The cost is counted on the update's graph, not timed. Two runs of one command on one machine must
give the same bits, and timings would lead to other decisions when the machine is busy.
docs/explanation/performance.md explains the constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from offline_rl.algorithms.common.scan import Loop

COMPILE_SECONDS = 30.0  # first compilation on two cores; later ones come from the cache
COMPILED_SPEEDUP = 2.5  # time of an uncompiled update / time of a compiled one, in float32
THREAD_FLOPS = {"fp32": 2e6, "bf16": 8e6}  # minimum FLOPs of a matrix multiplication per thread


class Machine(NamedTuple):
    """Speed at which a kind of device runs an uncompiled graph."""

    call_seconds: float  # fixed time per operation
    bytes_per_second: float  # written bytes
    flops: dict[str, float]  # FLOP/s of matrix multiplications, per CPU core or of the entire GPU


MACHINES = {
    "cpu": Machine(4e-6, 12e9, {"fp32": 150e9, "bf16": 500e9}),
    # not measured
    "cuda": Machine(3e-6, 1e12, {"fp32": 20e12, "tf32": 100e12, "bf16": 200e12}),
}


class UpdateCost(NamedTuple):
    """Cost of one update of all stacked seeds."""

    calls: float  # number of operations, without views
    bytes: float  # bytes that the operations write
    matmuls: float  # number of matrix multiplications
    flops: float  # FLOPs of the matrix multiplications

    def threads(self, cores: int, precision: str) -> int:
        """Return how many threads, at most `cores`, the mean matrix multiplication can use."""
        minimum = THREAD_FLOPS["bf16" if precision == "bf16" else "fp32"]
        mean = self.flops / max(self.matmuls, 1)
        return max(1, min(cores, int(mean / minimum)))

    def seconds(self, device: str, precision: str, threads: int = 1) -> float:
        """Estimate the time of an uncompiled update; accurate within a factor of two."""
        machine = MACHINES["cpu" if device == "cpu" else "cuda"]
        flops = machine.flops.get(precision, machine.flops["fp32"])
        flops *= threads if device == "cpu" else 1
        return (
            self.calls * machine.call_seconds
            + self.bytes / machine.bytes_per_second
            + self.flops / flops
        )


def is_worth_compiling(seconds_per_update: float, updates: int) -> bool:
    """Return True if compiled updates save more time than a first compilation takes."""
    return updates * seconds_per_update * (1 - 1 / COMPILED_SPEEDUP) > COMPILE_SECONDS


def count_cost(graph: GraphModule, updates: int) -> UpdateCost:
    """Return the cost per update of a traced graph of `updates` updates. Views cost nothing."""
    calls, written, matmuls, flops = 0, 0, 0, 0
    for node, times in operations(graph):
        value, target = node.meta["val"], node.target
        assert isinstance(target, OpOverload)
        calls += times
        written += times * sum(x.nbytes for x in tree_leaves(value) if isinstance(x, Tensor))
        if flops_of := flop_registry.get(target.overloadpacket):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            flops += times * flops_of(*args, **kwargs, out_val=value)
            matmuls += times
    return UpdateCost(*(total / updates for total in (calls, written, matmuls, flops)))


def operations(graph: GraphModule, times: int = 1) -> Iterator[tuple[Node, int]]:
    """Yield the operations of a graph without views, and how often each of them is called.

    times: number of calls of the graph.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, Loop):
            yield from operations(node.target.step, times * node.target.length)
        elif isinstance(node.target, OpOverload) and not node.target.is_view:
            yield node, times

"""What updates cost, counted on their graph, and what follows from it: threads and compilation.

Counted, never timed: two runs of one command on one machine must end in the same bits, and a
stopwatch would choose differently on a busy day. Where the constants come from is in
docs/performance.md.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

COMPILE_SECONDS = 30.0  # of a first compilation on two cores; later ones come from the cache
COMPILED_SPEEDUP = 2.5  # of compiled updates over the same graph as it is, in float32
THREAD_FLOPS = {"fp32": 2e6, "bf16": 8e6}  # the least part of a product worth a thread


class Machine(NamedTuple):
    """How fast a kind of device runs the graph as it is."""

    call_seconds: float  # of one operation, however small
    bytes_per_second: float  # written
    flops: dict[str, float]  # of products, per second: of one core or of the whole GPU


MACHINES = {
    "cpu": Machine(4e-6, 12e9, {"fp32": 150e9, "bf16": 500e9}),
    "cuda": Machine(3e-6, 1e12, {"fp32": 20e12, "tf32": 100e12, "bf16": 200e12}),  # not measured
}


class Work(NamedTuple):
    """Of one update of all stacked seeds."""

    calls: float  # operations that compute something
    bytes: float  # that they write
    products: float  # of matrices
    flops: float  # of these

    def threads(self, cores: int, precision: str) -> int:
        """So many that each has a part of a product worth its while; at most `cores`."""
        least = THREAD_FLOPS["bf16" if precision == "bf16" else "fp32"]
        mean = self.flops / max(self.products, 1)
        return max(1, min(cores, int(mean / least)))

    def seconds(self, device: str, precision: str, threads: int = 1) -> float:
        """What an update should take uncompiled; within a factor of two of what it does take."""
        machine = MACHINES["cpu" if device == "cpu" else "cuda"]
        flops = machine.flops.get(precision, machine.flops["fp32"])
        flops *= threads if device == "cpu" else 1
        return (
            self.calls * machine.call_seconds
            + self.bytes / machine.bytes_per_second
            + self.flops / flops
        )


def compiling_pays(seconds_per_update: float, updates: int) -> bool:
    """Whether compiled updates save more than a first compilation takes."""
    return updates * seconds_per_update * (1 - 1 / COMPILED_SPEEDUP) > COMPILE_SECONDS


def count(graph: GraphModule, updates: int) -> Work:
    """The work of a traced graph of so many updates. Views of memory are no work."""
    calls, written, products, flops = 0, 0, 0, 0
    for node in graph.graph.nodes:
        if not isinstance(node.target, OpOverload) or node.target.is_view:
            continue
        value = node.meta["val"]
        calls += 1
        written += sum(x.nbytes for x in tree_leaves(value) if isinstance(x, Tensor))
        if flops_of := flop_registry.get(node.target.overloadpacket):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            flops += flops_of(*args, **kwargs, out_val=value)
            products += 1
    return Work(*(total / updates for total in (calls, written, products, flops)))

"""Compilation of graphs by Inductor, and their capture as CUDA graphs."""

from __future__ import annotations

import operator
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._inductor import cpp_builder
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_flatten

from offline_rl.algorithms.common.scan import Loop

# Kind of generated code. avx2: a CPU's instruction set. separate: no combined kernels on a GPU.
Code = Literal["default", "avx2", "separate"]

# A bug of GCC 12 deletes stores that are needed. If GCC does not know the processor, -march=native
# selects generic tuning, and GCC copies a local array by `rep movsq`. Dead-store elimination does
# not see that this instruction reads the array. Inductor's AVX-512 transpose of 16-bit tiles is
# such code, so compiled bf16 updates give NaN or wrong numbers. The flag below has no measurable
# cost. It is passed through Inductor's option for floating-point contraction: no other option
# reaches the compiler in all versions of PyTorch from 2.11 to 2.13.
WITHOUT_DEAD_STORE_ELIMINATION = "-fno-dse"
AVX2_BITS = 256  # register width


def inductor_options(on_cpu: bool, code: Code = "default") -> dict[str, Any]:
    """Return the Inductor options of one compilation.

    On a GPU, elementwise kernels that do not depend on each other are combined, because with few
    seeds the number of kernels limits the speed. Reductions are not: large ones would not build.
    """
    options: dict[str, Any] = {"cpp_wrapper": on_cpu}  # kernels are called from C++
    options["deterministic"] = not on_cpu  # else Inductor chooses a GPU's block sizes by timing
    if not on_cpu:
        options["combo_kernels"] = options["combo_kernels_pointwise_only"] = code != "separate"
        options["combo_kernels_autotune"] = 0
        return options
    flags = getattr(torch._inductor.config.cpp, "enable_floating_point_contract_flag", None)
    if flags is not None and platform.machine() == "x86_64" and cpp_builder.is_gcc():
        flags = f"{flags} {WITHOUT_DEAD_STORE_ELIMINATION}"
        options["cpp.enable_floating_point_contract_flag"] = flags
    if code == "avx2":
        options["cpp.simdlen"] = AVX2_BITS
    return options


def compile_graph(
    graph: GraphModule, counts: set[int], seeds: int, code: Code = "default"
) -> Callable[..., Tensor]:
    """Compile `graph` in parts: scalars of each seed, random numbers, and the rest.

    The first two parts depend only on integer inputs: seeds, update counts, optimizer steps and
    sizes. `counts` contains the indices of these inputs. The scalars are keys of random numbers,
    bias corrections and learning rates. In a graph of one part, Inductor would inline the scalars
    and random numbers, and recompute them for every element that uses them.

    A loop is a part of its own, which calls its compiled step. An exchange between processes is a
    part of its own, too, which is not compiled. The rest is split around them.
    """
    split = compile_parts(graph, assign_parts(graph, counts, seeds), code)
    return lambda *arguments: split(*tree_flatten(arguments)[0])[0]


def compile_parts(graph: GraphModule, part: dict[Node, int], code: Code) -> GraphModule:
    """Return a graph that calls the compiled parts of `graph`. part: the part of each node."""
    split = split_module(graph, graph, lambda node: part[node])
    for name, module in list(split.named_children()):
        assert isinstance(module, GraphModule)
        loops = [node for node in module.graph.nodes if isinstance(node.target, Loop)]
        for node in loops:
            step: GraphModule = node.target.step
            if any(isinstance(x.target, Loop) for x in step.graph.nodes):
                compiled: nn.Module = compile_parts(step, assign_parts(step, set(), 1), code)
            else:
                compiled = CompiledGraph(step, code)
            node.target = replace(node.target, step=compiled)
        if loops:
            module.recompile()
        elif not any(is_exchange(node) for node in module.graph.nodes):
            setattr(split, name, CompiledGraph(module, code))
    return split


def is_exchange(node: Node) -> bool:
    """Return True if the node is the operation of `engine.ranks`, which needs other processes."""
    return getattr(node.target, "namespace", None) == "offline_rl"


def assign_parts(graph: GraphModule, counts: set[int], seeds: int) -> dict[Node, int]:
    """Return the part of each node for `compile_graph`.

    Parts are called in the order of their numbers. Odd parts from 3 on are loops and exchanges.
    """
    scalars, random_numbers, remainder = range(3)
    part: dict[Node, int] = {}
    for index, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        part[node] = scalars if index in counts else remainder
    for node in graph.graph.nodes:
        if node in part:
            continue
        part[node] = latest = max((part[n] for n in node.all_input_nodes), default=scalars)
        is_loop = isinstance(node.target, Loop) or is_exchange(node)
        after_loop = latest > remainder and latest % 2 == 1
        value = node.meta.get("val")
        if is_loop and not after_loop:
            part[node] = max(latest, remainder) + 1
        elif after_loop and not is_loop and node.target is not operator.getitem:
            part[node] = latest + 1
        elif latest == scalars and isinstance(value, Tensor) and value.numel() > seeds:
            part[node] = random_numbers
    latest = max(remainder, *part.values())
    latest += latest % 2
    # Inputs are modified last. Results of the last part depend on all other parts.
    results = graph.graph.output_node().all_input_nodes if latest > remainder else []
    for node in graph.graph.nodes:
        is_result = node in results and len(node.users) == 1 and part[node] % 2 == 0
        if node.target is torch.ops.aten.copy_.default or is_result:
            part[node] = latest
    return part


class CompiledGraph(nn.Module):
    """A graph of tensor operations, compiled at the first call for the shapes of its arguments.

    Inductor compiles the graph without Dynamo. No Python code is left to trace, and Dynamo's guards
    on every argument would cost a tenth of a small update.
    """

    def __init__(self, graph: GraphModule, code: Code = "default") -> None:
        super().__init__()
        self.graph, self.code = graph, code
        self.program: Callable[..., Any] | None = None

    def forward(self, *arguments: Tensor) -> Any:
        if self.program is None:
            on_cpu = all(x.device.type == "cpu" for x in arguments)
            self.program = torch._inductor.standalone_compile(
                self.graph,
                list(arguments),
                dynamic_shapes="from_example_inputs",
                options={"config_patches": inductor_options(on_cpu, self.code)},
            )
        return self.program(*arguments)


def capture_graph(run: Callable[..., Tensor], *arguments: Any) -> Callable[..., Tensor]:
    """Capture `run(*arguments)` as a CUDA graph of the current device.

    The returned function replays the graph. It ignores its arguments and always returns the same
    tensor.
    """
    stream = capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up: libraries allocate their workspaces
        for _ in range(3):
            run(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # "thread_local": during the capture, other threads may allocate pinned memory for streamed data
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = run(*arguments)

    def replay(*_: Any) -> Tensor:
        graph.replay()
        return result

    return replay


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream for captures on `device`, which must be the current device.

    All captures on a device share a stream, because cuBLAS keeps a workspace of up to 32 MiB for
    each stream.
    """
    return torch.cuda.Stream(device)

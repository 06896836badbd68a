"""Limits of a GPU, and the shortest time that they allow for an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch

from offline_rl.engine.compile import capture_graph
from offline_rl.engine.engine import Precision, set_gpu_precision

NODES = 200  # kernels in the graph that measures the time of an empty kernel
SHAPES = {"4096 x 4096 x 4096": (1, 4096), "256 x 256 x 256": (1, 256)}  # (batch, size)
SHAPES |= {"64 x (256 x 256 x 256)": (64, 256)}
COPY, KERNEL, CACHE = "copy, bytes/s", "kernel in a graph, s", "level-2 cache, bytes"


def seconds_of(function: Callable[[], object], repeats: int = 20) -> float:
    """Return the mean time of a call on the device, s."""
    for _ in range(3):
        function()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(repeats):
        function()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / repeats / 1e3


def measure_limits() -> dict[str, float]:
    """Return the GPU's copy rate, the time of an empty kernel in a graph, and matmul rates."""
    size = min(1 << 31, torch.cuda.mem_get_info()[0] // 4) // 4
    x = torch.empty(size, device="cuda")
    y, small = torch.empty_like(x), torch.zeros(256, device="cuda")
    found = {COPY: 2 * x.nbytes / seconds_of(lambda: y.copy_(x))}
    found[CACHE] = float(torch.cuda.get_device_properties(0).L2_cache_size)

    def empty_kernels() -> torch.Tensor:
        for _ in range(NODES):
            small.add_(1)
        return small

    found[KERNEL] = seconds_of(capture_graph(empty_kernels)) / NODES
    for precision in get_args(Precision):
        set_gpu_precision(precision)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for shape, (batch, size) in SHAPES.items():
            a, b = (torch.randn(batch, size, size, device="cuda", dtype=dtype) for _ in range(2))

            def products(a: torch.Tensor = a, b: torch.Tensor = b) -> torch.Tensor:
                for _ in range(20):
                    result = torch.bmm(a, b)
                return result

            time_s = seconds_of(capture_graph(products)) / 20
            found[f"{precision} {shape}, FLOP/s"] = 2 * batch * size**3 / time_s
    return found


def floor_s(row: Mapping[str, Any], limits: Mapping[str, float]) -> float | None:
    """Return the shortest possible time of an update of all seeds, s; None if it is unknown.

    It is the largest of three times: that of as many empty kernels as the update has, that of
    copying the training state as far as it exceeds the level-2 cache, and that of the matrix
    multiplications at the highest measured rate.
    row: a contender's measurement, with the `flops` and the `state_bytes` of one seed, and the
    `kernels` of all seeds.
    """
    if not row.get("kernels"):
        return None
    rates = [v for name, v in limits.items() if name.startswith(f"{row['precision']} ")]
    beyond_cache = max(row["seeds"] * row["state_bytes"] - limits[CACHE], 0)
    return max(
        row["kernels"] * limits[KERNEL],
        2 * beyond_cache / limits[COPY],
        row["seeds"] * row["flops"] / max(rates),
    )

"""Measure a GPU within minutes: its limits, and updates per second of many contenders.

    python -m benchmarks.gpu [seconds=400] [jax_corl=<checkout>] [out=benchmarks/results/gpu]

Contenders compile in parallel, up to one per core. Then they take turns. While a contender has its
turn, those that still compile are stopped, because the speed of uncompiled PyTorch and of JAX
depends on a free core. Contenders that are not ready in time are listed as not measured. Whether
results are correct on a GPU is checked by a test:

    python -m pytest -n 12 tests/offline_rl/algorithms/test_contract.py -k gpu_results
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.speed.bench import DEFAULTS, NAMES, Contender, label, per_second, take_turns
from offline_rl.engine.compile import capture_graph
from offline_rl.engine.engine import Precision, set_gpu_precision
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json, write_text
from offline_rl.utils.options import Count, build, frozen, parse_options
from offline_rl.utils.text import table

TURNS, TURN_S = 3, 0.8
NODES = 200  # kernels in the graph that measures the time of an empty kernel
SHAPES = {"4096 x 4096 x 4096": (1, 4096), "256 x 256 x 256": (1, 256)}  # (batch, size)
SHAPES |= {"64 x (256 x 256 x 256)": (64, 256)}


@frozen
class Options:
    seconds: Count = 400  # time limit
    jax_corl: str | None = None  # checkout of JAX-CORL
    out: str = "benchmarks/results/gpu"  # results are written to <out>.json and <out>.md


class Starting(Contender):
    """Contender that is known to `started` as soon as its process exists."""

    started: list[Starting] = []

    def read_report(self) -> dict[str, Any]:
        if self not in self.started:
            self.started.append(self)
        return super().read_report()


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
    x = torch.empty(1 << 29, device="cuda")
    y, small = torch.empty_like(x), torch.zeros(256, device="cuda")
    found = {"copy, bytes/s": 2 * x.nbytes / seconds_of(lambda: y.copy_(x))}

    def empty_kernels() -> torch.Tensor:
        for _ in range(NODES):
            small.add_(1)
        return small

    found["kernel in a graph, s"] = seconds_of(capture_graph(empty_kernels)) / NODES
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


def jobs(jax_corl: str | None) -> list[dict[str, Any]]:
    """Return the contenders in order of importance."""

    def of(kind: str, names: str, seeds: tuple[int, ...], *precisions: str) -> list[dict[str, Any]]:
        keys = {"kind": kind, "device": "cuda"}
        return [
            keys | {"algorithm": name, "seeds": count, "precision": precision}
            for name in names.split()
            for count in seeds
            for precision in precisions
        ]

    def peers(names: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        keys = {"kind": "jax_corl", "checkout": jax_corl}
        return [
            keys | {"algorithm": name, "seeds": count} for name in names.split() for count in seeds
        ] * bool(jax_corl)

    eager = [
        {"kind": "eager", "device": "cuda", "algorithm": name}
        for name in ("td3_bc", "iql", "cql", "edac", "diffusion_policy")
    ]
    result = eager[:2] + of("ours", "td3_bc iql", (1, 8, 64), "fp32", "bf16")
    result += peers("td3_bc iql", (1, 8, 64)) + eager[2:] + of("ours", "cql edac", (1, 8), "bf16")
    result += peers("cql", (1, 8)) + of("ours", "diffusion_policy", (1,), "fp32", "bf16")
    result += of("ours", "bc", (1, 64), "fp32") + of("ours", "sac rlpd fql", (1, 8), "fp32")
    return result + of("uncompiled", "td3_bc iql", (1, 64), "fp32")


@contextmanager
def others_stopped(ready: list[Starting]) -> Iterator[None]:
    """Stop all contenders that are not ready."""
    late = [c.process for c in Starting.started if c not in ready and c.process.poll() is None]
    for process in late:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in late:
            process.send_signal(signal.SIGCONT)


def measure(contender: Starting) -> list[float]:
    """Return updates per second, summed over seeds, in each of the turns."""
    seeds, [rates] = contender.job.get("seeds", 1), take_turns([contender], TURNS, TURN_S)
    return [seeds * rate for rate in rates]


def compare(options: Options, end: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Measure contenders until `end`; pass each result to `keep`."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    ready: list[Starting] = []
    pool = ThreadPoolExecutor(hardware.num_cores())

    def start(job: dict[str, Any]) -> None:
        try:
            ready.append(Starting(job, device="cuda"))
        except UserError as error:
            late = time.monotonic() > end
            keep(job | {"error": "not ready in time" if late else str(error)})

    starting = [pool.submit(start, job) for job in jobs(options.jax_corl)]
    measured = 0
    while time.monotonic() < end and (measured < len(ready) or not all(f.done() for f in starting)):
        if measured == len(ready):
            time.sleep(0.2)
            continue
        contender = ready[measured]
        measured += 1
        with others_stopped(ready):
            rates = measure(contender)
        contender.stop()
        keep(contender.job | contender.facts | {"blocks": rates})
    for contender in Starting.started:
        contender.process.kill()
    pool.shutdown(cancel_futures=True)


def page(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    header = ["algorithm", "contender", "precision", "seeds", "updates/s", "GFLOP/s"]
    body = []
    for row in (DEFAULTS | row for row in result["rows"] if "blocks" in row):
        rate = statistics.median(row["blocks"])
        flops = f"{rate * row['flops'] / 1e9:,.0f}" if row.get("flops") else ""
        name = NAMES.get(row["kind"], row["kind"])
        body.append([row["algorithm"], name, row["precision"], str(row["seeds"])])
        body[-1] += [per_second(rate), flops]
    limits = [[name, f"{value:.3g}"] for name, value in result["limits"].items()]
    gpu = result["machine"]["gpu"]
    parts = [f"# Speed on {gpu}", "`python -m benchmarks.gpu`"]
    parts += [table(["limit", "value"], limits, markdown=True)]
    parts += ["Updates per second are summed over seeds; the median of the turns."]
    parts += [table(header, sorted(body), markdown=True)]
    for row in (DEFAULTS | row for row in result["rows"] if "error" in row):
        parts += [f"Not measured: {label(row)}: {row['error']}."]
    parts += result.get("remarks", [])
    return "\n\n".join(parts) + "\n"


def main() -> None:
    options = build(Options, parse_options(sys.argv[1:]))
    if not torch.cuda.is_available():
        raise UserError("benchmarks.gpu: no CUDA device is available. Use `offline-rl bench`.")
    end, out = time.monotonic() + options.seconds, Path(options.out)
    make_folder(out.parent)
    result: dict[str, Any] = {"machine": hardware.describe_machine(), "rows": []}
    result["limits"] = measure_limits()

    def keep(row: dict[str, Any]) -> None:
        result["rows"].append({k: v for k, v in row.items() if k != "checkout"})
        write_json(out.with_suffix(".json"), result)
        write_text(out.with_suffix(".md"), page(result))
        print(json.dumps(result["rows"][-1])[:200], flush=True)

    compare(options, end, keep)


if __name__ == "__main__":
    main()

"""Check and measure training on a GPU within minutes.

    python -m benchmarks.gpu [minutes=9] [suite=d4rl] [jax_corl=<checkout>]

1. The GPU's limits: its copy rate, the time of an empty kernel, and matrix multiplications.
2. Equality: every phase of every algorithm on the GPU and on a CPU.
3. Speed: updates per second of 1, 8 and 64 seeds, eager PyTorch and JAX-CORL, and the share of what
   the limits allow.
4. Runs of a suite at published lengths. They are stored in runs/<suite>; the next call continues.

Each part has a share of the time. Results are written as they come, so the command may be stopped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from benchmarks.figures import run_command
from benchmarks.gpu import equality, evidence, speed
from benchmarks.gpu.limits import measure_limits
from benchmarks.gpu.page import page
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json, write_text
from offline_rl.utils.options import Positive, build, frozen, parse_options

EQUALITY_END, SPEED_END = 0.25, 0.75  # shares of the time after which a part ends


@frozen
class Options:
    minutes: Positive = 9.0  # time limit
    suite: str | None = "d4rl"  # suite whose runs fill the rest of the time; null: none
    jax_corl: str | None = None  # checkout of JAX-CORL
    out: str = "benchmarks/results/gpu"  # results are written to <out>.json and <out>.md


class Results:
    """Results that are written to files whenever they change."""

    def __init__(self, out: Path) -> None:
        self.out, self.lock = out, Lock()
        self.values: dict[str, Any] = {"machine": hardware.describe_machine()}
        self.values |= {"limits": {}, "equality": [], "all_compared": False, "rows": []}
        make_folder(out.parent)

    def set(self, name: str, value: Any) -> None:
        with self.lock:
            self.values[name] = value
            self.write()

    def add(self, name: str, row: dict[str, Any]) -> None:
        with self.lock:
            self.values[name].append({k: v for k, v in row.items() if k != "checkout"})
            self.write()
            print(json.dumps(self.values[name][-1])[:200], flush=True)

    def write(self) -> None:
        write_json(self.out.with_suffix(".json"), self.values)
        write_text(self.out.with_suffix(".md"), page(self.values))


def measure(options: Options, results: Results) -> None:
    """Measure until the time is over. Each part writes to `results`."""
    start = time.monotonic()
    seconds = 60 * options.minutes
    results.set("limits", measure_limits())
    complete = equality.run(
        start + EQUALITY_END * seconds, lambda row: results.add("equality", row)
    )
    results.set("all_compared", complete)
    jobs = speed.jobs(options.jax_corl)
    share = SPEED_END if options.suite else 1.0
    speed.compare(jobs, start + share * seconds, lambda row: results.add("rows", row))
    if options.suite:
        results.set("evidence", evidence.run(options.suite, start + seconds))


def main(arguments: Sequence[str]) -> None:
    options = build(Options, parse_options(arguments))
    if not torch.cuda.is_available():
        raise UserError("benchmarks.gpu: no CUDA device is available. Use `offline-rl bench`.")
    results = Results(Path(options.out))
    measure(options, results)
    print(page(results.values))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

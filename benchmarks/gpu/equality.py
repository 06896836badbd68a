"""Equality of results on the GPU and on a CPU, in every phase of every algorithm.

    python -m benchmarks.gpu.equality <k> <n>

This command compares every n-th algorithm, from the k-th on, and prints a line of JSON per phase.
The networks, data and programs are those of the contract tests. They are not compiled, because a
compilation takes minutes; contenders of the speed table compare their compiled programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.figures import import_path
from offline_rl.algorithms.common.registry import algorithm_names
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MAX_PROCESSES = 12  # each needs about 1 GB of GPU memory
# Allowed difference of parameters from those of a CPU after at most eight updates. Rounding can
# flip the sign of a step of Adam, whose size is the learning rate.
TOLERANCE = 1e-3


def contract() -> Any:
    """Return the module of the contract tests. Raises UserError without pytest."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        return import_module("tests.offline_rl.algorithms.test_contract")
    except ModuleNotFoundError as error:
        raise UserError(f"benchmarks.gpu: {error}. Run `pip install -e '.[dev]'`.") from None


def compare(names: Iterable[str], device: str, keep: Callable[[dict[str, Any]], object]) -> None:
    """Pass the differences in each phase of the algorithms to `keep`."""
    tests = contract()
    for name in names:
        for phase in tests.phases_on_gpu(name):
            row = {"algorithm": name, "phase": phase}
            row |= {"ill_conditioned": (name, phase) in tests.ILL_CONDITIONED}
            try:
                row |= tests.device_differences(name, phase, device)
            except Exception as error:  # other phases may run
                row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            keep(row)


def is_equal(row: Mapping[str, Any]) -> bool:
    """Return True if the results of a phase are those of a CPU, up to rounding."""
    if "error" in row:
        return False
    close = row["cpu"] < TOLERANCE or row["ill_conditioned"]
    return bool(close and row["repeated"] == row["uncaptured"] == 0)


def run(end: float, keep: Callable[[dict[str, Any]], None]) -> bool:
    """Compare all algorithms in parallel until `end`; return False if some were not compared.

    end: reading of time.monotonic(). keep: called with the results of each phase.
    """
    contract()  # raises an error if something is missing
    count = min(MAX_PROCESSES, hardware.num_cores())
    environment = os.environ | {"PYTHONPATH": import_path(ROOT), "OMP_NUM_THREADS": "1"}
    module = [sys.executable, "-m", "benchmarks.gpu.equality"]
    processes = [
        subprocess.Popen(
            [*module, str(k), str(count)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(count)
    ]

    def read(process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            keep(json.loads(line))

    with ThreadPoolExecutor(count) as pool:
        reading = [pool.submit(read, process) for process in processes]
        while time.monotonic() < end and not all(future.done() for future in reading):
            time.sleep(0.1)
        on_time = all(future.done() for future in reading)
        for process in [] if on_time else processes:
            process.kill()
    return on_time and all(process.wait() == 0 for process in processes)


def main() -> None:
    first, step = map(int, sys.argv[1:])
    compare(algorithm_names()[first::step], "cuda", lambda row: print(json.dumps(row), flush=True))


if __name__ == "__main__":
    main()

"""Measure steps per second of every environment, alone and in batches of 64, with random actions.

python -m benchmarks.environments [environments=[push/standard,Hopper-v4]]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Names, check_names, run_command
from envs.tasks import NATIVE
from offline_rl.utils import hardware
from offline_rl.utils.options import build, parse_options
from offline_rl.utils.text import table

BATCH, SECONDS, BLOCKS = 64, 1.0, 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    environments: Names = tuple(sorted(NATIVE))


def rate(name: str, count: int, threads: int) -> float:
    """Return environment steps per second, including resets; the median of the blocks."""
    env = NATIVE[name](count, num_threads=threads)
    rng, seed, rates = np.random.default_rng(0), count, list[float]()
    env.reset(range(count))
    for _ in range(BLOCKS):
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            step = env.step(rng.uniform(-1, 1, (count, env.action_dim)))
            steps += count
            over = np.flatnonzero(step.terminated | step.truncated)
            if len(over):
                env.reset(range(seed, seed + len(over)), over)
                seed += len(over)
        rates.append(steps / (time.perf_counter() - started))
    env.close()
    return statistics.median(rates)


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    names = check_names(options.environments, "environment", NATIVE)
    threads, out = hardware.num_cores(), Path("benchmarks/results")
    # rows of other environments are left unchanged
    rows = json.loads((out / "environments.json").read_text())["rates"]
    for name in names:
        try:
            sizes = ((1, 1), (BATCH, 1), (BATCH, threads))
            rows[name] = [round(rate(name, *size)) for size in sizes]
        except ValueError as error:  # an extra is missing
            print(f"{name}: {error}")
            continue
        print(name, rows[name], flush=True)
    machine = hardware.describe_machine()
    header = ["environment", "one", f"{BATCH}, one thread", f"{BATCH}, {threads} threads"]
    body = [[f"`{name}`", *(f"{r:,}" for r in rates)] for name, rates in rows.items()]
    facts = f"Cores {machine['cores']}, MuJoCo {machine['mujoco']}, commit {machine['commit']}."
    page = ["# Environments: steps per second", "`python -m benchmarks.environments`"]
    page += [table(header, body, markdown=True), facts]
    (out / "environments.md").write_text("\n\n".join(page) + "\n")
    result = {"command": "python -m benchmarks.environments", "machine": machine, "rates": rows}
    (out / "environments.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

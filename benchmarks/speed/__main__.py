"""Updates per second against the eager single-seed baseline, interleaved in one run on one machine.

    python -m benchmarks.speed algorithms=td3_bc,iql seeds=1,8 precisions=fp32,bf16 device=cpu

Sizes: observations 17, actions 6, batch 256, hidden layers of 256 (CQL: three of them, 10 samples).
Every block of every contender is preceded and followed by the others' blocks; medians of the blocks
are compared, and the machine's matrix rate is measured in the same minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed.eager import BASELINES, Buffer
from offline_rl import hardware
from offline_rl.buffer import ReplayBuffer
from offline_rl.config import algorithm_class
from offline_rl.data import Dataset
from offline_rl.engine import Engine
from policies import Spec

OBS, ACT, ROWS = 17, 6, 100_000
MFLOP = {"td3_bc": 423, "iql": 478}  # per update: 11.5 and 13 forward passes of a critic


def dataset() -> Dataset:
    draw = np.random.default_rng(0)
    observations = draw.normal(size=(ROWS + 1, OBS))
    ends = np.arange(ROWS) % 1000 == 999
    return Dataset.from_arrays(
        observations[:-1],
        draw.uniform(-1, 1, (ROWS, ACT)),
        draw.normal(size=ROWS),
        np.zeros(ROWS, bool),
        ends,
        observations[1:],
    )


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s of a 2048 x 256 x 256 product."""
    a = torch.randn(2048, 256, device=device, dtype=dtype)
    b = torch.randn(256, 256, device=device, dtype=dtype)
    rates = []
    for _ in range(7):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(200):
            a @ b
        synchronise(device)
        rates.append(200 * 2 * 2048 * 256 * 256 / (time.perf_counter() - started) / 1e9)
    return statistics.median(rates)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(
    name: str, seeds: int, precision: Any, device: torch.device, compiled: bool = True
) -> tuple[Callable[[int], None], float]:
    """(run n updates of every seed, seconds of compilation)."""
    cls = algorithm_class(name)
    buffer = ReplayBuffer.from_dataset(dataset(), device=device)
    engine = Engine(
        lambda _: cls(Spec((OBS,), ACT), cls.Config(), 1_000_000),
        range(seeds),
        buffer,
        device=device,
        precision=precision,
        compile=compiled,
    )
    engine.program()
    return engine.run, engine.compile_seconds


def eager(name: str, device: torch.device) -> Callable[[int], None]:
    data = dataset()
    tensors = {
        "observations": data.observations[:ROWS],
        "next_observations": data.next_observations,
        "actions": data.actions,
        "rewards": data.rewards,
        "dones": data.terminated.astype(np.float32),
    }
    buffer = Buffer(
        {k: torch.from_numpy(np.ascontiguousarray(v)).to(device) for k, v in tensors.items()}
    )
    learner = BASELINES[name](OBS, ACT, device)

    def run(updates: int) -> None:
        for _ in range(updates):
            learner.train(buffer.sample())

    return run


def compare(
    name: str, seeds: list[int], precisions: list[str], device: torch.device, blocks: int
) -> list[dict[str, Any]]:
    """Rows: contender, seeds, precision, seed-updates/s of each block."""
    rows: list[dict[str, Any]] = [{"contender": "eager", "seeds": 1, "precision": "fp32"}]
    runs, compile_seconds = [eager(name, device)], [0.0]
    for precision in precisions:
        for count in seeds:
            run, seconds = ours(name, count, precision, device)
            rows.append({"contender": "ours", "seeds": count, "precision": precision})
            runs.append(run)
            compile_seconds.append(seconds)
            print(f"{name} {precision} {count} seeds: built in {seconds:.0f} s", flush=True)
    numbers = []
    for run in runs:  # a block lasts about two seconds
        run(20)
        synchronise(device)
        started = time.perf_counter()
        run(20)
        synchronise(device)
        numbers.append(max(2, round(40 / (time.perf_counter() - started) / 2) * 2))
    for row in rows:
        row["blocks"] = []
    for _ in range(blocks):
        for row, run, number in zip(rows, runs, numbers, strict=True):
            started = time.perf_counter()
            run(number)
            synchronise(device)
            row["blocks"].append(row["seeds"] * number / (time.perf_counter() - started))
    base = statistics.median(rows[0]["blocks"])
    for row, seconds in zip(rows, compile_seconds, strict=True):
        row["algorithm"], row["compile_seconds"] = name, round(seconds, 1)
        row["seed_updates_per_second"] = round(statistics.median(row["blocks"]), 1)
        row["ratio_to_eager"] = round(row["seed_updates_per_second"] / base, 2)
        row["blocks"] = [round(b, 1) for b in row["blocks"]]
        if name in MFLOP:
            row["gflop_per_second"] = round(row["seed_updates_per_second"] * MFLOP[name] / 1e3, 1)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| algorithm | contender | precision | seeds | seed-updates/s | × eager | first call, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['algorithm']} | {r['contender']} | {r['precision']} | {r['seeds']} | "
            f"{r['seed_updates_per_second']:,.0f} | {r['ratio_to_eager']:.2f} | "
            f"{r['compile_seconds']:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    options = {
        "algorithms": "td3_bc,iql",
        "seeds": "1,8",
        "precisions": "fp32,bf16",
        "device": "auto",
        "blocks": "7",
        "out": "benchmarks/results/speed",
    }
    options |= dict(argument.split("=", 1) for argument in arguments)
    device = hardware.device(options["device"])
    rows: list[dict[str, Any]] = []
    for name in options["algorithms"].split(","):
        seeds = [int(s) for s in options["seeds"].split(",")]
        rows += compare(
            name, seeds, options["precisions"].split(","), device, int(options["blocks"])
        )
    rates = {
        str(dtype).removeprefix("torch."): round(matmul_rate(device, dtype), 1)
        for dtype in (torch.float32, torch.bfloat16)
    }
    machine = hardware.description() | {"threads": torch.get_num_threads()}
    result = {"command": " ".join(["python -m benchmarks.speed", *arguments]), "machine": machine}
    result |= {"matmul_gflop_per_second": rates, "rows": rows}
    out = Path(f"{options['out']}-{device.type}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    text = f"# Speed on {device.type}\n\n`{result['command']}`\n\n{table(rows)}\n\n"
    text += f"Matrix products 2048 x 256 x 256 in the same minutes, GFLOP/s: {rates}. "
    text += f"Cores {machine['cores']}, threads {machine['threads']}, torch {machine['torch']}, "
    text += (
        f"bf16 units {machine['bf16_units']}, GPU {machine['gpu']}, commit {machine['commit']}.\n"
    )
    out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])

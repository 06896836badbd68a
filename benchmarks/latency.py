"""How long a decision takes, one episode at a time: bundles and runtimes in turns.

    python -m benchmarks.latency <file.json> name=<bundle> … [seconds=20] [runtimes=[torch,onnx]]

Each step is a decision: the episode begins anew before it, outside what is timed. One thread of the
CPU. Writes the figures, and a page beside them. A bundle without graphs (`offline-rl export
format=onnx`) is timed by torch alone. Nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import policies
from benchmarks.figures import written
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from offline_rl.utils.options import parse
from offline_rl.utils.text import table, wrapped
from policies import Spec, channels
from policies.bundle import read
from policies.policy import BundlePolicy

RUNTIMES = ("torch", "onnx")
LEAST = 20  # decisions of each
HEADER = ["policy", "runtime", "p50 ms", "p99 ms", "largest", "decisions"]


def decisions(made: Mapping[tuple[str, str], BundlePolicy], seconds: float) -> list[dict[str, Any]]:
    """A row for each policy and runtime: ms of a decision, p50, p99 and largest."""
    import torch

    torch.set_num_threads(1)
    players = {key: policies.Player(policy) for key, policy in made.items()}
    seen = {key: nothing(policy.spec) for key, policy in made.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in made}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, times.values())) < LEAST:
        for key, player in players.items():
            player.reset(0)  # so that each step is a decision
            begun = time.perf_counter()
            player.step(seen[key])
            times[key].append(1e3 * (time.perf_counter() - begun))
    return [
        {
            "policy": name,
            "runtime": runtime,
            "decisions": len(found),
            "ms": np.percentile(found[len(found) // 10 :], [50, 99, 100]).tolist(),
        }
        for (name, runtime), found in times.items()
    ]


def nothing(spec: Spec) -> Any:
    """An observation of zeros."""
    shapes = spec.observation_shape if spec.lone is not None else spec.seen
    return channels.each(lambda shape: np.zeros(shape, channels.dtype(shape)), shapes)


def loaded(bundles: Mapping[str, str], runtimes: Sequence[str]) -> dict[tuple[str, str], Any]:
    """What can be run. Raises UserError."""
    made = {}
    for (name, path), runtime in product(bundles.items(), runtimes):
        try:
            if runtime == "onnx" and not read(path).graphs:
                continue
            made[name, runtime] = policies.load(path, runtime=runtime)
        except policies.BundleError as error:
            raise UserError(f"{name}={path}: {error}") from None
    return made


def page(found: Mapping[str, Any]) -> str:
    """A table of the figures."""
    body = [
        [row["policy"], row["runtime"], *(f"{ms:.3f}" for ms in row["ms"]), f"{row['decisions']:,}"]
        for row in found["rows"]
    ]
    machine = found["machine"]
    note = (
        "Milliseconds of one decision for one episode, on one thread of the CPU, policies and "
        f"runtimes in turns. {machine['cores']} cores, load {found['load']}."
    )
    head = "# Latency\n\n*Made by `python -m benchmarks.latency`, not by hand.*"
    return f"{head}\n\n{table(HEADER, body, left=2, markdown=True)}\n\n{wrapped(note)}"


def measure(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The file that is asked for, and the figures. Raises UserError where that cannot be."""
    if not arguments or "=" in arguments[0]:
        raise UserError(f"give a file for the figures first\n{__doc__}")
    given = parse(arguments[1:])
    seconds, runtimes = given.pop("seconds", 20.0), given.pop("runtimes", RUNTIMES)
    if not given:
        raise UserError("give bundles: name=<bundle>")
    made = loaded({name: str(path) for name, path in given.items()}, runtimes)
    return Path(arguments[0]), {
        "rows": decisions(made, float(seconds)),
        "sha256": {name: checksum(Path(path)) for name, path in given.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def main(arguments: Sequence[str]) -> int:
    """0: measured and written; 2: the user's mistake."""
    return written(lambda: measure(arguments), page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure how long a policy takes to compute an action or a chunk (a decision).

    python -m benchmarks.latency <file.json> name=<bundle> … [seconds=20] [runtimes=[torch,onnx]]
        [samples=[4,32]]

samples= adds policies with untrained networks of FQL's sizes: the one-step policy of FQL, and IFQL's
best of each number of samples.

Bundles and runtimes take turns, on one CPU thread. The episode is reset before each step, outside
the timed section, so every step is a decision. Writes the results and a page next to them. A bundle
without ONNX graphs (`offline-rl export format=onnx`) is timed with torch only. Nothing else should
run on the machine.
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
from benchmarks.figures import run_measurement
from offline_rl.algorithms.fql import FQL
from offline_rl.algorithms.ifql import IFQL
from offline_rl.data.transform import Transform
from offline_rl.evaluation.bundles import bundled
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from offline_rl.utils.options import parse_options
from offline_rl.utils.text import table, wrap_text
from policies import Normalizer, Spec, channels
from policies.bundle import read
from policies.export import export_bundle
from policies.golden import open_bundle, seal
from policies.policy import BundlePolicy

RUNTIMES = ("torch", "onnx")
MIN_DECISIONS = 20  # per policy and runtime
HEADER = ["policy", "runtime", "p50 ms", "p99 ms", "max ms", "decisions"]


def decisions(
    bundles: Mapping[tuple[str, str], BundlePolicy], seconds: float
) -> list[dict[str, Any]]:
    """Return a row per policy and runtime with the p50, p99 and maximum of a decision in ms."""
    import torch

    torch.set_num_threads(1)
    players = {key: policies.Player(policy) for key, policy in bundles.items()}
    observations = {key: zero_observation(policy.spec) for key, policy in bundles.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in bundles}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, times.values())) < MIN_DECISIONS:
        for key, player in players.items():
            player.reset(0)  # otherwise the player would return the rest of a chunk
            start = time.perf_counter()
            player.step(observations[key])
            times[key].append(1e3 * (time.perf_counter() - start))
    return [
        {
            "policy": name,
            "runtime": runtime,
            "decisions": len(values),
            "ms": np.percentile(values[len(values) // 10 :], [50, 99, 100]).tolist(),
        }
        for (name, runtime), values in times.items()
    ]


def zero_observation(spec: Spec) -> Any:
    """Return an observation of zeros."""
    shapes = spec.observation_shape if spec.single_vector is not None else spec.observation_shapes
    return channels.map_channels(lambda shape: np.zeros(shape, channels.dtype(shape)), shapes)


def load_bundles(bundles: Mapping[str, str], runtimes: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Return the policies that can run, by name and runtime. Raises UserError."""
    loaded = {}
    for (name, path), runtime in product(bundles.items(), runtimes):
        try:
            if runtime == "onnx" and not read(path).graphs:
                continue
            loaded[name, runtime] = policies.load(path, runtime=runtime)
        except policies.BundleError as error:
            raise UserError(f"{name}={path}: {error}") from None
    return loaded


def make_policies(samples: Sequence[int], runtimes: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Return FQL's one-step policy, and IFQL's best of N samples for each N of `samples`.

    Networks are untrained: 4 layers of 512 units, 10 integration steps, for 28 observations and 5
    actions, the sizes of OGBench's cube-single.
    """
    spec = Spec((28,), 5)
    algorithms = {"one step": FQL(spec, FQL.Config())}
    algorithms |= {f"best of {n}": IFQL(spec, IFQL.Config(num_samples=n)) for n in samples}
    transform, made = Transform(Normalizer.identity((28,))), {}
    for name, algorithm in algorithms.items():
        params = algorithm.acting_params(algorithm.initial()["params"])
        weights = {k: v.numpy() for k, v in params.items()}
        bundle = export_bundle(seal(bundled(algorithm, weights, transform, {})))[0]
        made |= {(name, each): open_bundle(bundle, each, {}, units=False) for each in runtimes}
    return made


def page(results: Mapping[str, Any]) -> str:
    """Return the page with the table of results."""
    body = [
        [row["policy"], row["runtime"], *(f"{ms:.3f}" for ms in row["ms"]), f"{row['decisions']:,}"]
        for row in results["rows"]
    ]
    machine = results["machine"]
    note = (
        "Milliseconds to compute an action or a chunk (a decision) for one episode, on one CPU "
        "thread. Policies and runtimes were measured in turn. "
        f"{machine['cores']} cores, load {results['load']}."
    )
    head = "# Latency\n\n*Made by `python -m benchmarks.latency`, not by hand.*"
    return f"{head}\n\n{table(HEADER, body, left=2, markdown=True)}\n\n{wrap_text(note)}"


def measure(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the output file and the results. Raises UserError for wrong arguments."""
    if not arguments or "=" in arguments[0]:
        raise UserError(f"The first argument must be the file for the results.\n{__doc__}")
    options = parse_options(arguments[1:])
    seconds, runtimes = options.pop("seconds", 20.0), options.pop("runtimes", RUNTIMES)
    samples = options.pop("samples", ())
    if not options and not samples:
        raise UserError("No bundle was given. Use name=<bundle> or samples=[4,32].")
    bundles = load_bundles({name: str(path) for name, path in options.items()}, runtimes)
    bundles |= make_policies(samples, runtimes) if samples else {}
    return Path(arguments[0]), {
        "rows": decisions(bundles, float(seconds)),
        "sha256": {name: checksum(Path(path)) for name, path in options.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""
    return run_measurement(lambda: measure(arguments), page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

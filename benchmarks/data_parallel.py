"""Measure how many samples per second one or several processes of torchrun train.

    python -m benchmarks.data_parallel <file.json> [algorithm=diffusion_policy] [processes=[1,2]]
        [images=true] [batch_size=256] [num_updates=100] [blocks=3] [device=auto] [algorithm.…=…]

All process counts train the same policy on the same batches of random demonstrations in a temporary
folder. Their commands run in turn. Each process has one CPU thread, or one
GPU. Writes the results and a page next to them. Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.figures import run_measurement
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text

ROWS, LENGTH, SIDE, STATE, ACTIONS = 2_000, 100, 96, 8, 4
TRAIN = """
import sys
import numpy as np
import offline_rl
from offline_rl.utils.options import parse_options

arrays = np.load("demonstrations.npz")
names = ("camera", "state") if "camera" in arrays else ("state",)
observations = {name: arrays[name] for name in names}
observations = observations if len(names) > 1 else observations["state"]
ends, rewards = arrays["ends"], np.zeros(len(arrays["ends"]))
data = offline_rl.Dataset.from_arrays(observations, arrays["actions"], rewards, ends & False, ends)
keys = {"task": "none", "dataset": data, "tracker": "none", "seeds": 1, "show": False}
offline_rl.train(**keys, **parse_options(sys.argv[1:]))
"""


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command. Other options are those of `offline-rl train`."""

    algorithm: str = "diffusion_policy"  # an algorithm that torchrun can train
    processes: list[Count] = field(default_factory=lambda: [1, 2])  # numbers of processes
    images: bool = True  # observations have a camera image of 96 x 96 pixels
    batch_size: Count = 256  # rows of a batch, shared by the processes
    num_updates: Count = 100  # updates of a command
    blocks: Count = 3  # commands for each number of processes
    device: str = "auto"  # auto, cpu, cuda


def write_demonstrations(path: Path, images: bool) -> None:
    """Write random demonstrations."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"state": draw.normal(size=(ROWS, STATE)).astype(np.float32)}
    if images:
        arrays["camera"] = draw.integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    actions = draw.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32)
    np.savez(path, actions=actions, ends=np.arange(1, ROWS + 1) % LENGTH == 0, **arrays)


def updates_per_second(folder: Path, processes: int, keys: Mapping[str, Any]) -> float:
    """Return the rate of one command in `folder`. Raises UserError if it fails."""
    words = [f"{name}={value}" for name, value in keys.items()]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [sys.executable, *(launcher if processes > 1 else ()), "train.py", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path[1:])},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UserError(f"{processes} processes failed: {done.stderr[-2000:]}")
    (result,) = folder.glob(f"{keys['out']}/*/*/*/seed_0/result.json")
    return float(read_json_object(result)["updates_per_second"])


def measure(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the output file and the results. Raises UserError."""
    if not arguments or "=" in arguments[0]:
        raise UserError(f"The first argument must be the file for the results.\n{__doc__}")
    keys = parse_options(arguments[1:])
    known = {k: keys.pop(k) for k in list(keys) if k in Options.__dataclass_fields__}
    options = build(Options, known)
    names = ("algorithm", "batch_size", "num_updates", "device")
    keys |= {name: getattr(options, name) for name in names}
    rates: dict[int, list[float]] = {count: [] for count in options.processes}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        write_demonstrations(folder / "demonstrations.npz", options.images)
        for block in range(options.blocks):
            for count in options.processes:
                out = keys | {"out": f"{block}-{count}"}
                rates[count].append(updates_per_second(folder, count, out))
    rows = [
        {"processes": count, "samples_per_second": [options.batch_size * x for x in values]}
        for count, values in rates.items()
    ]
    return Path(arguments[0]), {"rows": rows, "keys": keys, "images": options.images}


def page(results: Mapping[str, Any]) -> str:
    """Return the page with the table of results."""
    medians = [statistics.median(row["samples_per_second"]) for row in results["rows"]]
    body = [
        [str(row["processes"]), f"{median:,.0f}", f"{median / medians[0]:.2f}"]
        for row, median in zip(results["rows"], medians, strict=True)
    ]
    keys = " ".join(f"{name}={value}" for name, value in results["keys"].items())
    observes = f"a {SIDE} x {SIDE} image and {STATE} numbers" if results["images"] else "states"
    note = (
        f"Median over commands. `{keys}`; observations are {observes}. "
        f"{results['machine']['cores']} cores, one thread or GPU for each process."
    )
    header = ["processes", "samples/s", "× first row"]
    head = "# Data parallelism\n\n*Made by `python -m benchmarks.data_parallel`, not by hand.*"
    return f"{head}\n\n{table(header, body, markdown=True)}\n\n{wrap_text(note)}"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""
    return run_measurement(lambda: measure(arguments), page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

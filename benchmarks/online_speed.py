"""Measure environment steps per second of online training, end to end.

    python -m benchmarks.online_speed [method=rlpd] [task=] [seconds=20] [blocks=7] [device=auto]

rlpd: 20 updates of ten critics per step, by `offline-rl train` with and without `overlap`.
dppo: iterations of 10,000 steps, by `offline-rl finetune` for one seed and for three.
Both methods take turns with the same method in plain PyTorch on this machine. Nothing else should
run on the machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.figures import run_measurement
from benchmarks.speed.bench import Contender
from offline_rl.utils import hardware
from offline_rl.utils.options import Checked, Count, Positive, build, parse_options
from offline_rl.utils.text import table, wrap_text

HEADER = ["", "env steps/s", "slowest", "fastest", "× plain", "updates/s"]
HEADER += ["simulator", "acting", "learner", "waiting"]
RLPD = """
Environment steps per second of one seed, simulator included: the median, slowest and fastest of
{blocks} turns of {seconds:g} s. Networks have two hidden layers of 256 units. Batches have 256
rows, half of them from the data set. Plain PyTorch computes in float32, and so does `ours` unless
the row says precision=bf16. A ratio of bf16 to plain PyTorch therefore includes the effect of
precision. The last four columns are fractions of our loop's time. With `overlap` the simulator runs
during the learner's updates, and only the remaining waiting time counts.
{machine}
"""
DPPO = """
Environment steps per second of all seeds together, simulator included: the median, slowest and
fastest of {blocks} turns of complete iterations, about {seconds:g} s each. In an iteration, a seed
makes 5,000 decisions of two actions in 50 environments, with 20 denoising steps per decision. Then
it makes 50 updates: five epochs over the last five denoising steps, in batches of 2,500. Networks
have three hidden layers of 256 units. The last four columns are fractions of our loop's time;
acting includes sampling and advantages. {machine}
"""
ONE, THREE = {"seeds": 1, "compile": "always"}, {"seeds": 3, "compile": "always"}


@dataclass(frozen=True)
class Method:
    """A method to time, and the folder of its results."""

    folder: str
    title: str
    task: str
    note: str
    eager: str  # kind of the plain PyTorch contender in the worker
    ours: Mapping[str, Mapping[str, Any]]  # our contenders by name, with their options
    updates: float  # per environment step
    first_ticks: int  # ticks of a first turn, whose time determines the length of later turns


METHODS = {
    "rlpd": Method(
        *("online", "RLPD, 20 updates per step", "Hopper-v4", RLPD, "online_eager"),
        {
            "ours": {"overlap": False},
            "ours, overlap": {"overlap": True},
            "ours, precision=bf16": {"overlap": False, "precision": "bf16"},
        },
        20,
        10,
    ),
    "dppo": Method(
        *("denoising-rl", "DPPO, consecutive iterations", "push/standard-expert", DPPO),
        "rollouts_eager",
        {
            "ours, one seed": ONE,
            "ours, three seeds": THREE,
            "ours, one seed, not compiled": ONE | {"compile": "never"},
        },
        1 / 200,
        1,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    method: Literal["rlpd", "dppo"] = "rlpd"
    task: str | None = None  # default: the method's
    seconds: Positive = 20.0  # length of a turn
    blocks: Count = 7  # turns per contender
    device: str = "auto"


def measure(options: Options) -> list[dict[str, Any]]:
    """Return a row per contender, with its turns."""
    device, method = hardware.select_device(options.device).type, METHODS[options.method]
    common = {"task": options.task or method.task, "device": device}
    jobs: list[dict[str, Any]] = [{"kind": method.eager, **common}]
    ours = method.eager.replace("eager", "ours")
    jobs += [{"kind": ours, **keys, **common} for keys in method.ours.values()]
    contenders, rows = list[Contender](), list[dict[str, Any]]()
    try:
        for job in jobs:
            contenders.append(Contender(job, device=device))
            rows.append({**job, "turns": []})
            print(f"{job}: ready", flush=True)
        numbers = list[int]()
        for contender in contenders:
            done, seconds = contender.run(method.first_ticks)
            numbers.append(max(1, round(options.seconds * done / seconds)))
        for _ in range(options.blocks):
            for contender, row, number in zip(contenders, rows, numbers, strict=True):
                time.sleep(0.3)  # threads of the previous contender spin for a moment
                done, seconds = contender.run(number)
                row["turns"].append(done / seconds)
                row["shares"] = contender.last_report.get("shares", {})
    finally:
        for contender in contenders:
            contender.stop()
    return rows


def page(results: dict[str, Any]) -> str:
    """Return the page with the table."""
    rows, options = results["rows"], Options(**results["options"])
    method = METHODS[options.method]
    plain, body = statistics.median(rows[0]["turns"]), list[list[str]]()
    for name, row in zip(("plain PyTorch", *method.ours), rows, strict=True):
        rate, shares = statistics.median(row["turns"]), row["shares"]
        cells = [name, *(f"{x:.1f}" for x in (rate, min(row["turns"]), max(row["turns"])))]
        cells += [f"{rate / plain:.2f}", f"{rate * method.updates:.3g}"]
        names = ("simulator", "acting", "learner", "waiting")
        body.append(cells + [f"{100 * shares[k]:.1f} %" if k in shares else "" for k in names])
    note = method.note.format(
        blocks=options.blocks,
        seconds=options.seconds,
        machine=f"{rows[0]['task']}, {rows[0]['device']}, {hardware.num_cores()} cores.",
    )
    key = "" if options.method == "rlpd" else f" method={options.method}"
    command = f"*Made by `python -m benchmarks.online_speed{key}`, not by hand.*"
    rates = table(HEADER, body, markdown=True)
    return "\n\n".join([f"# {method.title}", command, rates, wrap_text(note.strip())]) + "\n"


def main(arguments: list[str]) -> int:
    """Write speed-<device>.json and .md; return the exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments))
        rows = measure(options)
        folder = Path("benchmarks/results") / METHODS[options.method].folder
        return folder / f"speed-{rows[0]['device']}.json", {"options": vars(options), "rows": rows}

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

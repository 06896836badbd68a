"""Environment steps a second of learning online, end to end.

    python -m benchmarks.online_speed [method=rlpd] [task=] [seconds=20] [blocks=7] [device=auto]

rlpd: 20 updates of ten critics for each step, `offline-rl train` itself with and without `overlap`.
dppo: iterations of 10,000 steps, `offline-rl finetune` itself for one seed and for three. Beside
them the same written in plain PyTorch, in turns on this machine. Nothing else should run meanwhile.
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
Environment steps a second of one seed, simulator included: the median, slowest and fastest of
{blocks} turns of {seconds:g} s. Two hidden layers of 256, batches of 256, half of them data. `ours`
computes in float32, as plain PyTorch does, unless precision=bf16 is asked for. Shares
are of our own loop's time; with `overlap` the simulator's falls into the learner's and costs what
the loop then still waits for it. A ratio of bf16 to plain PyTorch is one of precision too.
{machine}
"""
DPPO = """
Environment steps a second of all seeds together, simulator included: the median, slowest and
fastest of {blocks} turns of whole iterations, about {seconds:g} s each. A seed's iteration: 5,000
decisions of two actions in 50 environments, 20 denoising steps each, then five visits to the last
five of them in batches of 2,500, 50 updates; three hidden layers of 256. Shares are of our own
loop's time; acting holds the sampling and the advantages. {machine}
"""
ONE, THREE = {"seeds": 1, "compile": "always"}, {"seeds": 3, "compile": "always"}


@dataclass(frozen=True)
class Method:
    """What is timed, and where the figures lie."""

    folder: str
    title: str
    task: str
    note: str
    eager: str  # the worker's kind of the plain contender
    ours: Mapping[str, Mapping[str, Any]]  # by name: what ours is told
    updates: float  # for each environment step
    least: int  # ticks in a first turn, from which the number of the others follows


METHODS = {
    "rlpd": Method(
        *("online", "RLPD, 20 updates a step", "Hopper-v4", RLPD, "online_eager"),
        {
            "ours": {"overlap": False},
            "ours, overlap": {"overlap": True},
            "ours, precision=bf16": {"overlap": False, "precision": "bf16"},
        },
        20,
        10,
    ),
    "dppo": Method(
        *("denoising-rl", "DPPO, an iteration after another", "push/standard-expert", DPPO),
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
    """What the command takes."""

    method: Literal["rlpd", "dppo"] = "rlpd"
    task: str | None = None  # default: the method's
    seconds: Positive = 20.0  # of a turn
    blocks: Count = 7  # turns of each
    device: str = "auto"


def measure(options: Options) -> list[dict[str, Any]]:
    """A row for each contender, with its turns."""
    device, method = hardware.select_device(options.device).type, METHODS[options.method]
    own = {"task": options.task or method.task, "device": device}
    jobs: list[dict[str, Any]] = [{"kind": method.eager, **own}]
    ours = method.eager.replace("eager", "ours")
    jobs += [{"kind": ours, **told, **own} for told in method.ours.values()]
    contenders, rows = list[Contender](), list[dict[str, Any]]()
    try:
        for job in jobs:
            contenders.append(Contender(job, device=device))
            rows.append({**job, "turns": []})
            print(f"{job}: ready", flush=True)
        numbers = list[int]()
        for contender in contenders:
            done, seconds = contender.run(method.least)
            numbers.append(max(1, round(options.seconds * done / seconds)))
        for _ in range(options.blocks):
            for contender, row, number in zip(contenders, rows, numbers, strict=True):
                time.sleep(0.3)  # the last one's threads spin for a moment
                done, seconds = contender.run(number)
                row["turns"].append(done / seconds)
                row["shares"] = contender.answered.get("shares", {})
    finally:
        for contender in contenders:
            contender.stop()
    return rows


def page(found: dict[str, Any]) -> str:
    """The table and what stands in it."""
    rows, options = found["rows"], Options(**found["options"])
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
    told = "" if options.method == "rlpd" else f" method={options.method}"
    command = f"*Made by `python -m benchmarks.online_speed{told}`, not by hand.*"
    made = table(HEADER, body, markdown=True)
    return "\n\n".join([f"# {method.title}", command, made, wrap_text(note.strip())]) + "\n"


def main(arguments: list[str]) -> int:
    """Writes speed-<device>.json and .md; 0, or 2 for the user's mistake."""

    def measured() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments))
        rows = measure(options)
        folder = Path("benchmarks/results") / METHODS[options.method].folder
        return folder / f"speed-{rows[0]['device']}.json", {"options": vars(options), "rows": rows}

    return run_measurement(measured, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

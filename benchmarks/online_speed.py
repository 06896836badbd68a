"""Environment steps a second of RLPD, 20 updates of ten critics for each, end to end.

    python -m benchmarks.online_speed [task=Hopper-v4] [seconds=20] [blocks=7] [device=auto]

`offline-rl train` itself, with and without `overlap`, beside the same update written in plain
PyTorch, in turns on this machine. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.bench import Contender
from offline_rl.utils import hardware
from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.options import Checked, Count, Positive, build, parse
from offline_rl.utils.text import table

FOLDER = Path("benchmarks/results/online")
NAMES = {"online_eager": "plain PyTorch", "online_ours": "ours"}
HEADER = ["", "env steps/s", "slowest", "fastest", "× plain", "simulator", "acting", "learner"]
NOTE = """
Environment steps a second of one seed, simulator included: the median, slowest and fastest of
{blocks} turns of {seconds:g} s. Two hidden layers of 256, batches of 256, half of them data. Shares
are of our own loop's time; with `overlap` the simulator's falls into the learner's and costs what
the loop then still waits for it ({waiting}). {machine}
"""


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes."""

    task: str = "Hopper-v4"
    seconds: Positive = 20.0  # of a turn
    blocks: Count = 7  # turns of each
    device: str = "auto"


def measure(options: Options) -> list[dict[str, Any]]:
    """A row for each contender, with its turns."""
    device = hardware.device(options.device).type
    own = {"task": options.task, "device": device}
    jobs: list[dict[str, Any]] = [{"kind": "online_eager", **own}]
    jobs += [{"kind": "online_ours", "overlap": overlap, **own} for overlap in (False, True)]
    contenders, rows = list[Contender](), list[dict[str, Any]]()
    try:
        for job in jobs:
            contenders.append(Contender(job, device=device))
            rows.append({**job, "turns": []})
            print(f"{job}: ready", flush=True)
        numbers = list[int]()
        for contender in contenders:
            done, seconds = contender.run(10)
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


def page(rows: list[dict[str, Any]], options: Options) -> str:
    """The table and what stands in it."""
    plain, body = statistics.median(rows[0]["turns"]), list[list[str]]()
    for row in rows:
        rate, shares = statistics.median(row["turns"]), row["shares"]
        name = NAMES[row["kind"]] + (", overlap" if row.get("overlap") else "")
        cells = [name, *(f"{x:.1f}" for x in (rate, min(row["turns"]), max(row["turns"])))]
        cells += [f"{rate / plain:.2f}"]
        names = ("simulator", "acting", "learner")
        body.append(cells + [f"{100 * shares[k]:.1f} %" if shares else "" for k in names])
    note = NOTE.format(
        blocks=options.blocks,
        seconds=options.seconds,
        waiting=f"{100 * rows[-1]['shares'].get('waiting', 0):.1f} %",
        machine=f"{options.task}, {rows[0]['device']}, {hardware.cores()} cores.",
    )
    command = "*Made by `python -m benchmarks.online_speed`, not by hand.*"
    return (
        "\n\n".join(["# RLPD, 20 updates a step", command, table(HEADER, body, markdown=True)])
        + note
    )


def main(arguments: list[str]) -> None:
    """Writes speed-<device>.json and .md."""
    options = build(Options, parse(arguments))
    rows = measure(options)
    make_folder(FOLDER)
    name = f"speed-{rows[0]['device']}"
    machine = hardware.description() | {"commit": hardware.commit()}
    write_text(
        FOLDER / f"{name}.json", json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n"
    )
    write_text(FOLDER / f"{name}.md", page(rows, options))
    print(page(rows, options))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Compare the speed of our dynamics models with that of OfflineRL-Kit, in alternating runs.

    python -m benchmarks.model_based_speed kit=<checkout> [blocks=5] [seconds=5]

Two kinds of work are timed: training steps of the ensemble, and rollouts of MOPO's policy in it.
Our engine works on one seed and on five stacked seeds. Contenders are separate processes. Nothing
else should run on the machine.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.conformance.cases import REPOSITORIES
from benchmarks.figures import check_commit, run_measurement
from benchmarks.speed.bench import Contender, ratio, take_turns
from benchmarks.speed.clock import ACT, OBS
from benchmarks.speed.models import HORIZON, STARTS
from offline_rl.utils import hardware
from offline_rl.utils.options import Checked, Count, Positive, build, parse_options
from offline_rl.utils.text import table, wrap_text

REPOSITORY, COMMIT = REPOSITORIES["offlinerl_kit"]
SEEDS = (1, 5)
WORK = {"fit": "training steps", "rollout": "rollouts"}
HEADER = ["work", "contender", "seeds", "per second", "slowest", "fastest", "× OfflineRL-Kit"]
NOTE = """
Per second, summed over seeds: the median, slowest and fastest of {blocks} turns of about
{seconds:g} s. The ratio is the median over the turns of the ratio within a turn. A training step
has 256 rows for each of 7 members with 4 layers of 200 units. A rollout starts from {starts:,}
states, has {horizon} steps with MOPO's penalty, and is stored. Observations have {obs} numbers,
actions {act}. All compute in float32 on {cores} cores. OfflineRL-Kit ({repository} at {commit})
trains one seed per process. A ring with the default settings (50,000 rollouts of 5 steps, five
kept) takes {ring:.0f} MB per seed at these sizes.
"""


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    kit: str | None = None  # checkout of OfflineRL-Kit
    seconds: Positive = 5.0  # length of a turn
    blocks: Count = 5  # number of turns of each contender


def compare(work: str, options: Options) -> list[dict[str, Any]]:
    """Return a row per contender, with its turns."""
    jobs: list[dict[str, Any]] = [{"kind": "models_ours", "work": work, "seeds": n} for n in SEEDS]
    if options.kit is not None:
        jobs.append({"kind": "models_kit", "work": work, "checkout": options.kit})
    contenders, rows = list[Contender](), list[dict[str, Any]]()
    try:
        for job in jobs:
            contenders.append(Contender(job))
            rows.append({"work": work, "kind": job["kind"], "seeds": job.get("seeds", 1)})
            print(f"{work} {job['kind']} {rows[-1]['seeds']}: ready", flush=True)
        turns = take_turns(contenders, options.blocks, options.seconds)
        for row, rates in zip(rows, turns, strict=True):
            row["turns"] = [row["seeds"] * rate for rate in rates]
    finally:
        for contender in contenders:
            contender.stop()
    return rows


def page(results: dict[str, Any]) -> str:
    """Return the page with the table."""
    body = list[list[str]]()
    for row in results["rows"]:
        kit = next(
            (r for r in results["rows"] if r["kind"] == "models_kit" and r["work"] == row["work"]),
            None,
        )
        name = "ours" if row["kind"] == "models_ours" else "OfflineRL-Kit"
        rates = (statistics.median(row["turns"]), min(row["turns"]), max(row["turns"]))
        cells = [WORK[row["work"]], name, str(row["seeds"]), *(f"{x:.2f}" for x in rates)]
        body.append([*cells, ratio(row, kit)])
    numbers = 50_000 * 5 * 5 * (2 * OBS + ACT + 3)
    note = NOTE.format(
        **results["options"],
        starts=STARTS,
        horizon=HORIZON,
        obs=OBS,
        act=ACT,
        cores=results["cores"],
        repository=REPOSITORY,
        commit=COMMIT[:7],
        ring=numbers * 4 / 1e6,
    )
    command = "*Made by `python -m benchmarks.model_based_speed`, not by hand.*"
    parts = ["# Speed of dynamics models", command, table(HEADER, body, markdown=True)]
    return "\n\n".join([*parts, wrap_text(note.strip())]) + "\n"


def main(arguments: list[str]) -> int:
    """Write model-based-speed.json and .md; return the exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments))
        check_commit("kit", options.kit, REPOSITORY, COMMIT)
        rows = [row for work in WORK for row in compare(work, options)]
        results = {
            "options": {"seconds": options.seconds, "blocks": options.blocks},
            "rows": rows,
            "cores": hardware.num_cores(),
        }
        return Path("benchmarks/results/neorl2/model-based-speed.json"), results

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

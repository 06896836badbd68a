"""Measure the environment steps that MBPO, COPlanner and SAC need on InvertedPendulum-v5.

    python -m benchmarks.steps_to_return out=<folder> [seeds=3] [steps=6000] [train=true]

Trains each method, or resumes its run in `out`, and writes benchmarks/results/neorl2/mbpo.md.
train=false: write the page from the evaluations so far.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import run_command
from offline_rl import train
from offline_rl.runs.folder import SeedFolder
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text

PAGE = Path(__file__).parent / "results" / "neorl2" / "mbpo.md"
TASK, GOAL, CONSECUTIVE, EVERY = "env:InvertedPendulum-v5", 950.0, 3, 250
COMMON: dict[str, Any] = {"task": TASK, "eval_every": EVERY, "eval_episodes": 3, "show": False}
COMMON |= {"algorithm.hidden": [64, 64], "online.warmup_steps": 500, "tracker": "none"}
MODEL: dict[str, Any] = {"algorithm.starts": 5_000, "algorithm.dynamics_epochs": 20}
MODEL |= {"algorithm.dynamics_hidden": [100, 100], "algorithm.dynamics_decay": [5e-5]}
METHODS: dict[str, dict[str, Any]] = {
    "mbpo": MODEL,
    "coplanner": MODEL | {"algorithm.real_share": 0.05},
    "sac": {},
    "sac, utd_10": {"online.utd": 10.0},
}
HEADER = ["method", "updates per step", "steps to 950", "per seed", "seeds", "steps taken"]
MADE = "*Made by `python -m benchmarks.steps_to_return`, not by hand.*"
TEXT = """
Environment steps until the mean return of {episodes} evaluation episodes is at least {goal:g} in
{consecutive} consecutive evaluations, one every {every} steps. The steps are those of the first of
these evaluations. "Steps to 950" is the median over seeds. The highest possible return is 1,000.
All methods take 500 random steps first, and have two hidden layers of 64 units. The model has two
hidden layers of 100 units, at most 20 epochs per fit and 5,000 rollouts of one step per fit. The
paper's settings are four layers of 200 units, no limit of epochs, and 100,000 rollouts. COPlanner
has MBPO's share of real rows, 0.05. SAC has its default target entropy.
"""


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    out: str  # folder of the runs
    seeds: Count = 3  # number of seeds
    steps: Count = 6_000  # environment steps of each seed
    train: bool = True  # false: only write the page


def keys_of(method: str, options: Options) -> dict[str, Any]:
    """Return the options of a method's run."""
    algorithm, _, name = method.partition(", ")
    keys = COMMON | METHODS[method] | {"algorithm": algorithm, "name": name or "default"}
    keys |= {"seeds": [*range(options.seeds)], "num_env_steps": options.steps}
    return keys | {"out": options.out, "checkpoint_every": 1_000}


def steps_to_goal(evaluations: Sequence[tuple[int, float]]) -> int | None:
    """Return the steps of the first of CONSECUTIVE evaluations at the goal, or None.

    evaluations: environment steps and mean return of each evaluation, in order.
    """
    for k in range(len(evaluations) - CONSECUTIVE + 1):
        if all(score >= GOAL for _, score in evaluations[k : k + CONSECUTIVE]):
            return evaluations[k][0]
    return None


def row(method: str, options: Options) -> list[str]:
    """Return the row of a method. It has no numbers if there is no evaluation yet."""
    keys = keys_of(method, options)
    run = Path(options.out) / TASK.replace(":", "_") / keys["algorithm"] / keys["name"]
    curves = []
    for seed in keys["seeds"]:
        if (run / f"seed_{seed}").is_dir():
            rows = SeedFolder(run, seed).rows("evaluations")
            curves.append([(x["env_steps"], statistics.fmean(x["returns"])) for x in rows])
    curves = [curve for curve in curves if curve]
    utd = {"sac": 1, "mbpo": 10, "coplanner": 10, "sac, utd_10": 10}[method]
    if not curves:
        return [method, str(utd), "not run", "", "0", ""]
    found = [steps_to_goal(curve) for curve in curves]
    taken = min(curve[-1][0] for curve in curves)
    last = statistics.median(x if x is not None else float("inf") for x in found)
    texts = [
        f"> {curve[-1][0]:,}" if x is None else f"{x:,}"
        for x, curve in zip(found, curves, strict=True)
    ]
    middle = f"{last:,.0f}" if last < float("inf") else f"> {taken:,}"
    return [method, str(utd), middle, "; ".join(texts), str(len(curves)), f"{taken:,}"]


def command(arguments: Sequence[str]) -> None:
    """Train the methods, and write and print the page."""
    options = build(Options, parse_options(arguments))
    for method in METHODS if options.train else ():
        train(**keys_of(method, options))
        write(options)
    write(options)
    print(PAGE.read_text())


def write(options: Options) -> None:
    """Write the page from the evaluations so far. Raises UserError if there is none."""
    rows = [row(method, options) for method in METHODS]
    if all(cells[2] == "not run" for cells in rows):
        raise UserError(f"{options.out} has no evaluations. Use train=true.")
    values = {"episodes": 3, "goal": GOAL, "consecutive": CONSECUTIVE, "every": EVERY}
    parts = ["# Steps to a return on InvertedPendulum", MADE, table(HEADER, rows, markdown=True)]
    parts.append(wrap_text(TEXT.format(**values).strip()))
    write_text(PAGE, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(command, sys.argv[1:]))

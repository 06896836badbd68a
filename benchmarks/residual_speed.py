"""Measure environment steps per second of a residual policy, and the base policy's share of time.

    python -m benchmarks.residual_speed <base> [task=push/standard-expert] [seeds=3] [steps=1500]

It runs `offline-rl finetune` with the settings of configs/suite/residual.yaml, without evaluations.
Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import run_measurement
from benchmarks.speed.online import add_time
from offline_rl.online.collector import Collector
from offline_rl.online.composed import Base
from offline_rl.online.sinks import ReplaySink
from offline_rl.training.train import finetune
from offline_rl.training.work import Work
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text

FILE = Path("benchmarks/results/residual/speed.json")
WARM_UP, SETTLING = 300, 20  # environment steps before timing starts
HEADER = ["", "env steps/s", "base", "base and simulator", "acting", "learner"]
NOTE = (
    "Environment steps per second of {seeds} seeds together, and fractions of the time. `base`: "
    "the base policy's inference. `base and simulator`: the complete environment step, base policy "
    "included. `acting`: the residual policy's inference. `learner`: the updates (4 per step, five "
    "critics of 256 units). {cores} cores, load {load}."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command, in addition to the base."""

    task: str = "push/standard-expert"
    seeds: Count = 3
    steps: Count = 1500  # timed steps per seed


def measure(base: str, options: Options) -> dict[str, Any]:
    """Return steps per second and shares."""
    shares = dict.fromkeys(("base", "environments", "acting", "learner"), 0.0)
    begin, since = Collector.begin, [0.0]

    def begin_and_time(collector: Collector) -> None:
        if collector.steps == WARM_UP + SETTLING:
            shares.update(dict.fromkeys(shares, 0.0))
            since[0] = time.perf_counter()
        if collector.steps == WARM_UP + SETTLING + options.steps:
            since.append(time.perf_counter())
            final.update(shares)
        begin(collector)

    final = dict[str, float]()
    add_time(Base, "observe", shares, "base")
    add_time(Collector, "_execute", shares, "environments")
    add_time(ReplaySink, "decide", shares, "acting")
    add_time(Work, "_learn", shares, "learner")
    Collector.begin = begin_and_time  # type: ignore[method-assign]
    last = WARM_UP + SETTLING + options.steps + 10
    with tempfile.TemporaryDirectory() as out:
        finetune(
            base=base,
            task=options.task,
            seeds=options.seeds,
            num_env_steps=last,
            eval_every=last,
            eval_episodes=1,
            checkpoint_every=last,
            compile="always",
            tracker="none",
            out=out,
            show=False,
            **{
                "algorithm.hidden": [256, 256],
                "algorithm.num_critics": 5,
                "online.warmup_steps": WARM_UP,
                "online.critic_updates": 0,
            },
        )
    seconds = since[1] - since[0]
    return {
        "base": base,
        "steps_per_second": options.seeds * options.steps / seconds,
        "shares": {name: value / seconds for name, value in final.items()},
        "seeds": options.seeds,
        "load": round(os.getloadavg()[0], 1),
    }


def page(results: dict[str, Any]) -> str:
    """Return the page with a table of one row."""
    cells = [f"{100 * share:.0f} %" for share in results["shares"].values()]
    row = ["finetune", f"{results['steps_per_second']:.0f}", *cells]
    cores, load = results["machine"]["cores"], results["load"]
    note = NOTE.format(seeds=results["seeds"], cores=cores, load=load)
    head = (
        "# Cost of a base policy\n\n*Made by `python -m benchmarks.residual_speed`, not by hand.*"
    )
    return f"{head}\n\n{table(HEADER, [row], markdown=True)}\n\n{wrap_text(note)}\n"


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        if not arguments or "=" in arguments[0]:
            raise UserError(f"The first argument must be the base.\n{__doc__}")
        return FILE, measure(arguments[0], build(Options, parse_options(arguments[1:])))

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

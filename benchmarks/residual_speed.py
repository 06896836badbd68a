"""Environment steps a second of a learned correction, and the frozen base's share of the time.

    python -m benchmarks.residual_speed <base> [task=push/standard-expert] [seeds=3] [steps=1500]

`offline-rl finetune` itself, as configs/suite/residual.yaml has it. Evaluations are not counted.
Nothing else should run meanwhile.
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
from benchmarks.speed.online import timed
from offline_rl.online.collector import Collector
from offline_rl.online.with_base import Base
from offline_rl.training.finetune import finetune
from offline_rl.training.trainer import Trainer
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text

FILE = Path("benchmarks/results/residual/speed.json")
WARM_UP, SETTLING = 300, 20  # environment steps before the clock goes
HEADER = ["", "env steps/s", "base", "base and simulator", "acting", "learner"]
NOTE = (
    "Environment steps a second of {seeds} seeds together, and shares of the time: what the base "
    "takes to say what it would do, all of a step of the environments around it, the correction's "
    "own acting, and the updates, 4 of five critics of 256 units for each step. {cores} cores, "
    "load {load}."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes beside the base."""

    task: str = "push/standard-expert"
    seeds: Count = 3
    steps: Count = 1500  # of each seed, timed


def measure(base: str, options: Options) -> dict[str, Any]:
    """Steps a second and shares."""
    shares = dict.fromkeys(("base", "environments", "acting", "learner"), 0.0)
    begin, since = Collector.begin, [0.0]

    def ticking(collector: Collector) -> None:
        if collector.steps == WARM_UP + SETTLING:
            shares.update(dict.fromkeys(shares, 0.0))
            since[0] = time.perf_counter()
        if collector.steps == WARM_UP + SETTLING + options.steps:
            since.append(time.perf_counter())
            found.update(shares)
        begin(collector)

    found = dict[str, float]()
    timed(Base, "observe", shares, "base")
    timed(Collector, "_step_envs", shares, "environments")
    timed(Collector, "_actions", shares, "acting")
    timed(Trainer, "_learn", shares, "learner")
    Collector.begin = ticking  # type: ignore[method-assign]
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
        "shares": {name: value / seconds for name, value in found.items()},
        "seeds": options.seeds,
        "load": round(os.getloadavg()[0], 1),
    }


def page(found: dict[str, Any]) -> str:
    """A table of one row."""
    cells = [f"{100 * share:.0f} %" for share in found["shares"].values()]
    row = ["finetune", f"{found['steps_per_second']:.0f}", *cells]
    note = NOTE.format(seeds=found["seeds"], cores=found["machine"]["cores"], load=found["load"])
    head = "# What a base costs\n\n*Made by `python -m benchmarks.residual_speed`, not by hand.*"
    return f"{head}\n\n{table(HEADER, [row], markdown=True)}\n\n{wrap_text(note)}\n"


def main(arguments: list[str]) -> int:
    """0: measured and written; 2: the user's mistake."""

    def measured() -> tuple[Path, dict[str, Any]]:
        if not arguments or "=" in arguments[0]:
            raise UserError(f"name the base first\n{__doc__}")
        return FILE, measure(arguments[0], build(Options, parse_options(arguments[1:])))

    return run_measurement(measured, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure environment steps per second of online training with actor processes.

    python -m benchmarks.actors [actors=[1,2,4]] [steps=800] [out=benchmarks/results/online]

The simulator sleeps 20 ms per step, so a few cores are enough. SAC trains with few updates (`utd`),
so the learner does not limit the rate.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from benchmarks.figures import run_measurement
from offline_rl import train
from offline_rl.runs.folder import SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.options import Checked, Count, Positive, build, parse_options
from offline_rl.utils.text import table, wrap_text

STEP_S, EPISODE = 0.02, 50  # duration of a step, and steps of an episode
NOTE = """
Environment steps per second of one learner, in the second half of {steps} steps per actor. The
simulator sleeps {step_ms:g} ms per step; an episode has {episode} steps. SAC with two layers of 64
units and {utd:g} updates per step. {machine}
"""


class Sleeper(gymnasium.Env):
    """Simulator whose step sleeps STEP_S and uses no processor time."""

    observation_space = Box(-np.inf, np.inf, (11,), np.float32)
    action_space = Box(-1, 1, (3,), np.float32)
    max_episode_steps = EPISODE

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        return self._observe(), -float(np.square(action).sum()), False, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=11).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    actors: tuple[Count, ...] = (1, 2, 4)  # numbers of actors
    steps: Count = 800  # environment steps per actor
    utd: Positive = 0.02  # gradient updates per environment step
    out: str = "benchmarks/results/online"


def rate(actors: int, options: Options) -> float:
    """Return the environment steps per second in the second half of a run."""
    steps = options.steps * actors
    with tempfile.TemporaryDirectory() as out:
        keys: dict[str, Any] = {"algorithm": "sac", "task": f"env:{Path(__file__)}:Sleeper"}
        keys |= {"num_updates": 0, "num_env_steps": steps, "utd": options.utd, "seeds": 1}
        keys |= {"algorithm.hidden": [64, 64], "online.warmup_steps": 0, "compile": "never"}
        keys |= {"online.warmup_policy": "policy", "batch_size": 64, "eval_episodes": 1}
        keys |= {"eval_every": steps, "checkpoint_every": EPISODE * actors, "out": out}
        result = train(**keys, actors=actors, tracker="none", show=False)
        rows = SeedFolder(result.path, 0).rows("metrics")
    name = "data/env_steps_per_second"
    rates = [row[name] for row in rows if name in row and row["env_steps"] > steps // 2]
    return len(rates) / sum(1 / each for each in rates)  # rows cover equal numbers of steps


def measure(options: Options) -> dict[str, Any]:
    """Return the rate for each number of actors, and the options."""
    rows = list[dict[str, float]]()
    for actors in options.actors:
        rows.append({"actors": actors, "env_steps_per_second": rate(actors, options)})
        print(rows[-1], flush=True)
    return {"options": vars(options), "rows": rows}


def page(results: dict[str, Any]) -> str:
    """Return the page with the table."""
    rows, options = results["rows"], results["options"]
    first = rows[0]["env_steps_per_second"]
    body = [
        [str(row["actors"]), f"{(x := row['env_steps_per_second']):.1f}", f"{x / first:.2f}"]
        for row in rows
    ]
    header = ["actors", "env steps/s", f"× {rows[0]['actors']} actor"]
    note = NOTE.format(
        steps=options["steps"],
        step_ms=1000 * STEP_S,
        episode=EPISODE,
        utd=options["utd"],
        machine=f"{hardware.num_cores()} core(s) usable.",
    )
    command = "*Made by `python -m benchmarks.actors`, not by hand.*"
    rates = table(header, body, markdown=True)
    return "\n\n".join(["# Actors", command, rates, wrap_text(note.strip())]) + "\n"


def main(arguments: list[str]) -> int:
    """Write actors.json and .md; return the exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments))
        return Path(options.out) / "actors.json", measure(options)

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

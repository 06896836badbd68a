"""False alarms of the stuck-sensor check during free motion, contact and small motion.

    python -m benchmarks.robot alarms [stretches=60] [seed=0]

Three situations alternate. Each lasts one simulated minute:

- The tabletop arm swings freely.
- A wall is in its way at a changing distance. The arm grazes it, pushes against it, or is stopped.
- Each plan holds another pose near the middle, like a policy that has reached its target.

A simulated operator re-arms the robot after a stop.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.logic import Bench
from benchmarks.robot.stepped import RATE_HZ
from offline_rl.utils.hardware import describe_machine
from real_robot.control.loop import Request
from real_robot.control.session import MEMORY
from real_robot.safety.states import RE_ARM, State

AWAY_M = 0.5  # distance of the wall from the arm's base at which it is out of reach
NEAREST_M, FURTHEST_M = 0.02, 0.08  # range of the distance of the wall's center beyond the tip
SPEED_M = 0.001  # m per tick; speed of the wall
PATIENCE = 20  # ticks between two actions of the operator
SMALLEST_RAD, LARGEST_RAD = 0.002, 0.03  # range of the distance of held poses from the middle


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `alarms`."""

    stretches: int = 60  # number of situations: free motion, contact, small motion, in alternation
    stretch_s: int = 60  # simulated seconds per situation
    seed: int = 0


def measure(options: Options) -> dict[str, Any]:
    stops, contacts, running = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for stretch in range(options.stretches):
            bench = Bench(Path(folder), options.seed * 1000 + stretch)
            if stretch % 3 == 2:
                bench.policy.path = partial(_hold_pose, bench)  # type: ignore[method-assign]
            wall_m = goal_m = AWAY_M
            for tick in range(round(options.stretch_s * RATE_HZ)):
                if stretch % 3 == 1:
                    goal_m = _wall_position(bench) if tick % 400 == 0 else goal_m
                    wall_m += min(max(goal_m - wall_m, -SPEED_M), SPEED_M)
                    bench.event("place", body="wall", at_m=[wall_m, float(bench.tip[1]), 0.1])
                bench.tick()
                if _operate(bench, tick, stops):
                    goal_m = AWAY_M
                running += bench.guard.state is State.RUNNING
                contacts += bool(_touches(bench))
    return {
        "minutes": options.stretches * options.stretch_s / 60,
        "seed": options.seed,
        "running_s": round(running / RATE_HZ),
        "contact_s": round(contacts / RATE_HZ, 1),
        "stops": dict(stops.most_common()),
        "machine": describe_machine(),
    }


def _hold_pose(bench: Bench, times_s: np.ndarray) -> np.ndarray:
    """Return a plan that holds one pose, [H, J] rad."""
    distance = np.exp(bench.chance.uniform(np.log(SMALLEST_RAD), np.log(LARGEST_RAD), 5))
    return np.tile(
        bench.policy.middle + bench.chance.choice([-1, 1], 5) * distance, (len(times_s), 1)
    )


def _wall_position(bench: Bench) -> float:
    return float(bench.tip[0] + bench.chance.uniform(NEAREST_M, FURTHEST_M))


def _touches(bench: Bench) -> bool:
    physics = bench.line.physics
    wall, contacts = physics.model.body("wall").geomadr[0], physics.data.contact.geom
    return bool((contacts == wall).any())


def _operate(bench: Bench, tick: int, stops: Counter[str]) -> bool:
    """Act as the operator: count a stop and restart the arm. Return True if the wall must move."""
    guard = bench.guard
    if tick % PATIENCE or guard.state in (State.RUNNING, State.SOFT_STOP):
        return False
    if guard.machine.latched is not None:
        stops[guard.machine.latched.name] += bench.mark != guard.machine.latched
        bench.mark = guard.machine.latched
        bench.inputs.requests.append(Request(typed=RE_ARM))
        return True
    elif guard.state is State.CONNECTED:
        bench.inputs.requests.append(Request(arm=True))
    elif not bench.loop.starting:
        bench.mark = -1
        bench.inputs.requests.append(Request(start=True))
    return False

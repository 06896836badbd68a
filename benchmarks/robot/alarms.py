"""False alarms of the stuck-sensor check: an hour of free motion and of contact, simulated.

    python -m benchmarks.robot alarms [minutes=60] [seed=0]

The tabletop arm swings; every other minute a wall stands in its way, at a distance that changes,
so that it grazes the wall, pushes against it, or is stopped by it. An operator re-arms it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.robot.logic import Bench
from benchmarks.robot.stepped import RATE_HZ
from offline_rl.utils.hardware import description
from real_robot.control.loop import Wish
from real_robot.control.session import MEMORY
from real_robot.safety.states import RE_ARM, State

AWAY_M = [-0.6, 0.0, -0.4]  # where the model has its wall at first
NEAREST_M, FURTHEST_M = 0.035, 0.09  # the wall's middle beyond the tip
PATIENCE = 20  # ticks that the operator waits


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `alarms` takes."""

    minutes: int = 60  # of simulated time
    seed: int = 0


def measure(options: Options) -> dict[str, Any]:
    stops, contacts, running = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for minute in range(options.minutes):
            bench = Bench(Path(folder), options.seed * 1000 + minute)
            for tick in range(round(60 * RATE_HZ)):
                if minute % 2 and tick % 400 == 0:
                    _move_wall(bench)
                bench.tick()
                _operate(bench, tick, stops)
                running += bench.guard.state is State.RUNNING
                contacts += bool(_touches(bench))
    return {
        "minutes": options.minutes,
        "seed": options.seed,
        "running_s": round(running / RATE_HZ),
        "contact_s": round(contacts / RATE_HZ),
        "stops": dict(stops.most_common()),
        "machine": description(),
    }


def _move_wall(bench: Bench) -> None:
    tip, gap = bench.tip, float(bench.chance.uniform(NEAREST_M, FURTHEST_M))
    bench.event("place", body="wall", at_m=[float(tip[0]) + gap, float(tip[1]), 0.1])


def _touches(bench: Bench) -> bool:
    physics = bench.line.physics
    wall, contacts = physics.model.body("wall").geomadr[0], physics.data.contact.geom
    return bool((contacts == wall).any())


def _operate(bench: Bench, tick: int, stops: Counter[str]) -> None:
    """Count a stop, free the arm, and start it again."""
    guard = bench.guard
    if tick % PATIENCE or guard.state in (State.RUNNING, State.SOFT_STOP):
        return
    if guard.machine.latched is not None:
        stops[guard.machine.latched.name] += bench.mark != guard.machine.latched
        bench.mark = guard.machine.latched
        bench.event("place", body="wall", at_m=AWAY_M)
        bench.told.wishes.append(Wish(typed=RE_ARM))
    elif guard.state is State.CONNECTED:
        bench.told.wishes.append(Wish(arm=True))
    elif not bench.loop.starting:
        bench.mark = -1
        bench.told.wishes.append(Wish(start=True))

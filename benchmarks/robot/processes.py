"""The failure matrix's rows that need all processes of a run, on this machine's clock."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.logic import STOP_S, summary
from benchmarks.robot.person import Run, RunEnded
from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from benchmarks.robot.stepped import PERIOD_S, outside
from envs.experts.arm import inverse
from envs.suites.arm import Reach
from offline_rl.data.env_spec import spec_of
from policies import Bundle, Normalizer
from policies.bundle import write
from policies.golden import seal
from real_robot.control.rings import Reader
from real_robot.recording.files import read
from real_robot.robots.config import describe
from real_robot.safety.states import State

MIDDLE_M, RADIUS_M, TURN_S = np.array([0.2, 0.0, 0.12]), 0.04, 2.0  # of the target's circle
PLAN_S = 2 * 0.04  # from an answer to the end of its plan: the action's step, and one more
SIGNALS = {"killed": signal.SIGKILL, "stalls": signal.SIGSTOP, "crashes": signal.SIGSEGV}


def follower(path: Path) -> Path:
    """A bundle that goes after its target: a tenth of the way to it at each step, all linear."""
    env = Reach(1)
    half = (env.action_high - env.action_low) / 2  # about 0
    middle = inverse(MIDDLE_M[None])[0]
    slope = np.stack([(inverse((MIDDLE_M + d)[None])[0] - middle) / 1e-4 for d in 1e-4 * np.eye(3)])
    weight, gain = np.zeros((13, 5), np.float32), 0.1
    weight[range(5), range(5)] = (1 - gain) / half
    weight[range(5, 10), range(5)] = 0.05 / half  # the joints' lag behind their goals
    weight[10:] = gain * slope / half
    bias = (gain * (middle - MIDDLE_M @ slope) / half).astype(np.float32)
    weights = {"trunk.weights.0": weight, "trunk.biases.0": bias, "log_std": np.zeros(5, "f4")}
    arguments = {"observations": 13, "actions": 5, "hidden": [], "tanh_mean": False}
    same = Normalizer.identity((13,))
    write(path, seal(Bundle(spec_of(env), "GaussianActor", arguments, weights, same)))
    return path


class Circling:
    """Leads the target around, 25 times a second, from a thread of its own."""

    def __init__(self, hardware: SimulatedHardware) -> None:
        self.hardware, self._ends = hardware, threading.Event()
        self._thread = threading.Thread(target=self._lead, daemon=True)

    def _lead(self) -> None:
        while not self._ends.wait(0.04):
            angle = 2 * np.pi * time.monotonic() / TURN_S
            at_m = MIDDLE_M + RADIUS_M * np.array([np.cos(angle), np.sin(angle), 0.3])
            self.hardware.event("place", body="target", at_m=at_m.tolist())

    def __enter__(self) -> Circling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


@dataclass(frozen=True)
class Row:
    """A fault of a process or of the hardware, and how its reaction is seen."""

    number: str
    fault: str
    reaction: str
    bound_s: float | None
    inject: Callable[[Run, SimulatedHardware], int]  # when, monotonic ns
    seen: Callable[[Run, SimulatedHardware, int], float]  # after how long, s; NaN: not at all
    needed: bool = True  # recorder_needed of the run
    goes_on: bool = False
    held: bool = False  # by the watchdog: its one command is a step


def _signal(name: str, how: str) -> Callable[[Run, SimulatedHardware], int]:
    return lambda run, hardware: run.kill(name, SIGNALS[how])


def _key(run: Run, hardware: SimulatedHardware) -> int:
    return run.type(" ")


def _disk_full(run: Run, hardware: SimulatedHardware) -> int:
    """The file may not grow any more; the recorder finds out when it writes next."""
    now = time.monotonic_ns()
    resource.prlimit(run.pids["writer"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return now


def _hardware(**faults: Any) -> Callable[[Run, SimulatedHardware], int]:
    """When the hardware says that it was so."""

    def inject(run: Run, hardware: SimulatedHardware) -> int:
        before = len(hardware.events("faults"))
        hardware.faults(**faults)
        while len(found := hardware.events("faults")) == before:
            time.sleep(0.005)
        return int(found[-1]["t_ns"])

    return inject


def _mend(hardware: SimulatedHardware) -> None:
    """All is well with the hardware again, and its port is there."""
    hardware.faults()
    while not Path(hardware.port).exists():
        time.sleep(0.005)


def _rows(run: Run) -> np.ndarray:
    """What the loop has published; the memory outlives its processes."""
    reader, rows = Reader(run.ring, from_start=True), []
    while reader.following():
        rows.append(reader.record.copy())
    return np.array(rows)


def _left(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Until the loop's state says so."""
    rows = _rows(run)
    after = rows[(rows["wake_ns"] > at_ns) & (rows["state"] != State.RUNNING)]
    return (int(after[0]["sent_ns"]) - at_ns) * 1e-9 if len(after) else np.nan


def _at_rest(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Until the last command that moved the servos on."""
    found = [e for e in hardware.events("goals") if e["t_ns"] > at_ns]
    goals = [tuple(e[str(k)] for k in range(1, 6)) for e in found if len(e) == 7]
    changes = [k for k in range(1, len(goals)) if goals[k] != goals[k - 1]]
    if not goals:
        return np.nan
    return (found[changes[-1] if changes else 0]["t_ns"] - at_ns) * 1e-9


def _held(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Until the servos were told to hold, by the watchdog: the last that they were told."""
    if not run.words["watchdog_fired"]:
        return np.nan
    found = [e["t_ns"] for e in hardware.events("goals") if e["t_ns"] > at_ns]
    return (found[-1] - at_ns) * 1e-9 if found else np.nan


def _goes_on(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    return 0.0 if run.process.poll() is None and run.state is State.RUNNING else np.nan


SHOWS_S = 1.5  # by when every reaction is over
STALL_S = 0.03 + 0.02  # the watchdog's patience, and what it may take
ROWS = (
    Row(
        "5",
        "inference killed",
        "SOFT_STOP, HOLD",
        PLAN_S + STOP_S,
        _signal("inference", "killed"),
        _at_rest,
    ),
    Row(
        "6",
        "inference stalls",
        "the plan's end, SOFT_STOP, HOLD",
        2 * PLAN_S + STOP_S,
        _signal("inference", "stalls"),
        _at_rest,
    ),
    Row(
        *("9", "servo missing", "FAULT by the second reading", 0.01 + 2 * PERIOD_S),
        *(_hardware(missing=[3]), _left),
    ),
    Row("13", "unplugged", "FAULT", 2 * PERIOD_S, _hardware(unplugged=True), _left),
    Row(
        "20",
        "control killed",
        "held by the watchdog",
        0.02,
        _signal("control", "killed"),
        _held,
        held=True,
    ),
    Row(
        "20",
        "control crashes",
        "held by the watchdog",
        0.02,
        _signal("control", "crashes"),
        _held,
        held=True,
    ),
    Row(
        "20",
        "control stalls",
        "ended, held by the watchdog",
        STALL_S,
        _signal("control", "stalls"),
        _held,
        held=True,
    ),
    Row(
        "20",
        "console killed",
        "SOFT_STOP, HOLD",
        PERIOD_S + STOP_S,
        _signal("console", "killed"),
        _at_rest,
    ),
    Row("20", "console stalls", "SOFT_STOP", 0.55, _signal("console", "stalls"), _left),
    Row("21", "watchdog killed", "SOFT_STOP", 0.1, _signal("watchdog", "killed"), _left),
    Row("21", "watchdog stalls", "SOFT_STOP", 0.1, _signal("watchdog", "stalls"), _left),
    Row("21", "recorder killed", "SOFT_STOP", 0.1, _signal("writer", "killed"), _left),
    Row("21", "recorder stalls", "SOFT_STOP", 1.1, _signal("writer", "stalls"), _left),
    Row("21", "disk full", "SOFT_STOP, with the next flush", 0.6, _disk_full, _left),
    Row(
        "21",
        "recorder killed, not needed",
        "goes on",
        None,
        _signal("writer", "killed"),
        _goes_on,
        needed=False,
        goes_on=True,
    ),
    Row("22", "the space bar", "ESTOP", 0.02 + PERIOD_S, _key, _left),
)


def run_row(row: Row, repeats: int, folder: Path) -> dict[str, Any]:
    """The row of the page; each repeat is a run of its own, on one and the same hardware."""
    chance = np.random.default_rng(sum(row.fault.encode()))
    delays, lost, wrong, broken = list[float](), list[int](), list[str](), 0
    bundle = follower(folder / "follower.bundle")
    with SimulatedHardware("desk") as hardware, Circling(hardware):
        for repeat in range(2 * repeats):
            if len(delays) == repeats:
                break
            begun_ns, recording = time.monotonic_ns(), folder / f"{repeat}.rec"
            how = {"bundle": bundle, "runtime": "numpy", "record": recording}
            run = _begun(hardware, **how, recorder_needed=row.needed)
            try:
                at_ns = _strike(row, run, hardware, chance.uniform(0.5, 1.5))
                if at_ns is None:
                    wrong.append(f"it had stopped before, {run.state.name}")
                    continue
                delays.append(row.seen(run, hardware, at_ns))
                if not np.isfinite(delays[-1]):
                    wrong.append("no reaction")
                elif not row.goes_on and not _stands(hardware):
                    wrong.append("it does not stand")
                elif not row.held and run.words["watchdog_fired"]:
                    wrong.append("the machine stood still, and the watchdog held the robot")
            finally:
                for name in run.pids:
                    run.go_on(name)
                run.close()
                _mend(hardware)
            events = [e for e in hardware.events("goals") if begun_ns < e["t_ns"]]
            if run.words["watchdog_fired"]:
                events = events[:-1]  # its one command, which is a step, and the last of all
            goals = [{key: e[key] for key in e if key.isdigit()} for e in events]
            broken += outside(goals, describe("desk").spec.limits, PERIOD_S)
            lost.append(run.ring.written - len(read(recording).rows))
            recording.unlink()
    found = summary(row.number, row.fault, row.reaction, delays, row.bound_s, broken, wrong)
    return found | {"rows_lost": max(lost, default=None), "load": round(os.getloadavg()[0], 1)}


def _begun(hardware: SimulatedHardware, **how: Any) -> Run:
    """A busy machine reads the bus too late, and the run is refused: it is tried three times."""
    for _ in range(2):
        with contextlib.suppress(RunEnded):
            return Run(hardware, **how)
    return Run(hardware, **how)


def _strike(row: Row, run: Run, hardware: SimulatedHardware, after_s: float) -> int | None:
    """Lets the policy move the robot for so long, injects the fault, and gives it time to show.

    When it was, monotonic ns; None where the run had stopped by itself before.
    """
    try:
        run.type("start\n")
        run.wait(lambda: run.state is not State.HOLD, 5.0)
        time.sleep(after_s)
        if run.process.poll() is not None or run.state is not State.RUNNING:
            return None
        at_ns = row.inject(run, hardware)
    except (ProcessLookupError, RuntimeError):
        return None
    time.sleep(SHOWS_S)
    return at_ns


def _stands(hardware: SimulatedHardware) -> bool:
    """Whether the arm holds where it is."""
    before = hardware.truth()["q"].copy()
    time.sleep(0.1)
    return bool(np.abs(hardware.truth()["q"] - before).max() < 0.005)

"""Rows of the failure matrix with all processes of a run, on this machine's clock.

The texts of faults and reactions are keys of the result file and must not change.
"""

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
from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from benchmarks.robot.stepped import PERIOD_S, count_violations
from benchmarks.robot.terminal import Run, RunEnded
from envs.experts.arm import inverse_kinematics
from envs.suites.arm import Reach
from offline_rl.data.specs import spec_of
from policies import Bundle, Normalizer
from policies.bundle import write
from policies.golden import seal
from real_robot.control.rings import Reader
from real_robot.recording.files import read
from real_robot.robots.config import describe
from real_robot.safety.states import State

MIDDLE_M, RADIUS_M, TURN_S = np.array([0.2, 0.0, 0.12]), 0.04, 2.0  # circle of the target
PLAN_S = 2 * 0.04  # time from an action to the end of its plan: two steps
SIGNALS = {"killed": signal.SIGKILL, "stalls": signal.SIGSTOP, "crashes": signal.SIGSEGV}


def follower(path: Path) -> Path:
    """Write the bundle of a linear policy: it moves a tenth of the way to the target per step."""
    env = Reach(1)
    half = (env.action_high - env.action_low) / 2  # the range is symmetric about 0
    middle = inverse_kinematics(MIDDLE_M[None])[0]
    slope = np.stack(
        [(inverse_kinematics((MIDDLE_M + d)[None])[0] - middle) / 1e-4 for d in 1e-4 * np.eye(3)]
    )
    weight, gain = np.zeros((13, 5), np.float32), 0.1
    weight[range(5), range(5)] = (1 - gain) / half
    weight[range(5, 10), range(5)] = 0.05 / half  # compensates for the lag of the joints
    weight[10:] = gain * slope / half
    bias = (gain * (middle - MIDDLE_M @ slope) / half).astype(np.float32)
    weights = {"trunk.weights.0": weight, "trunk.biases.0": bias, "log_std": np.zeros(5, "f4")}
    arguments = {"observations": 13, "actions": 5, "hidden": [], "tanh_mean": False}
    identity = Normalizer.identity((13,))
    write(path, seal(Bundle(spec_of(env), "GaussianActor", arguments, weights, identity)))
    return path


class Circling:
    """Thread that moves the target on a circle, at 25 Hz."""

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
    """Fault of a process or of the hardware, and the measurement of its reaction."""

    number: str
    fault: str
    reaction: str
    bound_s: float | None
    inject: Callable[[Run, SimulatedHardware], int]  # returns the time, monotonic ns
    reaction_s: Callable[[Run, SimulatedHardware, int], float]  # reaction time, s; NaN: no reaction
    needed: bool = True  # recorder_needed of the run
    continues: bool = False  # True: the run must continue
    held: bool = False  # True: the watchdog must hold the robot


def _signal(name: str, how: str) -> Callable[[Run, SimulatedHardware], int]:
    return lambda run, hardware: run.kill(name, SIGNALS[how])


def _key(run: Run, hardware: SimulatedHardware) -> int:
    return run.type(" ")


def _disk_full(run: Run, hardware: SimulatedHardware) -> int:
    """Prevent the recording from growing. The writer notices this at its next write."""
    now = time.monotonic_ns()
    resource.prlimit(run.pids["writer"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return now


def _hardware(**faults: Any) -> Callable[[Run, SimulatedHardware], int]:
    """Return a function that injects faults and returns the time from the hardware's log."""

    def inject(run: Run, hardware: SimulatedHardware) -> int:
        earlier = len(hardware.events("faults"))
        hardware.faults(**faults)
        while len(events := hardware.events("faults")) == earlier:
            time.sleep(0.005)
        return int(events[-1]["t_ns"])

    return inject


def _repair(hardware: SimulatedHardware) -> None:
    """Remove all faults of the hardware, and wait for its port."""
    hardware.faults()
    while not Path(hardware.port).exists():
        time.sleep(0.005)


def _rows(run: Run) -> np.ndarray:
    """Return the rows of the loop, also after the processes have ended."""
    reader, rows = Reader(run.ring, from_start=True), []
    while reader.following():
        rows.append(reader.record.copy())
    return np.array(rows)


def _time_to_stop(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Return the time until the state is no longer RUNNING, s."""
    rows = _rows(run)
    after = rows[(rows["wake_ns"] > at_ns) & (rows["state"] != State.RUNNING)]
    return (int(after[0]["sent_ns"]) - at_ns) * 1e-9 if len(after) else np.nan


def _time_to_rest(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Return the time until the last command that moved the servos, s."""
    events = [e for e in hardware.events("goals") if e["t_ns"] > at_ns]
    goals = [tuple(e[str(k)] for k in range(1, 6)) for e in events if len(e) == 7]
    changes = [k for k in range(1, len(goals)) if goals[k] != goals[k - 1]]
    if not goals:
        return np.nan
    return (events[changes[-1] if changes else 0]["t_ns"] - at_ns) * 1e-9


def _time_to_hold(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    """Return the time until the watchdog's hold, s. The hold sends the last goals to the servos."""
    if not run.shared["watchdog_fired"]:
        return np.nan
    events = [e["t_ns"] for e in hardware.events("goals") if e["t_ns"] > at_ns]
    return (events[-1] - at_ns) * 1e-9 if events else np.nan


def _continues(run: Run, hardware: SimulatedHardware, at_ns: int) -> float:
    return 0.0 if run.process.poll() is None and run.state is State.RUNNING else np.nan


SHOWS_S = 1.5  # wait after the fault; every reaction is over by then
STALL_S = 0.03 + 0.02  # the watchdog's timeout plus the time for its hold
ROWS = (
    Row(
        "5",
        "inference killed",
        "SOFT_STOP, HOLD",
        PLAN_S + STOP_S,
        _signal("inference", "killed"),
        _time_to_rest,
    ),
    Row(
        "6",
        "inference stalls",
        "the plan's end, SOFT_STOP, HOLD",
        2 * PLAN_S + STOP_S,
        _signal("inference", "stalls"),
        _time_to_rest,
    ),
    Row(
        *("9", "servo missing", "FAULT by the second reading", 0.01 + 2 * PERIOD_S),
        *(_hardware(missing=[3]), _time_to_stop),
    ),
    Row("13", "unplugged", "FAULT", 2 * PERIOD_S, _hardware(unplugged=True), _time_to_stop),
    Row(
        "20",
        "control killed",
        "held by the watchdog",
        0.02,
        _signal("control", "killed"),
        _time_to_hold,
        held=True,
    ),
    Row(
        "20",
        "control crashes",
        "held by the watchdog",
        0.02,
        _signal("control", "crashes"),
        _time_to_hold,
        held=True,
    ),
    Row(
        "20",
        "control stalls",
        "ended, held by the watchdog",
        STALL_S,
        _signal("control", "stalls"),
        _time_to_hold,
        held=True,
    ),
    Row(
        "20",
        "console killed",
        "SOFT_STOP, HOLD",
        PERIOD_S + STOP_S,
        _signal("console", "killed"),
        _time_to_rest,
    ),
    Row("20", "console stalls", "SOFT_STOP", 0.55, _signal("console", "stalls"), _time_to_stop),
    Row("21", "watchdog killed", "SOFT_STOP", 0.1, _signal("watchdog", "killed"), _time_to_stop),
    Row("21", "watchdog stalls", "SOFT_STOP", 0.1, _signal("watchdog", "stalls"), _time_to_stop),
    Row("21", "recorder killed", "SOFT_STOP", 0.1, _signal("writer", "killed"), _time_to_stop),
    Row("21", "recorder stalls", "SOFT_STOP", 1.1, _signal("writer", "stalls"), _time_to_stop),
    Row("21", "disk full", "SOFT_STOP, with the next flush", 0.6, _disk_full, _time_to_stop),
    Row(
        "21",
        "recorder killed, not needed",
        "goes on",
        None,
        _signal("writer", "killed"),
        _continues,
        needed=False,
        continues=True,
    ),
    Row("22", "the space bar", "ESTOP", 0.02 + PERIOD_S, _key, _time_to_stop),
)


def run_row(row: Row, repeats: int, folder: Path) -> dict[str, Any]:
    """Run a row and return its results. Each repeat is a new run on the same hardware."""
    chance = np.random.default_rng(sum(row.fault.encode()))
    delays, lost, wrong, violations = list[float](), list[int](), list[str](), 0
    bundle = follower(folder / "follower.bundle")
    with SimulatedHardware("desk") as hardware, Circling(hardware):
        for repeat in range(2 * repeats):
            if len(delays) == repeats:
                break
            start_ns, recording = time.monotonic_ns(), folder / f"{repeat}.rec"
            how = {"bundle": bundle, "runtime": "numpy", "record": recording}
            run = _start_run(hardware, **how, recorder_needed=row.needed)
            try:
                at_ns = _inject_fault(row, run, hardware, chance.uniform(0.5, 1.5))
                if at_ns is None:
                    wrong.append(f"it had stopped before, {run.state.name}")
                    continue
                delays.append(row.reaction_s(run, hardware, at_ns))
                if not np.isfinite(delays[-1]):
                    wrong.append("no reaction")
                elif not row.continues and not _is_at_rest(hardware):
                    wrong.append("it does not stand")
                elif not row.held and run.shared["watchdog_fired"]:
                    wrong.append("the machine stood still, and the watchdog held the robot")
            finally:
                for name in run.pids:
                    run.resume(name)
                run.close()
                _repair(hardware)
            events = [e for e in hardware.events("goals") if start_ns < e["t_ns"]]
            if run.shared["watchdog_fired"]:
                # The watchdog's only command comes last and may jump, so it is not counted.
                events = events[:-1]
            goals = [{key: e[key] for key in e if key.isdigit()} for e in events]
            violations += count_violations(goals, describe("desk").spec.limits, PERIOD_S)
            lost.append(run.ring.written - len(read(recording).rows))
            recording.unlink()
    result = summary(row.number, row.fault, row.reaction, delays, row.bound_s, violations, wrong)
    return result | {"rows_lost": max(lost, default=None), "load": round(os.getloadavg()[0], 1)}


def _start_run(hardware: SimulatedHardware, **how: Any) -> Run:
    """Start a run, in up to three attempts: a busy machine may read the bus too late."""
    for _ in range(2):
        with contextlib.suppress(RunEnded):
            return Run(hardware, **how)
    return Run(hardware, **how)


def _inject_fault(row: Row, run: Run, hardware: SimulatedHardware, after_s: float) -> int | None:
    """Let the policy move the robot for `after_s`, inject the fault, and wait for the reaction.

    Return the time of the fault, monotonic ns; None: the run had already stopped.
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


def _is_at_rest(hardware: SimulatedHardware) -> bool:
    """Return True if the arm does not move."""
    earlier = hardware.truth()["q"].copy()
    time.sleep(0.1)
    return bool(np.abs(hardware.truth()["q"] - earlier).max() < 0.005)

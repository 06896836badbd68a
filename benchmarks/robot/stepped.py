"""Tabletop arm, servo bus, control loop and inference in one process on one simulated clock.

Bus client, safety check, loop and inference are the code of a real run. Only its processes are
missing. The simulated time advances during transmissions on the bus and during waits for deadlines,
so nothing sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.simulated_bus import arm
from benchmarks.robot.simulated_bus.line import Faults
from benchmarks.robot.simulated_bus.port import SteppedPort
from real_robot.control.inference import Inference
from real_robot.control.kinematics import forward
from real_robot.control.loop import Inputs, Loop, Request
from real_robot.control.observing import offset
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.schedule import Chunk, Schedule, Timing
from real_robot.control.session import chunk_of, chunk_type
from real_robot.robots import tracker
from real_robot.robots.config import describe
from real_robot.robots.dynamixel import table as registers
from real_robot.robots.dynamixel.robot import DynamixelRobot
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import envelope

RATE_HZ = 100.0
PERIOD_S = 1 / RATE_HZ
START_NS = 10**12
TRACKER_M = 0.0005  # standard deviation of the tracker's noise


class Port(SteppedPort):
    """Port that can trigger an event at a given time, even during a transaction."""

    alarm: tuple[int, Callable[[], Any]] | None = None  # time of the event in ns, and the event

    def sleep_until(self, time_ns: int) -> None:
        if self.alarm is not None and self.alarm[0] <= time_ns:
            super().sleep_until(self.alarm[0])
            self._trigger_alarm()
        super().sleep_until(time_ns)

    def read(self, until_ns: int) -> bytes:
        if self.alarm is not None and self.alarm[0] <= until_ns:
            if data := super().read(self.alarm[0]):
                return data
            self._trigger_alarm()
        return super().read(until_ns)

    def _trigger_alarm(self) -> None:
        assert self.alarm is not None
        event, self.alarm = self.alarm[1], None
        event()


class Clock:
    """Simulated clock. A fault may delay a wake-up, jump the wall clock, or add a suspension."""

    def __init__(self, port: SteppedPort) -> None:
        self._port = port
        self.late_ns, self.wall_jump_ns, self.asleep_ns = 0, 0, 0

    def now_ns(self) -> int:
        return self._port.now_ns()

    def wall_ns(self) -> int:
        return self._port.now_ns() + self.wall_jump_ns

    def suspended_ns(self) -> int:
        return self.asleep_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self._port.sleep_until(deadline_ns + self.late_ns)
        self.late_ns = 0


class LoopInputs(Inputs):
    """Inputs of the loop: chunks, requests of the operator, and heartbeats."""

    def __init__(self, clock: Clock, chunks: Ring) -> None:
        self._clock, self._chunks = clock, Reader(chunks)
        self.requests = list[Request]()
        self.held = Request()  # used if there is no other request
        self.speaks = False  # True: the held request gets a new timestamp in every tick

    def chunk(self) -> Chunk | None:
        return chunk_of(self._chunks.record) if self._chunks.newest() else None

    def request(self) -> Request:
        if self.speaks:
            self.held = replace(self.held, target_ns=self._clock.now_ns())
        return self.requests.pop(0) if self.requests else self.held

    def watchdog_ns(self) -> int:
        return self._clock.now_ns()

    def recorder_lost(self) -> bool:
        return False


class Stepped:
    """Robot and policy on one simulated clock. Chunks arrive at uniformly random times.

    policy: a policy for `Inference`.
    """

    def __init__(self, folder: Path, policy: Any, seed: int, robot: str | Path = "desk") -> None:
        described = describe(robot)
        self.chance = np.random.default_rng(seed)
        self.arrived = list[tuple[int, str, dict[str, Any]]]()  # events of the servo bus
        self.line = arm.build(described, seed=seed, log=lambda *e: self.arrived.append(e))
        self.port = Port(self.line, START_NS)
        self.clock = Clock(self.port)
        folder.mkdir(parents=True, exist_ok=True)
        channels = described.spec.channels
        self._tracker = Ring.create(
            folder / "tracker", tracker.record_type(channels), tracker.SLOTS
        )
        self.target = np.array([0.2, 0.0, 0.1])
        self._track()
        servos = arm.calibration(self.line, described)
        self.robot = DynamixelRobot(
            described.spec,
            servos,
            lambda: self.port,
            baud=1_000_000,
            watchdog_s=0.2,
            tracker=folder / "tracker",
        )
        self.spec = self.robot.spec
        limits = envelope(self.spec, self.spec.limits, RATE_HZ, None, forward(self.spec))
        self.guard = Guard(self.robot, limits)
        spec, joints = policy.spec, len(self.spec.joints)
        self.ticks = Ring.create(folder / "ticks", row_type(self.spec), 64)
        chunks = Ring.create(folder / "chunks", chunk_type(spec.chunk_size, joints), 16)
        shared = self._shared = SharedValues(folder / "shared_values", create=True)
        self.chunks, self.inputs = chunks, LoopInputs(self.clock, chunks)
        self.schedule = Schedule(Timing(spec.rate_hz, spec.chunk_size, offset(spec)), joints)
        self.loop = Loop(self.guard, self.clock, self.schedule, self.inputs, self.ticks)
        self.inference = Inference(policy, self.spec, self.ticks, chunks, shared, self.clock.now_ns)
        self.infers = True  # False: inference has stopped
        self.completed_ns = self.acted_ns = 0  # times of the newest chunk and of the newest tick

    @property
    def now_ns(self) -> int:
        return self.port.now_ns()

    @property
    def tip(self) -> np.ndarray:
        """True position of the tip, [3] m."""
        return self.line.physics.position_of("tip").copy()

    def arm(self) -> None:
        """Connect, check and arm the robot."""
        self.guard.connect(self.now_ns)
        self.guard.read()
        self.guard.run_check(self.now_ns)
        self.guard.arm(self.now_ns)
        self.loop.begin()

    def tick(self) -> None:
        """Run one period: the loop, and then inference at a random time before the period ends."""
        self._track()
        self.loop.step()
        self.acted_ns = self.now_ns
        self._shared["starting"] = self.loop.starting
        wait_ns = max(0, round((PERIOD_S - 0.005) * 1e9 * self.chance.uniform()))
        self.port.sleep_until(self.now_ns + wait_ns)
        if self.infers and self.inference.step(self.now_ns):
            self.completed_ns = self.now_ns

    def inject_at_random(self, fault: Callable[[], Any]) -> int:
        """Call `fault` at a uniformly random time of a period. Return this time, ns."""
        at_ns = self.now_ns + round(self.chance.uniform() * PERIOD_S * 1e9)
        self.port.alarm = at_ns, fault
        while self.port.alarm is not None:
            self.tick()
        return at_ns

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def faults(self, **faults: Any) -> None:
        """Replace all faults of the bus by these."""
        self.line.faults = Faults(**faults)

    def event(self, kind: str, **what: Any) -> None:
        """Trigger a single event of the hardware."""
        self.line.event(kind, what, self.now_ns)

    def _track(self) -> None:
        row = self._tracker.record
        row["time_ns"] = self.now_ns
        row["target"] = self.target + self.chance.normal(0, TRACKER_M, 3)
        row["puck"], row["goal"] = 0.0, 0.0
        self._tracker.push()


def commands(events: list[dict[str, int]], joints: int) -> list[np.ndarray]:
    """Return the goals that the servos accepted, as sequences of commands, [N, J] ticks each.

    events: events of kind `goals`. A goal for a single servo is part of arming, so a new sequence
    begins after it.
    """
    sequences: list[list[list[int]]] = [[]]
    for goals in events:
        if len(goals) == joints:
            sequences[-1].append([goals[str(k)] for k in range(1, joints + 1)])
        elif sequences[-1]:
            sequences.append([])
    return [np.array(sequence) for sequence in sequences if sequence]


def count_violations(
    events: list[dict[str, int]], limits: Any, period_s: float, exclude: int | None = None
) -> int:
    """Return the number of commands that exceed a limit.

    The limits are those of position and velocity, and the stop limits of acceleration and jerk. The
    goals are integers, so rounding adds up to 1, 2 and 4 ticks to their first, second and third
    differences. exclude: index of a joint that is not checked.
    """
    count = 0
    for ticks in commands(events, len(limits.velocity)):
        q = (ticks - registers.CENTER) * registers.RAD
        if exclude is not None:
            q[:, exclude] = (limits.position_low + limits.position_high)[exclude] / 2
        slack = registers.RAD / 2 + 1e-9
        violated = ((q < limits.position_low - slack) | (q > limits.position_high + slack)).any(1)
        bounds = (limits.velocity, limits.stop_acceleration, limits.stop_jerk)
        for order, (bound, rounding) in enumerate(zip(bounds, (1, 2, 4), strict=True), start=1):
            max_step = bound * period_s**order + (rounding + 1e-6) * registers.RAD
            if len(q) > order:
                violated[order:] |= (np.abs(np.diff(q, order, axis=0)) > max_step).any(1)
        count += int(violated.sum())
    return count

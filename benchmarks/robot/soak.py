"""Soak test: the control loop under random faults on a simulated clock.

    python -m benchmarks.robot soak [ticks=1000000] [seed=0]

Simulated servos record every goal that violates a limit. A policy moves the arm. While it moves, a
fault is injected about every half second. A simulated operator re-arms the robot after each stop.
"""

from __future__ import annotations

import math
import random
import resource
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.hardware import describe_machine
from real_robot.control.clock import MonotonicClock
from real_robot.control.loop import Inputs, Loop, Request
from real_robot.control.rings import Ring
from real_robot.control.schedule import Chunk, Schedule, Timing
from real_robot.robot import Code, Command, Limits, Reading, RobotSpec, Sent, Status
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import Rules, envelope
from real_robot.safety.states import RE_ARM, Reason, State

RATE_HZ, STEP_S, HORIZON = 200.0, 0.05, 8


def spec(joints: int = 6, rate_hz: float = RATE_HZ) -> RobotSpec:
    """Return the specification of an arm with equal joints."""
    values = {
        "position_low": -2.0,
        "position_high": 2.0,
        "velocity": 2.0,
        "acceleration": 15.0,
        "jerk": 400.0,
        "stop_acceleration": 25.0,
        "stop_jerk": 1000.0,
        "tracking_error": 0.3,
        "current_a": 1.0,
    }
    return RobotSpec(
        name="six",
        joints=tuple(f"joint{i}" for i in range(joints)),
        units=tuple("rad" for _ in range(joints)),
        limits=Limits(**{name: np.full(joints, value) for name, value in values.items()}),
        resolution=np.full(joints, 2 * math.pi / 4096),
        rate_hz=rate_hz,
        timeout_s=0.5 / rate_hz,
        max_reading_age_s=0.03,
    )


class Clock:
    """Simulated clock. It advances when the loop sleeps. A fault may make the loop wake late."""

    def __init__(self) -> None:
        self.now, self.late_ns = 10**9, 0

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now

    def suspended_ns(self) -> int:
        return 0

    def sleep_until(self, deadline_ns: int) -> None:
        self.now = max(self.now, deadline_ns) + self.late_ns
        self.late_ns = 0


class Servos:
    """Servos that follow their goals with a lag, and record goals beyond a limit."""

    def __init__(self, robot: RobotSpec, now_ns: Callable[[], int]) -> None:
        self.spec, self._now_ns = robot, now_ns
        count = len(robot.joints)
        self.q, self.dq, self.goal = np.zeros(count), np.zeros(count), np.zeros(count)
        self.seq, self.last_ns = 0, now_ns()
        self.torque = False
        self.last_goals = np.zeros((4, count))  # the last four goals, newest last
        self.violations = list[str]()
        self.clear_faults()
        self.last_reading: Reading | None = None
        limits = robot.limits
        self.bounds = (
            (1, limits.velocity * (1 + 1e-9)),
            (2, limits.stop_acceleration * (1 + 1e-6)),
            (3, limits.stop_jerk * (1 + 1e-6)),
        )

    def clear_faults(self) -> None:
        """Remove all faults."""
        count = len(self.spec.joints)
        self.code, self.frozen, self.lost = Code.OK, False, False
        self.status, self.offset = np.zeros(count, int), np.zeros(count)
        self.blocked, self.current_a = np.zeros(count, bool), np.full(count, 0.1)

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def hold(self, reason: str) -> tuple[str, ...]:
        return ()

    def disarm(self) -> None:
        self.torque = False

    def arm(self) -> Reading:
        self._advance()
        self.goal, self.torque = self.q.copy(), True
        self.last_goals[:] = self.goal
        return self.read()

    def _advance(self) -> None:
        dt = (self._now_ns() - self.last_ns) * 1e-9
        self.last_ns = self._now_ns()
        if dt > 0:
            share = (1 - math.exp(-dt / 0.02)) if self.torque else 0.0
            # the velocity limit also holds for a joint that is no longer blocked
            fastest = self.spec.limits.velocity * dt
            step = np.clip(share * (self.goal - self.q), -fastest, fastest)
            step = np.where(self.blocked, 0.0, step)
            self.q, self.dq = self.q + step, step / dt

    def read(self) -> Reading:
        self._advance()
        if self.frozen and self.last_reading is not None:
            return self.last_reading
        self.seq += 1
        now = self._now_ns()
        q = self.q + self.offset
        code = Code.LOST if self.lost else self.code
        self.last_reading = Reading(
            code, self.seq, now, now, now, q, self.dq, self.current_a, self.status.copy()
        )
        return self.last_reading

    def command(self, command: Command) -> Sent:
        self._advance()
        if self.lost:
            return Sent(Code.LOST, command.time_ns, command.q)
        self.goal = command.q.copy()
        self.last_goals[:-1] = self.last_goals[1:]
        self.last_goals[-1] = self.goal
        limits, period = self.spec.limits, 1 / RATE_HZ
        inside = (self.goal >= limits.position_low).all()
        if not (inside and (self.goal <= limits.position_high).all()):
            self.violations.append(f"position {self.goal}")
        for order, bound in self.bounds:
            differences = (
                np.abs(np.diff(self.last_goals[-order - 1 :], order, axis=0)) / period**order
            )
            if not (differences <= bound + 1e-14 / period**order).all():
                self.violations.append(f"difference {order}: {differences.max():.6g}")
        return Sent(Code.OK, command.time_ns, self.goal)


class RandomInputs(Inputs):
    """Inputs of the loop: chunks of a policy that moves the arm, and requests of an operator."""

    def __init__(self, clock: Clock | MonotonicClock, rng: random.Random, joints: int) -> None:
        self.clock, self.rng, self.joints = clock, rng, joints
        self.seq, self.next_ns, self.waiting = 0, clock.now_ns(), list[Chunk]()
        self.phase = [rng.uniform(0, 6) for _ in range(joints)]
        self.dead = False
        self.corrupt: Callable[[np.ndarray], np.ndarray] | None = None
        self.requests = list[Request]()
        self.held_request = Request()
        self.watched = True

    def chunk(self) -> Chunk | None:
        now = self.clock.now_ns()
        if now >= self.next_ns and not self.dead:
            self.next_ns = now + 100_000_000
            times = now * 1e-9 + STEP_S * np.arange(HORIZON)[:, None]
            actions = 0.9 * np.sin(0.7 * times + np.array(self.phase))
            if self.corrupt is not None:
                actions = self.corrupt(actions)
            self.waiting.append(Chunk(self.seq, now, now + 30_000_000, actions))
            self.seq += 1
        for k, chunk in enumerate(self.waiting):
            if chunk.completed_ns <= now:
                return self.waiting.pop(k)
        return None

    def request(self) -> Request:
        return self.requests.pop(0) if self.requests else self.held_request

    def watchdog_ns(self) -> int | None:
        return self.clock.now_ns() - (0 if self.watched else 10**9)

    def recorder_lost(self) -> bool:
        return False


@dataclass
class Soak:
    """Result of a soak test."""

    ticks: int
    faults: int = 0
    violations: int = 0  # goals beyond a limit
    # states from which the robot could not be restarted
    stuck: list[str] = field(default_factory=list)
    grown_kib: int = 0  # growth of the process's memory after the first fifth of the ticks
    reasons: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def soak(ticks: int, *, seed: int, folder: Path, joints: int = 6) -> Soak:
    """Run the loop for `ticks` with random faults and an operator who re-arms the robot."""
    rng, clock, robot_spec = random.Random(seed), Clock(), spec(joints)
    servos = Servos(robot_spec, clock.now_ns)
    guard = Guard(servos, envelope(robot_spec, robot_spec.limits, RATE_HZ, Rules()))
    inputs = RandomInputs(clock, rng, len(robot_spec.joints))
    ring = Ring.create(folder / "ticks", row_type(robot_spec), 64)
    schedule = Schedule(Timing(1 / STEP_S, HORIZON), len(robot_spec.joints))
    loop = Loop(guard, clock, schedule, inputs, ring)
    guard.connect(clock.now)
    guard.run_check(clock.now)
    guard.arm(clock.now)
    loop.begin()
    inputs.requests.append(Request(start=True))
    outcome = Soak(ticks)
    reasons, states = Counter[str](), Counter[str]()
    fault_ticks, waited, start_kib = 0, 0, 0
    latched: Reason | None = None
    for k in range(ticks):
        if k == ticks // 5:
            start_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if fault_ticks == 0 and guard.state is State.RUNNING and rng.random() < 0.01:
            _inject_fault(rng, servos, inputs, clock)
            outcome.faults += 1
            fault_ticks = rng.randrange(1, 60)
        elif fault_ticks > 0:
            fault_ticks -= 1
            if fault_ticks == 0:
                _clear_faults(servos, inputs)
        loop.step()
        states[guard.state.name] += 1
        if guard.machine.latched not in (None, latched):
            reasons[guard.machine.latched.name] += 1
        latched = guard.machine.latched
        # The operator waits until the robot has stopped and the fault has ended. Then the operator
        # re-arms, arms and starts the robot.
        stopped = guard.state in (State.HOLD, State.FAULT, State.ESTOP, State.CONNECTED)
        waited = waited + 1 if stopped and fault_ticks == 0 else 0
        if waited and waited % 10 == 0:
            if guard.machine.latched is not None:
                inputs.requests.append(Request(typed=RE_ARM))
            elif guard.unconfirmed:
                inputs.requests.append(Request(confirm=next(iter(guard.unconfirmed))))
            elif guard.state is State.CONNECTED:
                servos.q = np.clip(servos.q, -1.9, 1.9)
                inputs.requests.append(Request(arm=True))
            elif not loop.starting:
                inputs.requests.append(Request(start=True))
        if waited > 600:  # long enough for the 1 s window of missed deadlines to pass
            outcome.stuck.append(f"tick {k}: {guard.machine}, {loop.refused}")
            waited = 0
    outcome.grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_kib
    outcome.violations = len(servos.violations)
    outcome.reasons, outcome.states = dict(reasons), dict(states)
    return outcome


def _clear_faults(servos: Servos, inputs: RandomInputs) -> None:
    servos.clear_faults()
    inputs.dead, inputs.corrupt, inputs.held_request, inputs.watched = False, None, Request(), True


def _inject_fault(rng: random.Random, servos: Servos, inputs: RandomInputs, clock: Clock) -> None:
    """Inject a random fault."""
    joint = rng.randrange(len(servos.spec.joints))

    def nan(actions: np.ndarray) -> np.ndarray:
        actions[rng.randrange(HORIZON), joint] = rng.choice([math.nan, math.inf])
        return actions

    def shake(actions: np.ndarray) -> np.ndarray:
        return actions + 0.8 * (-1.0) ** np.arange(HORIZON)[:, None]

    kind = rng.randrange(15)
    if kind == 0:
        inputs.corrupt = nan
    elif kind == 1:
        inputs.corrupt = lambda actions: actions + rng.choice([-3.0, 3.0])
    elif kind == 2:
        inputs.corrupt = lambda actions: actions + rng.uniform(-1, 1)
    elif kind == 3:
        inputs.corrupt = shake
    elif kind == 4:
        inputs.dead = True
    elif kind == 5:
        servos.frozen = True
    elif kind == 6:
        servos.code = rng.choice([Code.TIMEOUT, Code.CORRUPT])
    elif kind == 7:
        servos.lost = True
    elif kind == 8:
        servos.status[joint] = rng.choice([Status.TORQUE_OFF, Status.OVER_TEMPERATURE])
    elif kind == 9:
        servos.offset[joint] = 2 * math.pi
    elif kind == 10:
        servos.blocked[joint] = True
    elif kind == 11:
        servos.current_a[joint] = rng.choice([1.3, 5.0])
    elif kind == 12:
        clock.late_ns = rng.choice([4, 8, 20, 2000]) * 1_000_000
    elif kind == 13:
        inputs.held_request = rng.choice(
            [Request(estop=True), Request(take=True), Request(finish=True)]
        )
    else:
        inputs.watched = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `soak`."""

    ticks: int = 1_000_000  # number of control periods
    seed: int = 0


def measure(options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        outcome = soak(options.ticks, seed=options.seed, folder=Path(folder))
    return {"seed": options.seed, **asdict(outcome), "machine": describe_machine()}

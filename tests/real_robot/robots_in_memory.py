"""Robot in memory and a simulated clock, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from real_robot.control.kinematics import forward
from real_robot.control.loop import Inputs, Loop, Request
from real_robot.control.rings import Reader, Ring
from real_robot.control.schedule import Chunk, Schedule, Timing
from real_robot.robot import Code, Command, Limits, Reading, RobotSpec, Sent, Status, Workspace
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import Rules, envelope

JOINTS = ("shoulder", "elbow")
CURRENT_A_RAD = 0.2  # A/rad; current of a soft servo per position error
ARM = """
<mujoco>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" type="hinge" axis="0 0 1"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
      <body name="lower" pos=".3 0 0">
        <joint name="elbow" type="hinge" axis="0 0 1"/>
        <geom type="capsule" fromto="0 0 0 .2 0 0" size=".02"/>
        <site name="elbow_tip" pos="0 0 0"/>
        <site name="tool" pos=".2 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def limits(count: int = 2, **changes: float) -> Limits:
    values = {
        "position_low": -2.0,
        "position_high": 2.0,
        "velocity": 2.0,
        "acceleration": 15.0,
        "jerk": 400.0,
        "stop_acceleration": 25.0,
        "stop_jerk": 1000.0,
        "tracking_error": 0.2,
        "current_a": 1.0,
    } | changes
    return Limits(**{name: np.full(count, value) for name, value in values.items()})


def spec(rate_hz: float = 200.0, workspace: Workspace | None = None, **changes: float) -> RobotSpec:
    return RobotSpec(
        name="two links",
        joints=JOINTS,
        units=("rad", "rad"),
        limits=limits(**changes),
        resolution=np.full(2, 1e-4),
        rate_hz=rate_hz,
        timeout_s=0.002,
        max_reading_age_s=0.03,
        workspace=workspace,
    )


def workspace(folder: Path) -> Workspace:
    """Return a workspace up to x = 0.45 m. With both links stretched, the tool is at 0.5 m."""
    path = folder / "arm.xml"
    path.write_text(ARM)
    box = np.array([-0.6, -0.6, -0.1]), np.array([0.45, 0.6, 0.1])
    return Workspace(path, ("tool", "elbow_tip"), *box)


class Clock:
    """Simulated clock in ns. `sleep_until` returns late by `lateness`."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.lateness: dict[int, int] = {}  # number of the sleep -> ns
        self.sleeps = 0
        self.suspended = 0  # ns

    def suspended_ns(self) -> int:
        return self.suspended

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now + 1_700_000_000_000_000_000

    def sleep_until(self, deadline_ns: int) -> None:
        self.now = max(self.now, deadline_ns) + self.lateness.get(self.sleeps, 0)
        self.sleeps += 1


class MemoryRobot:
    """Robot whose joints follow their goals with a short lag. It records all goals."""

    def __init__(self, clock: Clock, robot: RobotSpec, q: np.ndarray | None = None) -> None:
        self.spec, self.clock = robot, clock
        count = len(robot.joints)
        self.q = np.zeros(count) if q is None else q.astype(float)
        self.dq, self.goal = np.zeros(count), self.q.copy()
        self.torque, self.connected, self.seq, self.last_ns = False, False, 0, clock.now_ns()
        self.arrived: list[tuple[int, np.ndarray]] = []  # (ns, q) of every received goal
        self.calls: list[str] = []
        # faults
        self.code, self.frozen, self.silent = Code.OK, False, False
        self.status = np.zeros(count, int)
        self.offset = np.zeros(count)  # offset of the encoder, for the servo, too
        self.blocked = np.zeros(count, bool)
        self.current = np.full(count, 0.1)
        self.lag_s = 0.02
        self.last: Reading | None = None

    def connect(self) -> None:
        self.calls.append("connect")
        self.connected = True

    def arm(self) -> Reading:
        self.calls.append("arm")
        self._pass()
        self.goal, self.torque = self.q + self.offset, True
        self.status &= ~(Status.TORQUE_OFF | Status.WATCHDOG)
        return self.read()

    def _pass(self) -> None:
        dt = (self.clock.now_ns() - self.last_ns) * 1e-9
        self.last_ns = self.clock.now_ns()
        if dt > 0:
            share = 1 - np.exp(-dt / self.lag_s) if self.torque else 0.0
            step = np.where(self.blocked, 0.0, share * (self.goal - self.offset - self.q))
            self.q, self.dq = self.q + step, step / dt

    def read(self) -> Reading:
        self._pass()
        now = self.clock.now_ns()
        if self.frozen and self.last is not None:
            return self.last
        self.seq += 1
        self.last = Reading(
            self.code,
            self.seq,
            now,
            now,
            now,
            self.q + self.offset,
            self.dq.copy(),
            self.current + CURRENT_A_RAD * np.abs(self.goal - self.offset - self.q),
            self.status.copy(),
        )
        return self.last

    def command(self, command: Command) -> Sent:
        self._pass()
        if self.silent:
            return Sent(Code.LOST, command.time_ns, command.q.copy())
        resolution = self.spec.resolution
        low, high = self.spec.limits.position_low, self.spec.limits.position_high
        q = np.clip(np.round(command.q / resolution) * resolution, low, high)
        self.arrived.append((command.time_ns, command.q.copy()))
        self.goal = q
        return Sent(Code.OK, command.time_ns, q)

    def encoder_leapt(self) -> None:
        """Drop the recorded goals: goals follow the encoder, and limits do not apply across it."""
        self.arrived.clear()

    def hold(self, reason: str) -> tuple[str, ...]:
        self.calls.append(f"hold {reason}")
        self.goal = self.q + self.offset
        return ()

    def disarm(self) -> None:
        self.calls.append("disarm")
        self.torque = False

    def close(self) -> None:
        self.calls.append("close")
        self.connected = False


class Script(Inputs):
    """Scripted inputs: a policy with latency, an operator and a watchdog on the simulated clock.

    `act(t_s) -> [H, J]` is the chunk for an observation at t_s.
    """

    def __init__(self, clock: Clock, act, *, every_s: float = 0.1, latency_s: float = 0.03) -> None:
        self.clock, self.act = clock, act
        self.every_ns, self.latency_ns = int(every_s * 1e9), int(latency_s * 1e9)
        self.start_ns = self.next_ns = clock.now_ns()
        self.seq, self.waiting = 0, list[Chunk]()
        self.dead = False  # inference has stopped
        self.watched = True
        self.recorder_dead = self.console_dead = False
        self.requests: dict[int, Request] = {}  # number of the call -> request
        self.calls = 0
        self.standing = Request()  # used if none is scripted

    def chunk(self) -> Chunk | None:
        now = self.clock.now_ns()
        if now >= self.next_ns and not self.dead:
            self.next_ns = now + self.every_ns
            actions = np.asarray(self.act((now - self.start_ns) * 1e-9), float)
            self.waiting.append(Chunk(self.seq, now, now + self.latency_ns, actions))
            self.seq += 1
        ready = [c for c in self.waiting if c.completed_ns <= now]
        if ready:
            self.waiting = [c for c in self.waiting if c.completed_ns > now]
            return ready[-1]
        return None

    def request(self) -> Request:
        self.calls += 1
        return self.requests.get(self.calls, self.standing)

    def watchdog_ns(self) -> int | None:
        return self.clock.now_ns() - (0 if self.watched else 10**9)

    def recorder_lost(self) -> bool:
        return self.recorder_dead

    def console_lost(self) -> bool:
        return self.console_dead


RATE_HZ = 200.0
STEP_S, HORIZON = 0.05, 8


def swing(t: float) -> np.ndarray:
    """Return a chunk of a slow wave on both joints, inside every limit."""
    times = t + STEP_S * np.arange(HORIZON)
    return np.stack([0.4 * np.sin(1.5 * times), 0.3 * (1 - np.cos(times))], 1)


class Bench:
    """Control process without its counterparts in shared memory, armed and running."""

    def __init__(self, folder: Path, act=swing, *, rules: Rules | None = None, **changes) -> None:
        self.clock = Clock()
        box, start = changes.pop("workspace", None), changes.pop("q0", None)
        robot_spec = spec(RATE_HZ, box, **changes)
        self.robot = MemoryRobot(self.clock, robot_spec, start)
        points = forward(robot_spec)
        e = envelope(robot_spec, robot_spec.limits, RATE_HZ, rules, points)
        self.guard = Guard(self.robot, e)
        self.inputs = Script(self.clock, act)
        self.ring = Ring.create(folder / "ticks", row_type(robot_spec), 4096)
        self.reader = Reader(self.ring)
        schedule = Schedule(Timing(1 / STEP_S, HORIZON), 2)
        self.loop = Loop(self.guard, self.clock, schedule, self.inputs, self.ring)
        self.guard.connect(self.clock.now)
        self.guard.run_check(self.clock.now)
        self.guard.arm(self.clock.now)
        self.loop.begin()
        self.inputs.requests[1] = Request(start=True)

    def run(self, ticks: int) -> list[np.ndarray]:
        """Run `ticks` periods. Return the rows of those that were not missed."""
        rows = []
        for _ in range(ticks):
            self.loop.step()
            while self.reader.following():
                rows.append(self.reader.record.copy())
        return rows

    def until(self, condition, ticks: int = 2000) -> int:
        """Step until `condition()`. Return the number of steps. Fails after `ticks`."""
        for k in range(1, ticks + 1):
            self.loop.step()
            if condition():
                return k
        raise AssertionError(f"not within {ticks} ticks: {self.guard.machine}")

    def assert_within_limits(self) -> None:
        """Compare the received goals with the limits of stops, which are the wider ones."""
        e, period = self.guard.envelope, 1 / RATE_HZ
        q = np.array([self.robot.arrived[0][1]] * 3 + [q for _, q in self.robot.arrived])
        assert np.isfinite(q).all()
        assert (q >= np.array(e.low) - 1e-9).all()
        assert (q <= np.array(e.high) + 1e-9).all()
        for order, most in ((1, e.velocity), (2, e.stop_acceleration), (3, e.stop_jerk)):
            found = np.abs(np.diff(q, order, axis=0)).max(0) / period**order
            assert (found <= np.array(most) * (1 + 1e-6) + 1e-14 / period**order).all(), order

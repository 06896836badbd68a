"""Simulated arm: MuJoCo in a separate process in real time, connected by shared memory.

The process wakes at absolute deadlines. It applies the new goals, advances the physics to the
present time, and publishes the state. If it is too slow for real time, it skips simulated time. The
published real-time factor shows this.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.control.rings import Reader, Ring
from real_robot.robot import Channel, Code, Command, Reading, RobotSpec, Sent, Status
from real_robot.robots.config import RobotDescription, SimulationOptions, describe

if TYPE_CHECKING:
    from real_robot.robots.physics import Physics

SLOTS = 256  # number of records in a ring
START_S = 30.0  # maximum time until the simulation has started
LINGER_S = 10.0  # time for which the simulation continues after its parent process has died
CATCH_UP_NS = 50_000_000  # maximum simulated time per cycle; a longer delay is skipped
# channel -> body of the model whose position it is; in pushing tasks, the body `target` marks the
# goal of the puck
CHANNELS = {"target": "target", "puck": "puck", "goal": "target"}
KINDS = {"goal": 0, "torque": 1, "place": 2}  # kinds of orders to the simulation


def state_type(described: RobotDescription) -> np.dtype:
    """Return the type of the published state."""
    spec, joints = described.spec, len(described.spec.joints)
    return np.dtype(
        [
            ("time_ns", "<i8"),
            ("simulated_ns", "<i8"),
            ("real_time_factor", "<f8"),  # during the last second; 1: no time was skipped
            *((name, "<f8", (joints,)) for name in ("q", "dq", "torque")),
            ("on", "<i8", (joints,)),  # 1: the joint has torque
            ("tip", "<f8", (3,)),  # position of the arm's tip, m
            *((name, "<f8", c.shape) for name, c in spec.channels.items()),
        ]
    )


def order_type(described: RobotDescription) -> np.dtype:
    """Return the record type of orders to the simulation."""
    joints = len(described.spec.joints)
    return np.dtype(
        [("kind", "<i8"), ("on", "<i8"), ("q", "<f8", (joints,)), ("body", "S32"), ("at", "<f8", 3)]
    )


class SimulatedRobot:
    """Robot in a simulation.

    The first instance that connects starts the simulation, and its `close` ends the simulation.
    Later instances join it. `options.folder` is the folder of the shared memory; by default, each
    user and robot has one.
    """

    def __init__(self, described: RobotDescription, options: SimulationOptions) -> None:
        self._described, self._options = described, options
        default = Path(tempfile.gettempdir()) / f"simulated-{described.spec.name}-{os.getuid()}"
        self._folder = Path(options.folder) if options.folder else default
        self._process: subprocess.Popen[str] | None = None
        self._state: Reader | None = None
        self._orders: Ring | None = None
        self._armed = False
        self._nan = np.full(len(described.spec.joints), np.nan)
        self._seq = 0

    @property
    def spec(self) -> RobotSpec:
        return self._described.spec

    def connect(self) -> None:
        if self._state is not None:
            return
        if not self._join():
            self._start()
            self._until(self._join, "did not start")

    def _join(self) -> bool:
        """Join the simulation that uses the folder. Return False if there is none."""
        if not (self._folder / "orders").exists():
            return False
        self._state = Reader(Ring.open(self._folder / "state"), from_start=True)
        if self._read_state() is Code.OK:
            self._orders = Ring.open(self._folder / "orders")
            return True
        self._state.ring.close()
        self._state = None
        return False

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # left over from an earlier run
        self._folder.mkdir(parents=True)
        command = [sys.executable, "-m", "real_robot.robots.simulated", str(self._described.path)]
        self._process = subprocess.Popen(
            [*command, str(self._folder), str(self._options.rate_hz)],
            stderr=subprocess.PIPE,
            text=True,
        )

    def _until(self, done: Any, otherwise: str) -> None:
        end = time.monotonic() + START_S
        while not done():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > end:
                output = ""
                if self._process is not None:
                    self._process.kill()
                    output = self._process.communicate()[1].strip()[-500:]
                raise UserError(f"the simulation of {self.spec.name} {otherwise}: {output}")
            time.sleep(0.002)

    def _read_state(self) -> Code:
        """Read the newest state. Return TIMEOUT if there is none, or if it is too old."""
        assert self._state is not None
        if self._state.newest():
            self._seq += 1
        age_ns = time.monotonic_ns() - int(self._state.record["time_ns"])
        late = self._seq == 0 or age_ns > self.spec.timeout_s * 1e9
        return Code.TIMEOUT if late else Code.OK

    @property
    def state(self) -> np.ndarray:
        """Newest state of the simulation, for tests and benchmarks."""
        assert self._state is not None
        self._state.newest()
        return self._state.record

    def arm(self) -> Reading:
        reading = self.read()
        if reading.code:
            raise UserError(f"the simulation of {self.spec.name} does not answer")
        self._order("goal", q=reading.q)
        self._order("torque", on=1)
        self._until(
            lambda: self._read_state() is Code.OK and self.state["on"].all(), "does not arm"
        )
        self._armed = True
        return self.read()

    def read(self) -> Reading:
        begin = time.monotonic_ns()
        if self._state is None:
            code, row = Code.LOST, None
        else:
            ended = self._process is not None and self._process.poll() is not None
            code, row = (Code.LOST if ended else self._read_state()), self._state.record
        status = np.zeros(len(self.spec.joints), np.int64)
        if row is None:
            return Reading(
                code, self._seq, begin, begin, begin, self._nan, self._nan, self._nan, status
            )
        if self._armed:
            status[row["on"] == 0] |= Status.TORQUE_OFF
        if code:
            status |= Status.MISSING
        channels = {name: row[name].copy() for name in self.spec.channels}
        measured, end = int(row["time_ns"]), time.monotonic_ns()
        return Reading(
            code,
            self._seq,
            begin,
            measured,
            end,
            row["q"].copy(),
            row["dq"].copy(),
            self._nan,
            status,
            channels,
        )

    def command(self, command: Command) -> Sent:
        now = time.monotonic_ns()
        if self._orders is None:
            return Sent(Code.LOST, now, self._nan)
        if not np.isfinite(command.q).all():
            return Sent(Code.REFUSED, now, self._nan)
        self._order("goal", q=command.q)
        return Sent(Code.OK, now, command.q.copy())

    def hold(self, reason: str) -> Sequence[str]:
        if self._state is None or self._read_state() is not Code.OK:
            return self.spec.joints
        self._order("goal", q=self._state.record["q"])
        return ()

    def disarm(self) -> None:
        self._order("torque", on=0)
        self._armed = False

    def place(self, body: str, at_m: np.ndarray) -> None:
        """Move a body of the model, such as the target, the puck or a wall."""
        self._order("place", body=body, at=np.resize(np.append(at_m, 0.0), 3))

    def close(self) -> None:
        self._armed = False
        for ring in (self._orders, self._state.ring if self._state is not None else None):
            if ring is not None:
                ring.close()
        self._orders = self._state = None
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _order(self, kind: str, **values: Any) -> None:
        assert self._orders is not None
        record = self._orders.record
        record["kind"] = KINDS[kind]
        for name, value in values.items():
            record[name] = value
        self._orders.push()


def tracker_values(physics: Physics, channels: Mapping[str, Channel]) -> dict[str, np.ndarray]:
    """Return the channels as live views of body positions, m. NaN: the channel has no body."""
    return {
        name: physics.position_of(CHANNELS[name])[: channel.shape[0]]
        if name in CHANNELS
        else np.full(channel.shape, np.nan)
        for name, channel in channels.items()
    }


def serve(described: RobotDescription, folder: Path, rate_hz: float) -> None:
    """Simulate until SIGTERM. If the parent process dies, continue for LINGER_S.

    During this time a watchdog can still hold the robot.
    """
    from real_robot.robots.physics import Physics

    period_ns = round(1e9 / rate_hz)
    joints, channels = described.spec.joints, described.spec.channels
    physics = Physics(described.model, joints, stand=True)
    for body, at_m in build(
        SimulationOptions, described.config.simulated, "simulated."
    ).place.items():
        try:
            physics.place(body, np.array(at_m, np.float64).reshape(3).tolist())
        except (KeyError, TypeError, ValueError) as error:
            sys.exit(f"{described.path.name}: simulated.place.{body}={at_m}: {error}")
    published = Ring.create(folder / "state", state_type(described), SLOTS)
    positions = tracker_values(physics, channels)
    tip, row = physics.position_of("tip"), published.record
    starting = folder / "starting"
    reader = Reader(Ring.create(starting, order_type(described), SLOTS), from_start=True)
    on = np.zeros(len(joints), np.int64)
    begin = parent_seen_ns = second = time.monotonic_ns()
    parent, lost_ns, factor, lost_before = os.getppid(), 0, 1.0, 0
    physics.advance(0)
    while (now := time.monotonic_ns()) - parent_seen_ns < LINGER_S * 1e9:
        parent_seen_ns = now if os.getppid() == parent else parent_seen_ns
        while reader.following():
            _apply_order(physics, reader.record, on)
        behind_ns = now - begin - lost_ns - (physics.now_ns or 0)
        lost_ns += max(behind_ns - CATCH_UP_NS, 0)
        physics.advance(now - begin - lost_ns)
        if now - second >= 1_000_000_000:
            factor = 1 - (lost_ns - lost_before) / (now - second)
            second, lost_before = now, lost_ns
        row["time_ns"], row["simulated_ns"] = now, physics.now_ns
        row["real_time_factor"] = factor
        row["q"], row["dq"], row["torque"], row["on"] = physics.q, physics.dq, physics.torque, on
        row["tip"] = tip
        for name, at in positions.items():
            row[name] = at
        published.push()
        if starting.exists():
            starting.rename(folder / "orders")
        next_ns = now - (now - begin) % period_ns + period_ns
        time.sleep(max(next_ns - time.monotonic_ns(), 0) * 1e-9)


def _apply_order(physics: Any, order: np.ndarray, on: np.ndarray) -> None:
    if order["kind"] == KINDS["goal"]:
        for index, angle in enumerate(order["q"]):
            physics.set_goal(index, float(angle))
    elif order["kind"] == KINDS["torque"]:
        on[:] = order["on"]
        for index in range(len(on)):
            physics.set_torque(index, bool(order["on"]))
    else:
        with contextlib.suppress(KeyError):  # the model has no such body
            physics.place(order["body"].item().decode(), order["at"])


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path, folder, rate_hz = sys.argv[1:]
    serve(describe(path), Path(folder), float(rate_hz))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Adapter for an arm of Dynamixel X servos in position mode.

One sync read per tick fetches all values. For this, the first reading sets up a mapping in each
servo: its torque switch, errors, clock, current, velocity and position appear at consecutive
indirect addresses. The servo's clock dates the answer, so that an answer from before the request is
recognized.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.robot import Code, Command, Reading, RobotSpec, Sent, Status
from real_robot.robots.config import calibration_file
from real_robot.robots.dynamixel import calibration, table
from real_robot.robots.dynamixel.bus import (
    LATENCY_S,
    PATIENCE_S,
    SILENCE_S,
    Answer,
    Bus,
    Port,
    PortLost,
    SerialPort,
    adapter_latency_s,
)
from real_robot.robots.tracker import Tracker

if TYPE_CHECKING:
    from real_robot.robots.config import DynamixelOptions, RobotDescription

MAPPED = (
    table.STATUS_LEVEL,  # 2; if 0 is read, the servo has lost its mapping
    table.TORQUE_ENABLE,
    table.HARDWARE_ERROR,
    table.BUS_WATCHDOG,
    table.REALTIME_TICK,
    table.PRESENT_CURRENT,
    table.PRESENT_VELOCITY,
    table.PRESENT_POSITION,
)
LAYOUT = np.dtype(
    [
        ("level", "u1"),
        ("torque", "u1"),
        ("error", "u1"),
        ("watchdog", "u1"),
        ("tick", "<u2"),
        ("current", "<i2"),
        ("velocity", "<i4"),
        ("position", "<i4"),
    ]
)
SIZE = LAYOUT.itemsize
MAPPING = b"".join(
    (item.address + k).to_bytes(2, "little") for item in MAPPED for k in range(item.size)
)
STATUS = {0x01: Status.VOLTAGE, 0x04: Status.OVER_TEMPERATURE, 0x08: Status.ENCODER}
STATUS |= {0x10: Status.ERROR, 0x20: Status.OVERLOAD}
TRIES = 3  # number of attempts outside the control loop
DEFAULT_WATCHDOG_S = 0.2


class Clock:
    """Estimate of the offset between a servo's millisecond clock and the host's clock."""

    TOLERANCE_MS, DRIFT = 1.0, 0.01
    FORGET_MS = 10_000  # the offset is set again after this time without an answer

    def __init__(self) -> None:
        self._offset_ms: float | None = None  # host's clock minus servo's clock
        self._heard_ms = 0.0  # time of the last answer

    def within(self, tick: int, request_ns: int, now_ns: int) -> bool:
        """Return True if the measurement may have been taken between the request and now.

        A measurement that seems to be from the future is also accepted: its offset was estimated
        from an answer that arrived late.
        """
        request_ms, now_ms = request_ns * 1e-6, now_ns * 1e-6
        silence_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if self._offset_ms is None or silence_ms > self.FORGET_MS:
            self._offset_ms = request_ms - tick
            return True
        # above 0: the measurement seems to be from before the request
        early = _signed(request_ms - 1 - tick - self._offset_ms)
        # below 0: the measurement seems to be from the future
        late = _signed(now_ms - tick - self._offset_ms)
        if early > self.TOLERANCE_MS + self.DRIFT * silence_ms:
            return False
        self._offset_ms += max(early, 0.0) + min(late, 0.0)
        return True


def _signed(milliseconds: float) -> float:
    half = table.TICK_PERIOD / 2
    return (milliseconds + half) % table.TICK_PERIOD - half


class DynamixelRobot:
    """Robot with Dynamixel servos.

    Args:
        servos: joint -> calibration of its servo, in the order of the joints.
        open_port: function that opens the port; `connect` calls it.
        m_per_rad: [J], travel of a sliding joint in m per rad of the servo; None: the joint turns.
    """

    def __init__(
        self,
        spec: RobotSpec,
        servos: dict[str, calibration.Servo],
        open_port: Callable[[], Port],
        *,
        baud: int,
        latency_s: float = LATENCY_S,
        watchdog_s: float | None = None,
        tracker: Path | None = None,
        m_per_rad: Sequence[float | None] | None = None,
    ) -> None:
        most_s = 127 * table.WATCHDOG_S
        if watchdog_s and not table.WATCHDOG_S <= watchdog_s <= most_s:
            raise UserError(f"watchdog_s={watchdog_s}, expected 0.02 to 2.54 s, or 0 (off)")
        self._watchdog_needed = bool(watchdog_s)  # True: the user has set a time
        self._watchdog_ids = list[int]()  # ids of the servos that use their bus watchdog
        watchdog_s = DEFAULT_WATCHDOG_S if watchdog_s is None else watchdog_s
        count = len(spec.joints)
        self._servos, self._ids = servos, tuple(servo.id for servo in servos.values())
        self._per_rad = np.array([each or 1.0 for each in m_per_rad or [None] * count])
        self._per_tick = self._per_rad * table.RAD  # [J] rad or m
        self._spec = _restrict_limits(spec, servos, watchdog_s or None, self._per_tick)
        self._watchdog_s = self._spec.own_watchdog_s or 0.0
        low, high = self._spec.limits.position_low, self._spec.limits.position_high
        self._low = np.ceil(np.nan_to_num(low, nan=0) / self._per_tick - 1e-9).astype(int)
        self._high = np.floor(np.nan_to_num(high, nan=0) / self._per_tick + 1e-9).astype(int)
        self._open_port, self._baud, self._latency_s = open_port, baud, latency_s
        self._tracker_path = tracker
        self._tracker: Tracker | None = None
        self._bus: Bus | None = None
        # servos that can be read together: (address of the indirect data, ids)
        self._groups: list[tuple[int, tuple[int, ...]]] = []
        self._models: list[table.Model] = []
        self._current_a = np.full(count, np.nan)
        self._armed = False
        self._unmapped = list(range(count))  # indices of joints whose servos have no mapping yet
        self._clocks = {id_: Clock() for id_ in self._ids}
        self._place = {id_: k for k, id_ in enumerate(self._ids)}
        self._servo_limits = [(0, table.TICKS - 1)] * count  # position limits in the servos, ticks
        self._request_ns = 0  # time of the last sync read
        self._values = np.zeros(count, LAYOUT)
        self._seq, self._heard_ns = 0, 0  # number and time of the last good measurement
        self._q, self._dq = np.full(count, np.nan), np.full(count, np.nan)
        self._current = np.full(count, np.nan)

    @classmethod
    def from_config(cls, described: RobotDescription, line: DynamixelOptions) -> DynamixelRobot:
        """Create the robot. Raises UserError if the calibration is missing or does not match."""
        for joint, row in described.joints.items():
            if row.unit == "m" and row.m_per_rad is None:
                raise UserError(
                    f"{described.path.name}: joints.{joint} is in m, but its servo turns: add "
                    "m_per_rad, the joint's travel in m per rad of the servo"
                )
        path = calibration_file(described, line)
        servos = calibration.load(path, described.spec.joints)
        for joint, row in described.joints.items():
            if row.id is not None and row.id != servos[joint].id:
                raise UserError(
                    f"{path}: {joint} has id {servos[joint].id}, but id {row.id} in "
                    f"{described.path.name}. Correct the id, or calibrate the robot"
                )
        latency_s = adapter_latency_s(line.port) if line.latency_s is None else line.latency_s
        return cls(
            described.spec,
            servos,
            lambda: SerialPort(line.port, line.baud),
            baud=line.baud,
            latency_s=latency_s,
            watchdog_s=line.watchdog_s,
            tracker=Path(line.tracker) if line.tracker else None,
            m_per_rad=[row.m_per_rad for row in described.joints.values()],
        )

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    @property
    def bus(self) -> Bus:
        """Bus, for calibration and counters. Raises UserError while disconnected."""
        if self._bus is None:
            raise UserError(f"{self._spec.name} is not connected")
        return self._bus

    def connect(self) -> None:
        """Connect without writing. Raises UserError if a servo differs from the calibration."""
        if self._bus is not None:
            return
        port = self._open_port()
        try:
            self._open(port)
        except BaseException:
            self._bus = None
            port.close()
            raise

    def _open(self, port: Port) -> None:
        owner = port.owner()
        if owner is not None and os.getpgid(owner) != os.getpgid(0):
            raise UserError(f"the port is in use by process {owner}: stop it first")
        self._bus = bus = Bus(port, self._baud, return_delay_s=508e-6, latency_s=self._latency_s)
        try:
            bus.wait_for_silence(SILENCE_S)
        except PortLost as error:
            raise UserError(f"the port is gone ({error}): plug it in and start again") from None
        self._models, delays, addresses = [], [], dict[int, list[int]]()
        self._watchdog_ids.clear()
        for joint, servo in self._servos.items():
            model, delay_s = self._verify_servo(joint, servo)
            self._models.append(model)
            delays.append(delay_s)
            addresses.setdefault(model.indirect_data, []).append(servo.id)
        if len(self._watchdog_ids) < len(self._ids):  # not every joint would stop by itself
            self._spec = replace(self._spec, own_watchdog_s=None)
        self._groups = [(address, tuple(ids)) for address, ids in addresses.items()]
        self._current_a = np.array([m.current_a or np.nan for m in self._models])
        bus = Bus(port, self._baud, return_delay_s=max(delays), latency_s=self._latency_s)
        self._bus = bus
        longest = sum(
            bus.duration_s(14 + len(ids), len(ids) * (11 + SIZE), len(ids))
            for _, ids in self._groups
        )
        if longest > self._spec.timeout_s:
            raise UserError(
                f"{self._spec.name}: the answers of all servos may take {1e3 * longest:.1f} "
                f"ms, but timeout_s is {1e3 * self._spec.timeout_s:.1f} ms: set the servos' "
                "return delay (register 9) to 0 and the adapter's latency timer to 1 ms, or raise "
                "the baud rate"
            )
        if self._tracker_path is not None:
            spec = self._spec
            self._tracker = Tracker(self._tracker_path, spec.channels, spec.max_reading_age_s)

    def _verify_servo(self, joint: str, servo: calibration.Servo) -> tuple[table.Model, float]:
        """Compare a servo's EEPROM with the calibration. Return its model and return delay."""
        answer = self._retry(lambda: self.bus.read(servo.id, 0, table.RAM))
        if answer.code:
            raise UserError(
                f"{joint}: servo {servo.id} does not answer at {self._baud} baud "
                f"({answer.code.name.lower()}). Check its power, its port and its baud rate"
            )

        def register(item: table.Item) -> int:
            return item.unpack(answer.data[item.address : item.address + item.size])

        model = table.MODELS.get(register(table.MODEL))
        if model is None:
            raise UserError(
                f"{joint}: servo {servo.id} has the unknown model number {register(table.MODEL)}: "
                "use a model listed in real_robot/robots/dynamixel/table.py"
            )
        expected = {
            "drive mode": (table.DRIVE_MODE, servo.drive_mode),
            "homing offset": (table.HOMING_OFFSET, servo.homing_offset),
        }
        if (mode := register(table.OPERATING_MODE)) != table.POSITION_MODE:
            name = table.MODES.get(mode, "unknown")
            raise UserError(
                f"{joint}: servo {servo.id} is in operating mode {mode} ({name}), expected "
                f"{table.POSITION_MODE} (position). Another program may have set it: LeRobot "
                f"sets 4. With torque off, write {table.POSITION_MODE} to register 11, or run "
                "offline-rl robot calibrate"
            )
        for name, (item, value) in expected.items():
            if register(item) != value:
                raise UserError(
                    f"{joint}: servo {servo.id} has {name} {register(item)}, but the "
                    f"calibration file says {value}. The file belongs to another arm, or the servo "
                    "was replaced: calibrate again"
                )
        place = self._place[servo.id]
        low, high = register(table.MIN_POSITION), register(table.MAX_POSITION)
        self._servo_limits[place] = low, high
        if low - table.CENTER > self._low[place] or high - table.CENTER < self._high[place]:
            limits = [int(limit[place]) + table.CENTER for limit in (self._low, self._high)]
            raise UserError(
                f"{joint}: servo {servo.id} is limited to ticks {low} to {high}, but the robot's "
                f"limits are {limits[0]} to {limits[1]}. The servo would ignore goals outside its "
                "own limits: change registers 52 and 48, or narrow the robot's limits"
            )
        if servo.drive_mode & ~table.REVERSE:
            raise UserError(
                f"{joint}: drive mode {servo.drive_mode} sets more than the direction, but time "
                "profiles and torque by goal are not supported. Write "
                f"{servo.drive_mode & table.REVERSE} to register 10 and calibrate again"
            )
        has_watchdog = register(table.FIRMWARE) >= model.watchdog_firmware
        if self._watchdog_s and has_watchdog and servo.id not in self._watchdog_ids:
            self._watchdog_ids.append(servo.id)
        if self._watchdog_needed and not has_watchdog:
            raise UserError(
                f"{joint}: firmware {register(table.FIRMWARE)} of servo {servo.id} has no bus "
                f"watchdog. Update it to {model.watchdog_firmware} or later, or omit watchdog_s"
            )
        return model, 2e-6 * register(table.RETURN_DELAY)

    def arm(self) -> Reading:
        if not self.bus.port.claim():
            raise UserError(
                f"the port of {self._spec.name} is in use by another process: stop it first"
            )
        self._armed = False
        # A servo may have been replaced since `connect`, or its mode may have been changed.
        for joint, servo in self._servos.items():
            self._verify_servo(joint, servo)
        reading = self._read_until_ok()
        if reading.code or (reading.status & ~Status.WATCHDOG).any():
            self._refuse_to_arm(reading)
        limp = self._values["torque"] == 0
        limp_ids = [id_ for id_, is_limp in zip(self._ids, limp, strict=True) if is_limp]
        try:
            self._set_all(table.BUS_WATCHDOG, 0)
            self._set_all(table.PROFILE_VELOCITY, 0)
            self._set_all(table.PROFILE_ACCELERATION, 0)
            if limp_ids:  # without a new goal, a servo would jump to its last goal
                positions = self._values["position"][limp].tolist()
                # Goals are written one by one. A sync write has no answer, and a servo that missed
                # it would jump.
                for id_, ticks in zip(limp_ids, positions, strict=True):
                    self._write_goal(id_, table.GOAL_POSITION, ticks)
                # Torque goes on at all servos together, so that the arm does not sag.
                self.bus.sync_write(limp_ids, table.TORQUE_ENABLE.address, [b"\1"] * len(limp_ids))
            self._set_all(table.TORQUE_ENABLE, 1)  # also verifies the sync write
            if (reading := self._read_until_ok()).code:
                self._refuse_to_arm(reading)
            for id_, ticks in zip(self._ids, self._values["position"].tolist(), strict=True):
                self._set(id_, table.GOAL_POSITION, ticks)
            for id_ in self._watchdog_ids:
                self._set(id_, table.BUS_WATCHDOG, round(self._watchdog_s / table.WATCHDOG_S))
            self._armed = True
            reading = self._read_until_ok()
            if reading.code or reading.status.any():
                self._refuse_to_arm(reading)
        except UserError:
            self._armed = False
            for id_ in limp_ids:  # their torque was off before
                self._retry(partial(self.bus.write, id_, table.TORQUE_ENABLE.address, b"\0"))
            raise
        return reading

    def _read_until_ok(self) -> Reading:
        """Read with retries. The first reading may only set up the mapping of a rebooted servo."""
        for _ in range(TRIES):
            if not (reading := self.read()).code:
                break
        return reading

    def read(self) -> Reading:
        """Read all servos. Repeat the request to silent servos as long as `timeout_s` permits.

        The mapping of a servo that has none is set up first. If the robot is armed, this must also
        fit into `timeout_s`. Otherwise it has no time limit.
        """
        port = self.bus.port
        missing = set(self._ids)
        begin = port.now_ns()
        end = begin + int(self._spec.timeout_s * 1e9)
        code = self._map_registers(end)
        if code:
            missing = {self._ids[k] for k in self._unmapped}
        elif not self._armed:
            begin = port.now_ns()
            end = begin + int(self._spec.timeout_s * 1e9)
        elif port.now_ns() + self._duration_ns(missing) > end:
            code = Code.TIMEOUT  # the mapping took too long: the next tick reads the servos
        silence_ns = int(2 * (11 + SIZE) * 10e9 / self._baud)
        while missing and not code:
            alone = len(missing) == len(self._ids) and begin + 2 * self._duration_ns(missing) > end
            code = self._read_servos(missing, end - silence_ns if alone else 0)
            if (
                code in (Code.TIMEOUT, Code.CORRUPT)
                and port.now_ns() + self._duration_ns(missing) <= end
            ):
                code = Code.OK  # there is time for another attempt
            elif missing:
                break
        return self._reading(code, begin, missing)

    def _duration_ns(self, missing: set[int]) -> int:
        """Return the maximum duration of reading the servos `missing`, ns."""
        counts = [len(missing.intersection(ids)) for _, ids in self._groups]
        silence = 2 * (11 + SIZE)  # wait for silence after a missing answer, in bytes
        seconds = [self.bus.duration_s(14 + n, n * (11 + SIZE) + silence, n) for n in counts if n]
        return int(sum(seconds) * 1e9)

    def _read_servos(self, missing: set[int], until_ns: int) -> Code:
        """Read the servos `missing`. Return the worst code.

        Servos that answer are removed from `missing`. until_ns: see `Bus.sync_read`.
        """
        worst = Code.OK
        for address, ids in self._groups:
            requested = tuple(id_ for id_ in ids if id_ in missing)
            if not requested:
                continue
            self._request_ns = self.bus.port.now_ns()
            answers = self.bus.sync_read(requested, address, SIZE, self._fresh, until_ns)
            for id_, answer in zip(requested, answers, strict=True):
                worst = max(worst, answer.code)
                if not answer.code:
                    self._values[self._place[id_]] = np.frombuffer(answer.data, LAYOUT)[0]
                    missing.discard(id_)
        return worst

    def _fresh(self, id_: int, data: bytes) -> bool:
        """Return True if the answer may be from after the request."""
        if data[0] != 2:  # the servo has lost its mapping, so the data contain no clock
            return True
        tick = data[4] | data[5] << 8
        return self._clocks[id_].within(tick, self._request_ns, self.bus.port.now_ns())

    def _reading(self, code: Code, begin: int, missing: set[int]) -> Reading:
        values, count = self._values, len(self._ids)
        status = np.zeros(count, np.int64)
        for id_ in missing:
            status[self._place[id_]] |= Status.MISSING
        forgotten = values["level"] != 2
        if not missing and forgotten.any():
            code = Code.REFUSED
            self._unmapped = [k for k in range(count) if forgotten[k]]
        if self._armed:
            status[(values["torque"] == 0) | forgotten] |= Status.TORQUE_OFF
        status[values["watchdog"] == table.WATCHDOG_TRIPPED] |= Status.WATCHDOG
        if values["error"].any():
            for bit, flag in STATUS.items():
                status[values["error"] & bit != 0] |= flag
        if code is Code.OK:
            self._seq += 1
            self._q = (values["position"] - table.CENTER) * self._per_tick
            self._dq = values["velocity"] * (table.RAD_S * self._per_rad)
            self._current = values["current"] * self._current_a
            # Servos measure when they receive the request, long before the last servo answers.
            self._heard_ns = begin + int((14 + count) * 10e9 / self._baud)
        end, heard = self.bus.port.now_ns(), self._heard_ns
        channels: dict[str, np.ndarray] = {}
        channels_ns = None
        if self._tracker is not None:
            channels, channels_ns = self._tracker.read(end)
        measured = self._q, self._dq, self._current, status, channels, channels_ns
        return Reading(code, self._seq, begin, heard, end, *measured)

    def command(self, command: Command) -> Sent:
        now = self.bus.port.now_ns()
        if not np.isfinite(command.q).all():
            return Sent(Code.REFUSED, now, np.full(len(self._ids), np.nan))
        ticks = np.rint(command.q / self._per_tick).astype(int).clip(self._low, self._high)
        goals = [table.GOAL_POSITION.pack(int(tick) + table.CENTER) for tick in ticks]
        code = self.bus.sync_write(self._ids, table.GOAL_POSITION.address, goals)
        return Sent(code, now, ticks * self._per_tick)

    def hold(self, reason: str) -> Sequence[str]:
        """Set each goal to the measured position. `reason` is not used.

        A servo ignores a goal outside its limits and would keep moving to its last goal. So the
        torque of a servo that is measured outside its limits is switched off. This may happen after
        an encoder jump.
        """
        present = table.PRESENT_POSITION
        waiting = list(self._ids)
        for _ in range(TRIES):
            answers = self.bus.sync_read(waiting, present.address, present.size)
            positions = {i: a.data for i, a in zip(waiting, answers, strict=True) if not a.code}
            goals = list(positions), table.GOAL_POSITION.address, list(positions.values())
            beyond = [
                i
                for i, data in positions.items()
                if not self._accepts_goal(i, present.unpack(data))
            ]
            off = beyond, table.TORQUE_ENABLE.address, [b"\0"] * len(beyond)
            if beyond and self.bus.sync_write(*off) is not Code.OK:
                continue
            if positions and self.bus.sync_write(*goals) is Code.OK:
                waiting = [id_ for id_ in waiting if id_ not in positions]
            if not waiting:
                break
        return [self._spec.joints[self._ids.index(id_)] for id_ in waiting]

    def _accepts_goal(self, id_: int, ticks: int) -> bool:
        """Return True if a goal is inside the servo's position limits."""
        low, high = self._servo_limits[self._place[id_]]
        return low <= ticks <= high

    def disarm(self) -> None:
        for _ in range(TRIES):  # sync writes have no answer
            self.bus.sync_write(self._ids, table.TORQUE_ENABLE.address, [b"\0"] * len(self._ids))
        self._armed = False
        answered, holds = not self.read().code, self._values["torque"] != 0
        if not answered or holds.any():
            which = [
                j for j, on in zip(self._spec.joints, holds, strict=True) if on or not answered
            ]
            raise UserError(
                f"{', '.join(which)} may still hold, because the servos did not confirm that "
                "torque is off: cut their power"
            )

    def close(self) -> None:
        if self._bus is None:
            return
        if self._armed:
            off = [b"\0"] * len(self._ids)
            self._bus.sync_write(self._ids, table.BUS_WATCHDOG.address, off)
        self._bus.port.close()
        self._bus, self._armed, self._unmapped = None, False, list(range(len(self._ids)))

    def _map_registers(self, end_ns: int) -> Code:
        """Set up the mapping of servos that have none. Servos lose the mapping at power-off.

        end_ns: time limit for an armed robot. Servos for which the time is too short wait for the
        next tick. Each gets one short attempt per tick.
        """
        if not self._unmapped:
            return Code.OK
        bus, patience_s = self.bus, 0.0 if self._armed else PATIENCE_S
        if not bus.port.claim():
            return Code.REFUSED
        # maximum duration of a read or a write, and of the silence after a missing answer
        longest_ns = int(bus.duration_s(14 + 2 * SIZE, 5 * (11 + 2 * SIZE), 5) * 1e9)
        for k in list(self._unmapped):
            id_, at = self._ids[k], self._models[k].indirect_address
            if self._armed and bus.port.now_ns() + longest_ns > end_ns:
                return Code.TIMEOUT
            mapping = bus.read(id_, at, 2 * SIZE, patience_s)
            if mapping.code:
                return mapping.code
            if mapping.data != MAPPING:
                if self._armed and bus.port.now_ns() + longest_ns > end_ns:
                    return Code.TIMEOUT
                done = bus.write(id_, at, MAPPING, patience_s)
                if done.code:
                    return done.code
            self._unmapped.remove(k)
        return Code.OK

    def _retry(self, ask: Callable[[], Answer]) -> Answer:
        for _ in range(TRIES):
            if (answer := ask()).code not in (Code.TIMEOUT, Code.CORRUPT):
                break
        return answer

    def _set_all(self, item: table.Item, value: int) -> None:
        for id_ in self._ids:
            self._set(id_, item, value)

    def _write_goal(self, id_: int, item: table.Item, value: int) -> None:
        """Write a goal before torque is switched on. Raises UserError without an answer."""
        data = item.pack(value)
        done = self._retry(lambda: self.bus.write(id_, item.address, data))
        if done.code:
            joint = self._spec.joints[self._place[id_]]
            raise UserError(
                f"{joint}: servo {id_} did not accept its measured position as its goal "
                f"({done.code.name.lower()}). The arm was not armed: check that the joint is "
                "inside its servo's position limits"
            )

    def _set(self, id_: int, item: table.Item, value: int) -> None:
        """Write a register and read it back. Raises UserError."""
        data = item.pack(value)
        done = self._retry(lambda: self.bus.write(id_, item.address, data))
        back = self._retry(lambda: self.bus.read(id_, item.address, item.size))
        if done.code or back.code or back.data != data:
            joint = self._spec.joints[self._place[id_]]
            raise UserError(
                f"{joint}: servo {id_} did not accept {value} for register "
                f"{item.address} (error {done.error}, register contains {list(back.data)}). The "
                "arm was not armed: check that the joint is inside its servo's position limits"
            )

    def _refuse_to_arm(self, reading: Reading) -> NoReturn:
        joints = ", ".join(
            f"{joint}: {_status_names(int(bits))}"
            for joint, bits in zip(self._spec.joints, reading.status, strict=True)
            if bits
        )
        what = joints or f"reading failed ({reading.code.name.lower()})"
        raise UserError(
            f"{self._spec.name} cannot be armed: {what}. To clear a hardware error, remove its "
            "cause, then reboot the servo or switch its power off and on"
        )


def _status_names(bits: int) -> str:
    names = [flag.name or "" for flag in Status if bits & flag]
    return " and ".join(name.lower().replace("_", " ") for name in names)


def _restrict_limits(
    spec: RobotSpec,
    servos: dict[str, calibration.Servo],
    watchdog_s: float | None,
    per_tick: np.ndarray,
) -> RobotSpec:
    """Return the specification with position limits restricted to the calibrated ranges."""
    ranges = np.array([servo.range_rad for servo in servos.values()])
    ranges *= (per_tick / table.RAD)[:, None]
    limits = replace(
        spec.limits,
        position_low=np.maximum(spec.limits.position_low, ranges[:, 0]),
        position_high=np.minimum(spec.limits.position_high, ranges[:, 1]),
    )
    count = None if watchdog_s is None else int(np.ceil(watchdog_s / table.WATCHDOG_S - 1e-9))
    return replace(
        spec,
        limits=limits,
        resolution=per_tick,
        own_watchdog_s=None if count is None else count * table.WATCHDOG_S,
    )

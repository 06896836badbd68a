"""An arm of X servos in position mode as a `Robot`.

One sync read a tick fetches everything: at the first reading each servo is told to show, side by
side in its indirect data, whether torque is on, what is wrong, its clock, current, velocity and
position. Its clock dates the answer, so that one from before the request is known for what it is.
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
    SETTLE_S,
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

SHOWN = (
    table.STATUS_LEVEL,  # always 2: a servo that has forgotten what to show says 0
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
    (item.address + k).to_bytes(2, "little") for item in SHOWN for k in range(item.size)
)
STATUS = {0x01: Status.VOLTAGE, 0x04: Status.OVER_TEMPERATURE, 0x08: Status.ENCODER}
STATUS |= {0x10: Status.ERROR, 0x20: Status.OVERLOAD}
TRIES = 3  # of what is not in the loop
DEFAULT_WATCHDOG_S = 0.2


class Clock:
    """When a servo took its measurement, by its own milliseconds, in the host's time."""

    TOLERANCE_MS, DRIFT = 1.0, 0.01
    FORGET_MS = 10_000  # without an answer, after which its clock is set anew

    def __init__(self) -> None:
        self._offset_ms: float | None = None  # host - servo
        self._heard_ms = 0.0

    def within(self, tick: int, asked_ns: int, now_ns: int) -> bool:
        """Whether the measurement may be from between the request and now.

        One that seems to be from later is taken too: then it was the clock's setting that was late.
        """
        asked_ms, now_ms = asked_ns * 1e-6, now_ns * 1e-6
        silence_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if self._offset_ms is None or silence_ms > self.FORGET_MS:
            self._offset_ms = asked_ms - tick
            return True
        early = _signed(asked_ms - 1 - tick - self._offset_ms)  # > 0: from before the request
        late = _signed(now_ms - tick - self._offset_ms)  # < 0: from after now
        if early > self.TOLERANCE_MS + self.DRIFT * silence_ms:
            return False
        self._offset_ms += max(early, 0.0) + min(late, 0.0)
        return True


def _signed(milliseconds: float) -> float:
    half = table.TICK_PERIOD / 2
    return (milliseconds + half) % table.TICK_PERIOD - half


class DynamixelRobot:
    """servos: in the order of the joints. open_port: called by `connect`.

    m_per_rad: [J] travel of joints that slide, for each rad of the servo; None where they turn.
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
            raise UserError(f"watchdog_s={watchdog_s}: servos take 0.02 to 2.54 s; 0 is off")
        self._watchdog_needed = bool(watchdog_s)
        self._watched = list[int]()  # ids of servos that have a watchdog and are to use it
        watchdog_s = DEFAULT_WATCHDOG_S if watchdog_s is None else watchdog_s
        count = len(spec.joints)
        self._servos, self._ids = servos, tuple(servo.id for servo in servos.values())
        self._per_rad = np.array([each or 1.0 for each in m_per_rad or [None] * count])
        self._per_tick = self._per_rad * table.RAD  # [J] rad or m
        self._spec = _tightened(spec, servos, watchdog_s or None, self._per_tick)
        self._watchdog_s = self._spec.own_watchdog_s or 0.0
        low, high = self._spec.limits.position_low, self._spec.limits.position_high
        self._low = np.ceil(np.nan_to_num(low, nan=0) / self._per_tick - 1e-9).astype(int)
        self._high = np.floor(np.nan_to_num(high, nan=0) / self._per_tick + 1e-9).astype(int)
        self._open_port, self._baud, self._latency_s = open_port, baud, latency_s
        self._tracker_path = tracker
        self._tracker: Tracker | None = None
        self._bus: Bus | None = None
        self._groups: list[tuple[int, tuple[int, ...]]] = []  # indirect data's address, ids
        self._models: list[table.Model] = []
        self._current_a = np.full(count, np.nan)
        self._armed = False
        self._strangers = list(range(count))  # who have not been told what to show
        self._clocks = {id_: Clock() for id_ in self._ids}
        self._place = {id_: k for k, id_ in enumerate(self._ids)}
        self._own_ticks = [(0, table.TICKS - 1)] * count  # the servos' own position limits
        self._asked_ns = 0
        self._shown = np.zeros(count, LAYOUT)
        self._seq, self._heard_ns = 0, 0
        self._q, self._dq = np.full(count, np.nan), np.full(count, np.nan)
        self._current = np.full(count, np.nan)

    @classmethod
    def from_config(cls, described: RobotDescription, line: DynamixelOptions) -> DynamixelRobot:
        """Raises UserError where the calibration is missing or of another arm."""
        for joint, row in described.joints.items():
            if row.unit == "m" and row.m_per_rad is None:
                raise UserError(
                    f"{described.path.name}: joints.{joint} is in m and its servo turns: write "
                    "m_per_rad, the joint's travel in m for each rad of the servo"
                )
        path = calibration_file(described, line)
        servos = calibration.load(path, described.spec.joints)
        for joint, row in described.joints.items():
            if row.id is not None and row.id != servos[joint].id:
                raise UserError(
                    f"{path}: {joint} has id {servos[joint].id}, in {described.path.name} {row.id}"
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
        """For calibration and for counters. Raises UserError while disconnected."""
        if self._bus is None:
            raise UserError(f"{self._spec.name} is not connected")
        return self._bus

    def connect(self) -> None:
        """Only reads. Raises UserError where anything differs from the calibration."""
        if self._bus is not None:
            return
        port = self._open_port()
        try:
            self._meet(port)
        except BaseException:
            self._bus = None
            port.close()
            raise

    def _meet(self, port: Port) -> None:
        owner = port.owner()
        if owner is not None and os.getpgid(owner) != os.getpgid(0):
            raise UserError(f"the port is in use by process {owner}: stop that first")
        self._bus = bus = Bus(port, self._baud, return_delay_s=508e-6, latency_s=self._latency_s)
        try:
            bus.settle(SETTLE_S)
        except PortLost as error:
            raise UserError(f"the port went away ({error}): plug it in and begin again") from None
        self._models, delays, addresses = [], [], dict[int, list[int]]()
        self._watched.clear()
        for joint, servo in self._servos.items():
            model, delay_s = self._introduce(joint, servo)
            self._models.append(model)
            delays.append(delay_s)
            addresses.setdefault(model.indirect_data, []).append(servo.id)
        if len(self._watched) < len(self._ids):  # the robot does not stop by itself, only a part
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
                f"{self._spec.name}: an answer of all servos may take {1e3 * longest:.1f} ms, "
                f"timeout_s allows {1e3 * self._spec.timeout_s:.1f} ms: set the servos' return "
                "delay (register 9) to 0 and the adapter's latency timer to 1 ms, or raise the "
                "baud rate"
            )
        if self._tracker_path is not None:
            spec = self._spec
            self._tracker = Tracker(self._tracker_path, spec.channels, spec.max_reading_age_s)

    def _introduce(self, joint: str, servo: calibration.Servo) -> tuple[table.Model, float]:
        """The servo's model and return delay, its EEPROM compared with what is expected."""
        answer = self._retry(lambda: self.bus.read(servo.id, 0, table.RAM))
        if answer.code:
            raise UserError(
                f"{joint}: servo {servo.id} does not answer at {self._baud} baud "
                f"({answer.code.name.lower()}): is it powered, on this port and at this speed?"
            )

        def has(item: table.Item) -> int:
            return item.unpack(answer.data[item.address : item.address + item.size])

        model = table.MODELS.get(has(table.MODEL))
        if model is None:
            raise UserError(f"{joint}: servo {servo.id} is model {has(table.MODEL)}, not known")
        expected = {
            "drive mode": (table.DRIVE_MODE, servo.drive_mode),
            "homing offset": (table.HOMING_OFFSET, servo.homing_offset),
        }
        if (mode := has(table.OPERATING_MODE)) != table.POSITION_MODE:
            name = table.MODES.get(mode, "unknown")
            raise UserError(
                f"{joint}: servo {servo.id} is in operating mode {mode} ({name}), expected "
                f"{table.POSITION_MODE} (position): another program has set it, as LeRobot sets 4; "
                f"write {table.POSITION_MODE} to register 11, torque off, or let offline-rl robot "
                "calibrate do so"
            )
        for name, (item, value) in expected.items():
            if has(item) != value:
                raise UserError(
                    f"{joint}: servo {servo.id} has {name} {has(item)}, the calibration says "
                    f"{value}: it is another arm's file or another servo; calibrate again"
                )
        place = self._place[servo.id]
        low, high = has(table.MIN_POSITION), has(table.MAX_POSITION)
        self._own_ticks[place] = low, high
        if low - table.CENTER > self._low[place] or high - table.CENTER < self._high[place]:
            wanted = [int(limit[place]) + table.CENTER for limit in (self._low, self._high)]
            raise UserError(
                f"{joint}: servo {servo.id} goes from tick {low} to {high} only, the robot's "
                f"limits are {wanted[0]} to {wanted[1]}, and goals beyond its own it would ignore: "
                "write registers 52 and 48, or narrow the robot's limits"
            )
        if servo.drive_mode & ~table.REVERSE:
            raise UserError(
                f"{joint}: drive mode {servo.drive_mode} has more than the direction's bit set: "
                "time profiles and torque by goal are not used; write "
                f"{servo.drive_mode & table.REVERSE} and calibrate again"
            )
        has_watchdog = has(table.FIRMWARE) >= model.watchdog_firmware
        if self._watchdog_s and has_watchdog and servo.id not in self._watched:
            self._watched.append(servo.id)
        if self._watchdog_needed and not has_watchdog:
            raise UserError(
                f"{joint}: firmware {has(table.FIRMWARE)} has no bus watchdog (from "
                f"{model.watchdog_firmware} on): update it, or leave out watchdog_s"
            )
        return model, 2e-6 * has(table.RETURN_DELAY)

    def arm(self) -> Reading:
        if not self.bus.port.claim():
            raise UserError(f"the port of {self._spec.name} is in use by another process")
        self._armed = False
        for joint, servo in self._servos.items():  # it may be another by now, or in another mode
            self._introduce(joint, servo)
        reading = self._steady()
        if reading.code or (reading.status & ~Status.WATCHDOG).any():
            self._complain(reading)
        limp = self._shown["torque"] == 0
        on = [id_ for id_, is_limp in zip(self._ids, limp, strict=True) if is_limp]
        try:
            self._set_all(table.BUS_WATCHDOG, 0)
            self._set_all(table.PROFILE_VELOCITY, 0)
            self._set_all(table.PROFILE_ACCELERATION, 0)
            if on:  # a servo that does not begin where it stands would leap to its last goal
                here = self._shown["position"][limp].tolist()
                # one by one, since nobody answers a sync write, and one that missed it would leap
                for id_, ticks in zip(on, here, strict=True):
                    self._told(id_, table.GOAL_POSITION, ticks)
                # all at once, so that the arm does not sag servo by servo; then see whether
                self.bus.sync_write(on, table.TORQUE_ENABLE.address, [b"\1"] * len(on))
            self._set_all(table.TORQUE_ENABLE, 1)
            if (reading := self._steady()).code:
                self._complain(reading)
            for id_, ticks in zip(self._ids, self._shown["position"].tolist(), strict=True):
                self._set(id_, table.GOAL_POSITION, ticks)
            for id_ in self._watched:
                self._set(id_, table.BUS_WATCHDOG, round(self._watchdog_s / table.WATCHDOG_S))
            self._armed = True
            reading = self._steady()
            if reading.code or reading.status.any():
                self._complain(reading)
        except UserError:
            self._armed = False
            for id_ in on:  # as they were found
                self._retry(partial(self.bus.write, id_, table.TORQUE_ENABLE.address, b"\0"))
            raise
        return reading

    def _steady(self) -> Reading:
        """A reading, on a second try if need be: a rebooted servo is told what to show first."""
        for _ in range(TRIES):
            if not (reading := self.read()).code:
                break
        return reading

    def read(self) -> Reading:
        """What did not answer is asked again as long as `timeout_s` allows. A servo that does not
        know what to show is told first: within that time where the robot is armed, and else, as
        at the first reading, in whatever time it takes."""
        port = self.bus.port
        missing = set(self._ids)
        begin = port.now_ns()
        end = begin + int(self._spec.timeout_s * 1e9)
        code = self._prepare(end)
        if code:
            missing = {self._ids[k] for k in self._strangers}
        elif not self._armed:
            begin = port.now_ns()
            end = begin + int(self._spec.timeout_s * 1e9)
        elif port.now_ns() + self._needs(missing) > end:
            code = Code.TIMEOUT  # it is told, and they are asked in the next tick
        silence_ns = int(2 * (11 + SIZE) * 10e9 / self._baud)
        while missing and not code:
            alone = len(missing) == len(self._ids) and begin + 2 * self._needs(missing) > end
            code = self._ask(missing, end - silence_ns if alone else 0)
            if code in (Code.TIMEOUT, Code.CORRUPT) and port.now_ns() + self._needs(missing) <= end:
                code = Code.OK  # so far
            elif missing:
                break
        return self._reading(code, begin, missing)

    def _needs(self, missing: set[int]) -> int:
        """ns that asking these may take."""
        counts = [len(missing.intersection(ids)) for _, ids in self._groups]
        silence = 2 * (11 + SIZE)  # packets' time, should one stay away
        seconds = [self.bus.duration_s(14 + n, n * (11 + SIZE) + silence, n) for n in counts if n]
        return int(sum(seconds) * 1e9)

    def _ask(self, missing: set[int], until_ns: int) -> Code:
        """Takes what comes, out of `missing` too; the worst code. until_ns: see `sync_read`."""
        worst = Code.OK
        for address, ids in self._groups:
            wanted = tuple(id_ for id_ in ids if id_ in missing)
            if not wanted:
                continue
            self._asked_ns = self.bus.port.now_ns()
            answers = self.bus.sync_read(wanted, address, SIZE, self._fresh, until_ns)
            for id_, answer in zip(wanted, answers, strict=True):
                worst = max(worst, answer.code)
                if not answer.code:
                    self._shown[self._place[id_]] = np.frombuffer(answer.data, LAYOUT)[0]
                    missing.discard(id_)
        return worst

    def _fresh(self, id_: int, data: bytes) -> bool:
        if data[0] != 2:  # it has forgotten; there is no clock to ask
            return True
        tick = data[4] | data[5] << 8
        return self._clocks[id_].within(tick, self._asked_ns, self.bus.port.now_ns())

    def _reading(self, code: Code, begin: int, missing: set[int]) -> Reading:
        shown, count = self._shown, len(self._ids)
        status = np.zeros(count, np.int64)
        for id_ in missing:
            status[self._place[id_]] |= Status.MISSING
        forgotten = shown["level"] != 2
        if not missing and forgotten.any():
            code = Code.REFUSED
            self._strangers = [k for k in range(count) if forgotten[k]]
        if self._armed:
            status[(shown["torque"] == 0) | forgotten] |= Status.TORQUE_OFF
        status[shown["watchdog"] == table.WATCHDOG_TRIPPED] |= Status.WATCHDOG
        if shown["error"].any():
            for bit, flag in STATUS.items():
                status[shown["error"] & bit != 0] |= flag
        if code is Code.OK:
            self._seq += 1
            self._q = (shown["position"] - table.CENTER) * self._per_tick
            self._dq = shown["velocity"] * (table.RAD_S * self._per_rad)
            self._current = shown["current"] * self._current_a
            # they measure when they have heard the request: long before the last has answered
            self._heard_ns = begin + int((14 + count) * 10e9 / self._baud)
        end, heard = self.bus.port.now_ns(), self._heard_ns
        channels: dict[str, np.ndarray] = {}
        channels_ns = None
        if self._tracker is not None:
            channels, channels_ns = self._tracker.read(end)
        values = self._q, self._dq, self._current, status, channels, channels_ns
        return Reading(code, self._seq, begin, heard, end, *values)

    def command(self, command: Command) -> Sent:
        now = self.bus.port.now_ns()
        if not np.isfinite(command.q).all():
            return Sent(Code.REFUSED, now, np.full(len(self._ids), np.nan))
        ticks = np.rint(command.q / self._per_tick).astype(int).clip(self._low, self._high)
        goals = [table.GOAL_POSITION.pack(int(tick) + table.CENTER) for tick in ticks]
        code = self.bus.sync_write(self._ids, table.GOAL_POSITION.address, goals)
        return Sent(code, now, ticks * self._per_tick)

    def hold(self, reason: str) -> Sequence[str]:
        """reason: for a log; the servos need none.

        A servo ignores a goal outside its own limits and would press on to its last one. If it
        stands outside, as after its encoder leapt, its torque goes off.
        """
        present = table.PRESENT_POSITION
        waiting = list(self._ids)
        for _ in range(TRIES):
            answers = self.bus.sync_read(waiting, present.address, present.size)
            known = {i: a.data for i, a in zip(waiting, answers, strict=True) if not a.code}
            goals = list(known), table.GOAL_POSITION.address, list(known.values())
            beyond = [i for i, data in known.items() if not self._takes(i, present.unpack(data))]
            off = beyond, table.TORQUE_ENABLE.address, [b"\0"] * len(beyond)
            if beyond and self.bus.sync_write(*off) is not Code.OK:
                continue
            if known and self.bus.sync_write(*goals) is Code.OK:
                waiting = [id_ for id_ in waiting if id_ not in known]
            if not waiting:
                break
        return [self._spec.joints[self._ids.index(id_)] for id_ in waiting]

    def _takes(self, id_: int, ticks: int) -> bool:
        """True if the servo's own position limits let it take this goal."""
        low, high = self._own_ticks[self._place[id_]]
        return low <= ticks <= high

    def disarm(self) -> None:
        for _ in range(TRIES):  # nobody answers a sync write
            self.bus.sync_write(self._ids, table.TORQUE_ENABLE.address, [b"\0"] * len(self._ids))
        self._armed = False
        known, holds = not self.read().code, self._shown["torque"] != 0
        if not known or holds.any():
            which = [j for j, on in zip(self._spec.joints, holds, strict=True) if on or not known]
            raise UserError(
                f"{', '.join(which)} may still hold: what was told to go limp did not say so"
            )

    def close(self) -> None:
        if self._bus is None:
            return
        if self._armed:
            off = [b"\0"] * len(self._ids)
            self._bus.sync_write(self._ids, table.BUS_WATCHDOG.address, off)
        self._bus.port.close()
        self._bus, self._armed, self._strangers = None, False, list(range(len(self._ids)))

    def _prepare(self, end_ns: int) -> Code:
        """Tells those servos what to show that do not know it; they forget it with their power.

        end_ns: for an armed robot, which is waited for: what would take longer is for the next
        time, one short attempt each.
        """
        if not self._strangers:
            return Code.OK
        bus, patience_s = self.bus, 0.0 if self._armed else PATIENCE_S
        if not bus.port.claim():
            return Code.REFUSED
        # of a read or a write, and the silence after one without an answer
        longest_ns = int(bus.duration_s(14 + 2 * SIZE, 5 * (11 + 2 * SIZE), 5) * 1e9)
        for k in list(self._strangers):
            id_, at = self._ids[k], self._models[k].indirect_address
            if self._armed and bus.port.now_ns() + longest_ns > end_ns:
                return Code.TIMEOUT
            has = bus.read(id_, at, 2 * SIZE, patience_s)
            if has.code:
                return has.code
            if has.data != MAPPING:
                if self._armed and bus.port.now_ns() + longest_ns > end_ns:
                    return Code.TIMEOUT
                done = bus.write(id_, at, MAPPING, patience_s)
                if done.code:
                    return done.code
            self._strangers.remove(k)
        return Code.OK

    def _retry(self, ask: Callable[[], Answer]) -> Answer:
        for _ in range(TRIES):
            if (answer := ask()).code not in (Code.TIMEOUT, Code.CORRUPT):
                break
        return answer

    def _set_all(self, item: table.Item, value: int) -> None:
        for id_ in self._ids:
            self._set(id_, item, value)

    def _told(self, id_: int, item: table.Item, value: int) -> None:
        """Writes, and has the servo say that it heard. Raises UserError."""
        data = item.pack(value)
        done = self._retry(lambda: self.bus.write(id_, item.address, data))
        if done.code:
            joint = self._spec.joints[self._place[id_]]
            raise UserError(
                f"{joint}: servo {id_} did not take where it stands as its goal "
                f"({done.code.name.lower()}): the arm was not armed; is the joint inside its "
                "servo's own position limits?"
            )

    def _set(self, id_: int, item: table.Item, value: int) -> None:
        """Writes and reads back. Raises UserError."""
        data = item.pack(value)
        done = self._retry(lambda: self.bus.write(id_, item.address, data))
        back = self._retry(lambda: self.bus.read(id_, item.address, item.size))
        if done.code or back.code or back.data != data:
            joint = self._spec.joints[self._place[id_]]
            raise UserError(
                f"{joint}: servo {id_} did not take {value} for register "
                f"{item.address} (error {done.error}, found {list(back.data)}): the arm was not "
                "armed; is the joint inside its servo's own position limits?"
            )

    def _complain(self, reading: Reading) -> NoReturn:
        told = ", ".join(
            f"{joint}: {_words(int(bits))}"
            for joint, bits in zip(self._spec.joints, reading.status, strict=True)
            if bits
        )
        what = told or f"reading failed ({reading.code.name.lower()})"
        raise UserError(
            f"{self._spec.name} cannot be armed: {what}; a hardware error goes with a reboot or "
            "with the power, once its cause is gone"
        )


def _words(bits: int) -> str:
    names = [flag.name or "" for flag in Status if bits & flag]
    return " and ".join(name.lower().replace("_", " ") for name in names)


def _tightened(
    spec: RobotSpec,
    servos: dict[str, calibration.Servo],
    watchdog_s: float | None,
    per_tick: np.ndarray,
) -> RobotSpec:
    """The robot's limits inside the calibrated ranges."""
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

"""A simulated X servo: what its control table says and does. The arm's physics moves it.

What no public manual settles is decided here as follows: a goal without torque is accepted and
ignored; switching on after a shutdown is refused as an access error; a tripped bus watchdog stops
the servo where it is, with torque on; every instruction on the line feeds the watchdog.
"""

import math
from typing import NamedTuple

from real_robot.robots.dynamixel import table as t
from real_robot.robots.dynamixel.packets import ALERT, Error
from real_robot.robots.physics import Physics

END = 662  # the first address behind the table
INDIRECT = 28  # entries
BOOT_NS = 300_000_000  # deaf for so long after a reboot
OVERLOAD_S = 1.0  # at full effort before it protects itself
ROOM_C = 30.0  # where it is at rest
WARMING_C = 12.0  # more at 1 A, in the end
WARMING_S = 300.0  # the time constant


class Range(NamedTuple):
    item: t.Item
    low: int
    high: int
    default: int


WRITABLE = {
    entry.item.address: entry
    for entry in (
        Range(t.ID, 0, 252, 1),
        Range(t.BAUD, 0, 7, 1),
        Range(t.RETURN_DELAY, 0, 254, 250),
        Range(t.DRIVE_MODE, 0, 13, 0),
        Range(t.OPERATING_MODE, 0, 16, 3),
        Range(t.HOMING_OFFSET, -1_044_479, 1_044_479, 0),
        Range(t.TEMPERATURE_LIMIT, 0, 100, 80),
        Range(t.MAX_VOLTAGE, 95, 160, 160),
        Range(t.MIN_VOLTAGE, 95, 160, 95),
        Range(t.CURRENT_LIMIT, 0, 1193, 1193),
        Range(t.VELOCITY_LIMIT, 0, 1023, 350),
        Range(t.MAX_POSITION, 0, 4095, 4095),
        Range(t.MIN_POSITION, 0, 4095, 0),
        Range(t.SHUTDOWN, 0, 63, 52),
        Range(t.TORQUE_ENABLE, 0, 1, 0),
        Range(t.STATUS_LEVEL, 0, 2, 2),
        Range(t.POSITION_P_GAIN, 0, 16_383, 800),
        Range(t.BUS_WATCHDOG, 0, 127, 0),
        Range(t.GOAL_PWM, -885, 885, 885),
        Range(t.GOAL_CURRENT, -1193, 1193, 1193),
        Range(t.GOAL_VELOCITY, -1023, 1023, 0),
        Range(t.PROFILE_ACCELERATION, 0, 32_767, 0),
        Range(t.PROFILE_VELOCITY, 0, 32_767, 0),
        Range(t.GOAL_POSITION, -1_048_575, 1_048_575, 0),
    )
}
GOALS = {t.GOAL_PWM, t.GOAL_CURRENT, t.GOAL_VELOCITY, t.GOAL_POSITION}


class SimulatedServo:
    """id: its address on the line; index: its joint in `physics`.

    mounting_ticks, direction: how it is screwed on: its encoder shows the center plus the mounting
    where the joint is at 0, and counts down with the joint where direction is -1.
    """

    def __init__(
        self,
        id_: int,
        index: int,
        physics: Physics,
        *,
        model: t.Model,
        mounting_ticks: int = 0,
        direction: int = 1,
        firmware: int = 48,
    ) -> None:
        self.model, self.index, self.physics = model, index, physics
        self.mounting_ticks, self.direction = mounting_ticks, direction
        self.frozen = False  # its measurements stand still, and so does its clock
        self.stuck = False  # its measurements stand still while its clock goes on
        self._wrap_ticks = 0
        self._blind_q: float | None = None
        self.temperature_c = ROOM_C
        self._memory = bytearray(END)
        self._booted_ns = self._fed_ns = 0
        self._strained_s = 0.0
        self._path: tuple[float, float] | None = None  # a profile's position and speed, rad
        self._put(t.MODEL, model.number)
        self._put(t.FIRMWARE, firmware)
        for entry in WRITABLE.values():
            self._put(entry.item, entry.default)
        self._put(t.ID, id_)
        self.id = id_
        self._power_up()

    def get(self, item: t.Item) -> int:
        return item.unpack(bytes(self._memory[item.address : item.address + item.size]))

    def _put(self, item: t.Item, value: int) -> None:
        self._memory[item.address : item.address + item.size] = item.pack(value)

    def _power_up(self) -> None:
        for entry in WRITABLE.values():
            if entry.item.address >= t.RAM:
                self._put(entry.item, entry.default)
        self._put(t.HARDWARE_ERROR, 0)
        first = self.model.indirect_data
        self._shown = [0] * INDIRECT  # the addresses behind indirect data
        shown = (first + k for k in range(INDIRECT))
        self._show(0, b"".join(address.to_bytes(2, "little") for address in shown))
        self._torque(False)

    # time

    def feed(self, now_ns: int) -> None:
        """An instruction went by on the line."""
        self._fed_ns = now_ns

    def watchdog_ns(self) -> int | None:
        """When its watchdog fires unless it is fed."""
        count = self._memory[t.BUS_WATCHDOG.address]
        if count in (0, t.WATCHDOG_TRIPPED) or not self.torque_on:
            return None
        return self._fed_ns + round(count * t.WATCHDOG_S * 1e9)

    def trip(self) -> None:
        """The watchdog fires: it stops where it is."""
        self._put(t.BUS_WATCHDOG, t.WATCHDOG_TRIPPED)
        self._stop()

    def follow(self) -> None:
        """A step along the profile, a trapezoid; time profiles are not simulated."""
        if self._blind_q is not None and self.torque_on:
            self._drive(self._angle(self.get(t.GOAL_POSITION)))
        if self._path is None:
            return
        (at, speed), dt = self._path, self.physics.period_ns * 1e-9
        apart = self._angle(self.get(t.GOAL_POSITION)) - at
        top = self.get(t.PROFILE_VELOCITY) * t.RAD_S
        gain = self.get(t.PROFILE_ACCELERATION) * t.RAD_S2 or math.inf
        wanted = math.copysign(min(top, math.sqrt(2 * gain * abs(apart))), apart)
        speed += min(max(wanted - speed, -gain * dt), gain * dt)
        if abs(speed * dt) >= abs(apart):
            self._path = None
            self._drive(at + apart)
        else:
            self._path = (at + speed * dt, speed)
            self._drive(at + speed * dt)

    def _drive(self, angle_rad: float) -> None:
        """The position loop's goal. A blind loop sees a constant error and pushes on."""
        if self._blind_q is not None:
            angle_rad += float(self.physics.q[self.index]) - self._blind_q
        self.physics.set_goal(self.index, angle_rad)

    def protect(self, torque: float, dt_s: float) -> None:
        """Warms up, and switches off when it is too hot or pushes in vain for too long."""
        full = abs(torque) > 0.98 * self.physics.max_torque[self.index]
        self._strained_s = self._strained_s + dt_s if full else 0.0
        if self._strained_s > OVERLOAD_S:
            self.fail(0x20)
        goal = ROOM_C + WARMING_C * (torque / (self.model.torque_per_a or 1.5)) ** 2
        self.temperature_c += (goal - self.temperature_c) * dt_s / WARMING_S
        if self.temperature_c > self.get(t.TEMPERATURE_LIMIT):
            self.fail(0x04)

    def fail(self, bits: int) -> None:
        """A hardware error; torque goes where the shutdown register says so."""
        self._put(t.HARDWARE_ERROR, self.get(t.HARDWARE_ERROR) | bits)
        if bits & self.get(t.SHUTDOWN) and self.torque_on:
            self._torque(False)

    def reboot(self, now_ns: int) -> None:
        self._power_up()
        self._booted_ns = now_ns + BOOT_NS

    def deaf(self, now_ns: int) -> bool:
        return now_ns < self._booted_ns

    # position

    @property
    def torque_on(self) -> bool:
        return self._memory[t.TORQUE_ENABLE.address] == 1

    def _reversed(self) -> bool:
        return bool(self._memory[t.DRIVE_MODE.address] & t.REVERSE)

    def _zero(self) -> int:
        """What it shows where the joint is at 0."""
        mounting = -self.mounting_ticks if self._reversed() else self.mounting_ticks
        return t.CENTER + mounting + self.get(t.HOMING_OFFSET) + self.wrap_ticks

    def _sign(self) -> int:
        return -self.direction if self._reversed() else self.direction

    @property
    def wrap_ticks(self) -> int:
        """Ticks by which the encoder leapt. The goal register stays, so the servo drives there."""
        return self._wrap_ticks

    @wrap_ticks.setter
    def wrap_ticks(self, ticks: int) -> None:
        if ticks != self._wrap_ticks:
            self._wrap_ticks = ticks
            if self.torque_on and self._path is None:
                self._drive(self._angle(self.get(t.GOAL_POSITION)))

    @property
    def blind(self) -> bool:
        """True while the encoder stands still, for the servo's own position loop too."""
        return self._blind_q is not None

    @blind.setter
    def blind(self, blind: bool) -> None:
        if blind != self.blind:
            self._blind_q = float(self.physics.q[self.index]) if blind else None

    def position(self) -> int:
        """Ticks that it would show."""
        q = float(self.physics.q[self.index]) if self._blind_q is None else self._blind_q
        turned = self._sign() * q / t.RAD
        return self._zero() + math.floor(turned + 0.5)

    def _angle(self, ticks: int) -> float:
        return self._sign() * (ticks - self._zero()) * t.RAD

    def _torque(self, on: bool) -> None:
        self._put(t.TORQUE_ENABLE, int(on))
        self.physics.set_torque(self.index, on)
        self._stop()

    def _stop(self) -> None:
        self._path = None
        self._put(t.GOAL_POSITION, self.position())
        self.physics.set_goal(self.index, float(self.physics.q[self.index]))

    def _go(self, ticks: int) -> None:
        self._put(t.GOAL_POSITION, ticks)
        if not self.get(t.PROFILE_VELOCITY):
            self._path = None
            self._drive(self._angle(ticks))
        elif self._path is None:
            self._path = (float(self.physics.q[self.index]), 0.0)

    # instructions

    def ping(self) -> bytes:
        return bytes(self._memory[:2] + self._memory[6:7])

    def error_byte(self, error: int = 0) -> int:
        return error | (ALERT if self._memory[t.HARDWARE_ERROR.address] else 0)

    def read(self, address: int, size: int, now_ns: int) -> tuple[int, bytes]:
        """error, data."""
        if address + size > END:
            return Error.RANGE, b""
        if address + size > t.RAM:
            self._measure(now_ns)
        first = self.model.indirect_data
        if first <= address and address + size <= first + INDIRECT:
            shown = self._shown[address - first : address - first + size]
            return 0, bytes([self._memory[at] for at in shown])
        return 0, bytes(self._memory[address : address + size])

    def write(self, address: int, data: bytes) -> int:
        """All of it or, with the error that it returns, nothing."""
        first, pointers = self.model.indirect_data, self.model.indirect_address
        if first <= address < first + INDIRECT:
            shown = self._shown[address - first : address - first + len(data)]
            address = shown[0]
            if shown != list(range(address, address + len(data))):
                return Error.ACCESS
            if first <= address < first + INDIRECT:  # shows itself: plain memory
                self._memory[address : address + len(data)] = data
                return 0
        if pointers <= address < pointers + 2 * INDIRECT:
            return self._show((address - pointers) // 2, data)
        changes: list[tuple[t.Item, int]] = []
        while data:
            entry = WRITABLE.get(address)
            if entry is None:
                return Error.ACCESS
            item = entry.item
            if len(data) < item.size:
                return Error.LENGTH
            value = item.unpack(data[: item.size])
            if error := self._refused(entry, value):
                return error
            changes.append((item, value))
            address, data = address + item.size, data[item.size :]
        for item, value in changes:
            self._apply(item, value)
        return 0

    def _show(self, start: int, data: bytes) -> int:
        targets = [int.from_bytes(data[k : k + 2], "little") for k in range(0, len(data), 2)]
        if len(data) % 2 or start + len(targets) > INDIRECT:
            return Error.LENGTH
        if not all(t.RAM <= target < END for target in targets):
            return Error.RANGE
        self._shown[start : start + len(targets)] = targets
        at = self.model.indirect_address + 2 * start
        self._memory[at : at + len(data)] = data
        return 0

    def _refused(self, entry: Range, value: int) -> int:
        item = entry.item
        if item.address < t.RAM and self.torque_on:
            return Error.ACCESS
        if item in GOALS and self._memory[t.BUS_WATCHDOG.address] == t.WATCHDOG_TRIPPED:
            return Error.RANGE
        if not entry.low <= value <= entry.high:
            return Error.RANGE
        if item == t.TORQUE_ENABLE and value and self.get(t.HARDWARE_ERROR):
            return Error.ACCESS
        if item == t.GOAL_POSITION and self.get(t.OPERATING_MODE) == t.POSITION_MODE:
            inside = self.get(t.MIN_POSITION) <= value <= self.get(t.MAX_POSITION)
            return 0 if inside else Error.LIMIT
        return 0

    def _apply(self, item: t.Item, value: int) -> None:
        if item == t.TORQUE_ENABLE:
            if bool(value) != self.torque_on:
                self._torque(bool(value))
        elif item == t.GOAL_POSITION:
            if self._memory[t.DRIVE_MODE.address] & t.TORQUE_BY_GOAL and not self.torque_on:
                self._torque(True)
            if self.torque_on:
                self._go(value)
        else:
            self._put(item, value)
            self.id = self._memory[t.ID.address]

    def _measure(self, now_ns: int) -> None:
        if self.frozen:
            return
        self._put(t.REALTIME_TICK, (now_ns - self._booted_ns) // 1_000_000 % t.TICK_PERIOD)
        if self.stuck:
            return
        physics, index, sign = self.physics, self.index, self._sign()
        torque = float(physics.torque[index])
        speed = 0.0 if self.blind else float(physics.dq[index])
        if self.model.current_a is None:
            current = round(1000 * torque / physics.max_torque[index])
        else:
            current = round(torque / self.model.torque_per_a / self.model.current_a)
        self._put(t.MOVING, int(abs(speed) > 10 * t.RAD_S))
        self._put(t.PRESENT_CURRENT, sign * current)
        self._put(t.PRESENT_VELOCITY, sign * round(speed / t.RAD_S))
        self._put(t.PRESENT_POSITION, self.position())
        self._put(t.PRESENT_VOLTAGE, round(120 - float(abs(physics.torque).sum()) / 1.8))
        self._put(t.PRESENT_TEMPERATURE, round(self.temperature_c))

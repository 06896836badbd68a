"""Simulated X servo: the behavior of its control table. `Physics` simulates its motion.

The public manuals leave some behavior open. It is assumed as follows. A goal is accepted and
ignored while torque is off. Switching torque on after a shutdown is refused as an access error. If
the bus watchdog fires, the servo stops at its position, with torque on. Every instruction on the
bus resets the watchdog.
"""

import math
from typing import NamedTuple

from real_robot.robots.dynamixel import table as t
from real_robot.robots.dynamixel.packets import ALERT, Error
from real_robot.robots.physics import Physics

END = 662  # first address after the control table
INDIRECT = 28  # number of indirect addresses
BOOT_NS = 300_000_000  # a servo does not answer for this time after a reboot
OVERLOAD_S = 1.0  # a servo at full torque for this time reports an overload
ROOM_C = 30.0  # temperature without load
WARMING_C = 12.0  # steady-state temperature increase at 1 A
WARMING_S = 300.0  # time constant of the temperature


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
    """Servo on the simulated bus.

    Args:
        id_: id of the servo on the bus.
        index: index of the servo's joint in `physics`.
        mounting_ticks: the encoder shows the center plus this number while the joint is at 0.
        direction: 1, or -1 if the encoder counts down in the joint's positive direction.
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
        self.frozen = False  # True: measurements and clock do not change
        self.stuck = False  # True: measurements do not change while the clock runs
        self._wrap_ticks = 0
        self._blind_q: float | None = None
        self.temperature_c = ROOM_C
        self._memory = bytearray(END)
        self._booted_ns = self._fed_ns = 0
        self._strained_s = 0.0
        # position (rad) and speed (rad/s) of the velocity profile; None: no profile is active
        self._path: tuple[float, float] | None = None
        self._store(t.MODEL, model.number)
        self._store(t.FIRMWARE, firmware)
        for entry in WRITABLE.values():
            self._store(entry.item, entry.default)
        self._store(t.ID, id_)
        self.id = id_
        self._power_up()

    def get(self, item: t.Item) -> int:
        return item.unpack(bytes(self._memory[item.address : item.address + item.size]))

    def _store(self, item: t.Item, value: int) -> None:
        self._memory[item.address : item.address + item.size] = item.pack(value)

    def _power_up(self) -> None:
        for entry in WRITABLE.values():
            if entry.item.address >= t.RAM:
                self._store(entry.item, entry.default)
        self._store(t.HARDWARE_ERROR, 0)
        first = self.model.indirect_data
        self._mapping = [0] * INDIRECT  # addresses mapped to the indirect data
        addresses = (first + k for k in range(INDIRECT))
        self._map_registers(0, b"".join(address.to_bytes(2, "little") for address in addresses))
        self._torque(False)

    # time

    def feed(self, now_ns: int) -> None:
        """Reset the watchdog, because an instruction was sent on the bus."""
        self._fed_ns = now_ns

    def watchdog_ns(self) -> int | None:
        """Return the time at which the watchdog fires; None: it is off."""
        count = self._memory[t.BUS_WATCHDOG.address]
        if count in (0, t.WATCHDOG_TRIPPED) or not self.torque_on:
            return None
        return self._fed_ns + round(count * t.WATCHDOG_S * 1e9)

    def trip(self) -> None:
        """Fire the watchdog. The servo stops at its position."""
        self._store(t.BUS_WATCHDOG, t.WATCHDOG_TRIPPED)
        self._stop()

    def follow(self) -> None:
        """Advance one step along the trapezoidal profile. Time profiles are not simulated."""
        if self._blind_q is not None and self.torque_on:
            self._drive(self._angle(self.get(t.GOAL_POSITION)))
        if self._path is None:
            return
        (at, speed), dt = self._path, self.physics.period_ns * 1e-9
        distance = self._angle(self.get(t.GOAL_POSITION)) - at
        max_speed = self.get(t.PROFILE_VELOCITY) * t.RAD_S
        gain = self.get(t.PROFILE_ACCELERATION) * t.RAD_S2 or math.inf
        target_speed = math.copysign(min(max_speed, math.sqrt(2 * gain * abs(distance))), distance)
        speed += min(max(target_speed - speed, -gain * dt), gain * dt)
        if abs(speed * dt) >= abs(distance):
            self._path = None
            self._drive(at + distance)
        else:
            self._path = (at + speed * dt, speed)
            self._drive(at + speed * dt)

    def _drive(self, angle_rad: float) -> None:
        """Set the goal of the position loop. With a stuck encoder, the loop keeps pushing."""
        if self._blind_q is not None:
            angle_rad += float(self.physics.q[self.index]) - self._blind_q
        self.physics.set_goal(self.index, angle_rad)

    def protect(self, torque: float, dt_s: float) -> None:
        """Update the temperature. Set the overload and overheating errors if they occur."""
        full = abs(torque) > 0.98 * self.physics.max_torque[self.index]
        self._strained_s = self._strained_s + dt_s if full else 0.0
        if self._strained_s > OVERLOAD_S:
            self.fail(0x20)
        goal = ROOM_C + WARMING_C * (torque / (self.model.torque_per_a or 1.5)) ** 2
        self.temperature_c += (goal - self.temperature_c) * dt_s / WARMING_S
        if self.temperature_c > self.get(t.TEMPERATURE_LIMIT):
            self.fail(0x04)

    def fail(self, bits: int) -> None:
        """Set a hardware error. The shutdown register decides if torque is switched off."""
        self._store(t.HARDWARE_ERROR, self.get(t.HARDWARE_ERROR) | bits)
        if bits & self.get(t.SHUTDOWN) and self.torque_on:
            self._torque(False)

    def reboot(self, now_ns: int) -> None:
        self._power_up()
        self._booted_ns = now_ns + BOOT_NS

    def is_booting(self, now_ns: int) -> bool:
        return now_ns < self._booted_ns

    # position

    @property
    def torque_on(self) -> bool:
        return self._memory[t.TORQUE_ENABLE.address] == 1

    def _reversed(self) -> bool:
        return bool(self._memory[t.DRIVE_MODE.address] & t.REVERSE)

    def _zero(self) -> int:
        """Return the ticks that the servo shows while the joint is at 0."""
        mounting = -self.mounting_ticks if self._reversed() else self.mounting_ticks
        return t.CENTER + mounting + self.get(t.HOMING_OFFSET) + self.wrap_ticks

    def _sign(self) -> int:
        return -self.direction if self._reversed() else self.direction

    @property
    def wrap_ticks(self) -> int:
        """Ticks by which the encoder jumped. The goal register is unchanged, so the joint moves."""
        return self._wrap_ticks

    @wrap_ticks.setter
    def wrap_ticks(self, ticks: int) -> None:
        if ticks != self._wrap_ticks:
            self._wrap_ticks = ticks
            if self.torque_on and self._path is None:
                self._drive(self._angle(self.get(t.GOAL_POSITION)))

    @property
    def blind(self) -> bool:
        """True while the encoder is stuck, for the measurements and for the position loop."""
        return self._blind_q is not None

    @blind.setter
    def blind(self, blind: bool) -> None:
        if blind != self.blind:
            self._blind_q = float(self.physics.q[self.index]) if blind else None

    def position(self) -> int:
        """Return the present position, ticks."""
        q = float(self.physics.q[self.index]) if self._blind_q is None else self._blind_q
        turned = self._sign() * q / t.RAD
        return self._zero() + math.floor(turned + 0.5)

    def _angle(self, ticks: int) -> float:
        return self._sign() * (ticks - self._zero()) * t.RAD

    def _torque(self, on: bool) -> None:
        self._store(t.TORQUE_ENABLE, int(on))
        self.physics.set_torque(self.index, on)
        self._stop()

    def _stop(self) -> None:
        self._path = None
        self._store(t.GOAL_POSITION, self.position())
        self.physics.set_goal(self.index, float(self.physics.q[self.index]))

    def _start_motion(self, ticks: int) -> None:
        self._store(t.GOAL_POSITION, ticks)
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
        """Read registers. Return error and data."""
        if address + size > END:
            return Error.RANGE, b""
        if address + size > t.RAM:
            self._measure(now_ns)
        first = self.model.indirect_data
        if first <= address and address + size <= first + INDIRECT:
            addresses = self._mapping[address - first : address - first + size]
            return 0, bytes([self._memory[at] for at in addresses])
        return 0, bytes(self._memory[address : address + size])

    def write(self, address: int, data: bytes) -> int:
        """Write registers. Return the error, or 0. If there is an error, nothing is written."""
        first, pointers = self.model.indirect_data, self.model.indirect_address
        if first <= address < first + INDIRECT:
            addresses = self._mapping[address - first : address - first + len(data)]
            address = addresses[0]
            if addresses != list(range(address, address + len(data))):
                return Error.ACCESS
            if first <= address < first + INDIRECT:  # not mapped: plain memory
                self._memory[address : address + len(data)] = data
                return 0
        if pointers <= address < pointers + 2 * INDIRECT:
            return self._map_registers((address - pointers) // 2, data)
        changes: list[tuple[t.Item, int]] = []
        while data:
            entry = WRITABLE.get(address)
            if entry is None:
                return Error.ACCESS
            item = entry.item
            if len(data) < item.size:
                return Error.LENGTH
            value = item.unpack(data[: item.size])
            if error := self._error_of(entry, value):
                return error
            changes.append((item, value))
            address, data = address + item.size, data[item.size :]
        for item, value in changes:
            self._apply(item, value)
        return 0

    def _map_registers(self, start: int, data: bytes) -> int:
        targets = [int.from_bytes(data[k : k + 2], "little") for k in range(0, len(data), 2)]
        if len(data) % 2 or start + len(targets) > INDIRECT:
            return Error.LENGTH
        if not all(t.RAM <= target < END for target in targets):
            return Error.RANGE
        self._mapping[start : start + len(targets)] = targets
        at = self.model.indirect_address + 2 * start
        self._memory[at : at + len(data)] = data
        return 0

    def _error_of(self, entry: Range, value: int) -> int:
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
                self._start_motion(value)
        else:
            self._store(item, value)
            self.id = self._memory[t.ID.address]

    def _measure(self, now_ns: int) -> None:
        if self.frozen:
            return
        self._store(t.REALTIME_TICK, (now_ns - self._booted_ns) // 1_000_000 % t.TICK_PERIOD)
        if self.stuck:
            return
        physics, index, sign = self.physics, self.index, self._sign()
        torque = float(physics.torque[index])
        speed = 0.0 if self.blind else float(physics.dq[index])
        if self.model.current_a is None:
            current = round(1000 * torque / physics.max_torque[index])
        else:
            current = round(torque / self.model.torque_per_a / self.model.current_a)
        self._store(t.MOVING, int(abs(speed) > 10 * t.RAD_S))
        self._store(t.PRESENT_CURRENT, sign * current)
        self._store(t.PRESENT_VELOCITY, sign * round(speed / t.RAD_S))
        self._store(t.PRESENT_POSITION, self.position())
        self._store(t.PRESENT_VOLTAGE, round(120 - float(abs(physics.torque).sum()) / 1.8))
        self._store(t.PRESENT_TEMPERATURE, round(self.temperature_c))

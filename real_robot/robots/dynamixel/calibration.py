"""Calibration file: the settings in each servo that map ticks to angles.

    {"waist": {"id": 1, "drive_mode": 0, "homing_offset": -37, "range_min": 512, "range_max": 3584}}

A joint is at 0 rad if its servo shows tick 2048; the homing offset in the servo ensures this. Bit 0
of the drive mode reverses the direction of counting. Ranges are in ticks and include both ends. A
run is refused if the file differs from the servos' settings. So an exchanged servo, or the file of
another arm, is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_json
from offline_rl.utils.options import build
from real_robot.robots.dynamixel import table
from real_robot.robots.dynamixel.bus import Bus
from real_robot.robots.dynamixel.packets import MAX_ID

FAR = 1 << 32  # ticks; larger than any position of a servo
SILENT = -FAR  # position of a servo that did not answer; -1 would be a valid position
MAX_HOMING = 1024  # ticks; a servo in position mode ignores a larger homing offset


@dataclass(frozen=True, kw_only=True)
class Servo:
    """Calibration of one servo."""

    id: int
    drive_mode: int
    homing_offset: int  # ticks that the servo adds to the value of its encoder
    range_min: int  # lowest position, ticks
    range_max: int  # highest position, ticks

    def __post_init__(self) -> None:
        if not 0 <= self.id <= MAX_ID:
            raise ValueError(f"id is {self.id}, expected 0 to {MAX_ID}")
        if not 0 <= self.range_min < self.range_max < table.TICKS:
            values = f"range_min {self.range_min}, range_max {self.range_max}"
            raise ValueError(f"{values}; expected 0 <= range_min < range_max <= {table.TICKS - 1}")

    @property
    def range_rad(self) -> tuple[float, float]:
        return angle(self.range_min), angle(self.range_max)


def angle(ticks: int) -> float:
    """Convert a position in ticks to an angle in rad."""
    return (ticks - table.CENTER) * table.RAD


def ticks(angle_rad: float) -> int:
    """Convert an angle to the nearest tick. Raises ValueError if the angle is not a number."""
    return table.CENTER + round(angle_rad / table.RAD)


def load(path: Path, joints: Sequence[str]) -> dict[str, Servo]:
    """Load the calibration of the servos, in the order of the joints.

    Raises UserError if the file does not exist or belongs to another arm.
    """
    if not path.is_file():
        raise UserError(
            f"calibration {path} does not exist: create it with `offline-rl robot calibrate "
            "robot=<name>`, or simulate the arm with adapter=simulated"
        )
    values = read_json(path)
    if not isinstance(values, dict) or set(values) != set(joints):
        names = ", ".join(values) if isinstance(values, dict) else type(values).__name__
        expected = ", ".join(joints)
        raise UserError(
            f"{path} is for another arm: its joints are {names}, expected {expected}. Use this "
            "arm's file, or calibrate the robot"
        )
    servos = {joint: build(Servo, values[joint], f"{path.name}: {joint}.") for joint in joints}
    if len({servo.id for servo in servos.values()}) < len(servos):
        raise UserError(f"{path}: two joints have the same id: calibrate the robot")
    return servos


def save(path: Path, servos: Mapping[str, Servo]) -> None:
    write_json(path, {joint: asdict(servo) for joint, servo in servos.items()})


def set_zero(bus: Bus, id_: int) -> int:
    """Make the joint's present position its zero. Return the servo's new homing offset.

    Torque must be off. Raises UserError if the servo refuses, or if the required homing offset is
    too large.
    """
    offset = _read(bus, id_, table.HOMING_OFFSET)
    present = _read(bus, id_, table.PRESENT_POSITION)
    if not 0 <= present - offset < table.TICKS:
        raise UserError(
            f"servo {id_} shows tick {present} at the joint's zero: it was turned past its tick 0 "
            "and counts more than one turn. Switch its power off and on, and start again. If this "
            "message comes again, remount its horn a quarter turn away"
        )
    homing_offset = offset + table.CENTER - present
    if abs(homing_offset) > MAX_HOMING:
        raise UserError(
            f"servo {id_} is {homing_offset} ticks from its center, but at most {MAX_HOMING} can "
            "be corrected: remount its horn a quarter turn away and start again"
        )
    _write_verified(bus, id_, table.HOMING_OFFSET, homing_offset)
    return homing_offset


def set_position_mode(bus: Bus, id_: int) -> None:
    """Set the servo to position mode. Another program may have set another mode.

    Torque must be off. Raises UserError if the servo refuses.
    """
    if _read(bus, id_, table.OPERATING_MODE) != table.POSITION_MODE:
        _write_verified(bus, id_, table.OPERATING_MODE, table.POSITION_MODE)


def set_direction(bus: Bus, id_: int, moved: int) -> None:
    """Set the servo's direction so that it counts up in the joint's positive direction.

    moved: ticks that the servo counted while the joint moved in its positive direction. Torque must
    be off. The zero must be set after this. Raises UserError if the servo refuses.
    """
    mode = _read(bus, id_, table.DRIVE_MODE) & table.REVERSE
    _write_verified(bus, id_, table.DRIVE_MODE, mode if moved > 0 else mode ^ table.REVERSE)


class Ranges:
    """Ranges over which the joints have been moved by hand."""

    def __init__(self, bus: Bus, ids: Sequence[int]) -> None:
        self._bus, self.ids = bus, tuple(ids)
        self.low = np.full(len(self.ids), FAR)
        self.high = np.full(len(self.ids), -FAR)

    def update(self) -> np.ndarray:
        """Read the positions and extend the ranges. Return the positions, [J] ticks.

        The position of a servo that does not answer is `SILENT`.
        """
        position = table.PRESENT_POSITION
        # Read one by one, with a long timeout: servos with factory settings answer late.
        answers = [self._bus.read(id_, position.address, position.size) for id_ in self.ids]
        positions = np.array([SILENT if a.code else position.unpack(a.data) for a in answers])
        answered = positions != SILENT
        self.low[answered] = np.minimum(self.low, positions)[answered]
        self.high[answered] = np.maximum(self.high, positions)[answered]
        return positions


def read_back(bus: Bus, id_: int, low: int, high: int) -> Servo:
    """Read a servo's settings. Return its calibration with the range low to high, ticks.

    Raises UserError if the servo does not answer.
    """
    return Servo(
        id=id_,
        drive_mode=_read(bus, id_, table.DRIVE_MODE),
        homing_offset=_read(bus, id_, table.HOMING_OFFSET),
        range_min=max(low, 0),
        range_max=min(high, table.TICKS - 1),
    )


def write_limits(bus: Bus, servo: Servo) -> None:
    """Write the range to the servo's position limits, and set its return delay to 0."""
    _write_verified(bus, servo.id, table.MIN_POSITION, servo.range_min)
    _write_verified(bus, servo.id, table.MAX_POSITION, servo.range_max)
    _write_verified(bus, servo.id, table.RETURN_DELAY, 0)


def _write_verified(bus: Bus, id_: int, item: table.Item, value: int) -> None:
    answer = bus.write(id_, item.address, item.pack(value))
    if answer.code or _read(bus, id_, item) != value:
        raise UserError(
            f"servo {id_} did not accept {value} for register {item.address} (error "
            f"{answer.error}). Check that its torque is off"
        )


def _read(bus: Bus, id_: int, item: table.Item) -> int:
    answer = bus.read(id_, item.address, item.size)
    if answer.code:
        raise UserError(
            f"servo {id_} does not answer ({answer.code.name.lower()}): check its power and cable"
        )
    return item.unpack(answer.data)

"""The calibration file: what is written in each servo, so that ticks mean angles.

    {"waist": {"id": 1, "drive_mode": 0, "homing_offset": -37, "range_min": 512, "range_max": 3584}}

A joint is at 0 rad where its servo shows 2048: the homing offset, in the servo, sees to that, and
bit 0 of the drive mode turns the direction round. The file must say what the servos say; it is how
an exchanged servo, or another arm's file, is noticed. Ranges are in ticks, ends included.
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

FAR = 1 << 32  # ticks, beyond what a servo shows
SILENT = -FAR  # in place of ticks, which are negative past tick 0
MAX_HOMING = 1024  # beyond it a servo in position mode ignores the offset


@dataclass(frozen=True, kw_only=True)
class Servo:
    id: int
    drive_mode: int
    homing_offset: int  # ticks that the servo adds to what its encoder says
    range_min: int  # ticks
    range_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.id <= MAX_ID:
            raise ValueError(f"id is {self.id}; ids are 0 to {MAX_ID}")
        if not 0 <= self.range_min < self.range_max < table.TICKS:
            found = f"range_min {self.range_min}, range_max {self.range_max}"
            raise ValueError(f"{found}; expected 0 <= range_min < range_max <= {table.TICKS - 1}")

    @property
    def range_rad(self) -> tuple[float, float]:
        return angle(self.range_min), angle(self.range_max)


def angle(ticks: int) -> float:
    """rad"""
    return (ticks - table.CENTER) * table.RAD


def ticks(angle_rad: float) -> int:
    """The nearest tick. Raises ValueError where the angle is no number."""
    return table.CENTER + round(angle_rad / table.RAD)


def load(path: Path, joints: Sequence[str]) -> dict[str, Servo]:
    """In the joints' order. Raises UserError where the file is of another arm."""
    if not path.is_file():
        raise UserError(
            f"no calibration {path}; make it with `offline-rl robot calibrate robot=<name>`, "
            "or go without an arm: adapter=simulated"
        )
    values = read_json(path)
    if not isinstance(values, dict) or set(values) != set(joints):
        found = ", ".join(values) if isinstance(values, dict) else type(values).__name__
        expected = ", ".join(joints)
        raise UserError(f"{path} is of another arm: its joints are {found}, expected {expected}")
    servos = {joint: build(Servo, values[joint], f"{path.name}: {joint}.") for joint in joints}
    if len({servo.id for servo in servos.values()}) < len(servos):
        raise UserError(f"{path}: two joints have the same id")
    return servos


def save(path: Path, servos: Mapping[str, Servo]) -> None:
    write_json(path, {joint: asdict(servo) for joint, servo in servos.items()})


def set_zero(bus: Bus, id_: int) -> int:
    """Makes where the joint is now its 0 rad; the homing offset that is now in the servo.

    Torque must be off. Raises UserError where the servo does not do it, or is screwed on so far
    from its center that no offset helps.
    """
    offset = _get(bus, id_, table.HOMING_OFFSET)
    present = _get(bus, id_, table.PRESENT_POSITION)
    if not 0 <= present - offset < table.TICKS:
        raise UserError(
            f"servo {id_} shows tick {present} at the joint's zero, outside its turn: it was "
            "turned past its tick 0. Switch its power off and on and begin again; if it says so "
            "again, turn its horn by a quarter"
        )
    wanted = offset + table.CENTER - present
    if abs(wanted) > MAX_HOMING:
        raise UserError(
            f"servo {id_} stands {wanted} ticks from its center; at most {MAX_HOMING} can be "
            "corrected: turn its horn by a quarter and begin again"
        )
    _put(bus, id_, table.HOMING_OFFSET, wanted)
    return wanted


def set_position_mode(bus: Bus, id_: int) -> None:
    """Set the operating mode that runs use; another program may have left another one.

    Torque must be off. Raises UserError.
    """
    if _get(bus, id_, table.OPERATING_MODE) != table.POSITION_MODE:
        _put(bus, id_, table.OPERATING_MODE, table.POSITION_MODE)


def set_direction(bus: Bus, id_: int, moved: int) -> None:
    """Lets the servo count up in the joint's positive direction, in which it saw `moved` ticks.

    Torque must be off, and the zero is set afterward. Raises UserError.
    """
    mode = _get(bus, id_, table.DRIVE_MODE) & table.REVERSE
    _put(bus, id_, table.DRIVE_MODE, mode if moved > 0 else mode ^ table.REVERSE)


class Ranges:
    """How far each joint is moved by hand."""

    def __init__(self, bus: Bus, ids: Sequence[int]) -> None:
        self._bus, self.ids = bus, tuple(ids)
        self.low = np.full(len(self.ids), FAR)
        self.high = np.full(len(self.ids), -FAR)

    def look(self) -> np.ndarray:
        """The positions now, [J] ticks, `SILENT` where a servo did not answer."""
        position = table.PRESENT_POSITION
        # one by one, with patience: new servos answer late
        answers = [self._bus.read(id_, position.address, position.size) for id_ in self.ids]
        here = np.array([SILENT if a.code else position.unpack(a.data) for a in answers])
        known = here != SILENT
        self.low[known] = np.minimum(self.low, here)[known]
        self.high[known] = np.maximum(self.high, here)[known]
        return here


def read_back(bus: Bus, id_: int, low: int, high: int) -> Servo:
    """What the servo says of itself, with a range. Raises UserError."""
    return Servo(
        id=id_,
        drive_mode=_get(bus, id_, table.DRIVE_MODE),
        homing_offset=_get(bus, id_, table.HOMING_OFFSET),
        range_min=max(low, 0),
        range_max=min(high, table.TICKS - 1),
    )


def finish(bus: Bus, servo: Servo) -> None:
    """Writes the servo's own limits, its range, and lets it answer without delay."""
    _put(bus, servo.id, table.MIN_POSITION, servo.range_min)
    _put(bus, servo.id, table.MAX_POSITION, servo.range_max)
    _put(bus, servo.id, table.RETURN_DELAY, 0)


def _put(bus: Bus, id_: int, item: table.Item, value: int) -> None:
    answer = bus.write(id_, item.address, item.pack(value))
    if answer.code or _get(bus, id_, item) != value:
        raise UserError(
            f"servo {id_} did not take {value} for register {item.address} (error {answer.error}): "
            "is its torque off?"
        )


def _get(bus: Bus, id_: int, item: table.Item) -> int:
    answer = bus.read(id_, item.address, item.size)
    if answer.code:
        raise UserError(f"servo {id_} does not answer ({answer.code.name.lower()})")
    return item.unpack(answer.data)

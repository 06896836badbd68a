"""`robot calibrate`: where an arm's zero is, and how far each joint goes, by a person's hand."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.robots.config import Line, describe

LEAST_TICKS = 100  # a joint that was moved by less was not moved


def calibrate(robot: str, *, ask: Callable[[str], object] | None = None, **changes: Any) -> str:
    """Writes the robot's calibration file; returns its path, last.

    ask: shows a sentence and returns when that is done, by default with Enter. changes: of the
    adapter's options, such as port=…. Raises UserError; servos zeroed before that stay so.
    """
    from real_robot.robots.dynamixel import table
    from real_robot.robots.dynamixel.bus import Bus, SerialPort, adapter_latency_s
    from real_robot.robots.dynamixel.calibration import Ranges, read_back, save, zero_here
    from real_robot.robots.dynamixel.robot import default_calibration

    described = describe(robot)
    if described.config.adapter != "dynamixel":
        raise UserError(f"{robot} needs no calibration: only servos on a line do")
    line = build(Line, described.config.dynamixel | changes, "dynamixel.")
    ids = {joint: row.id for joint, row in described.joints.items() if row.id is not None}
    if missing := [joint for joint in described.joints if joint not in ids]:
        raise UserError(f"{described.path.name}: joints.{missing[0]}.id is missing")
    wait = ask or _enter
    port = SerialPort(line.port, line.baud)
    try:
        latency_s = adapter_latency_s(line.port) if line.latency_s is None else line.latency_s
        bus = Bus(port, line.baud, latency_s=latency_s)
        wait("Torque goes off: hold the arm. Then Enter")
        for id_ in ids.values():
            if bus.write(id_, table.TORQUE_ENABLE.address, table.TORQUE_ENABLE.pack(0)).code:
                raise UserError(f"servo {id_} does not answer: check its power, id and baud rate")
        wait("Bring every joint to its zero. Then Enter")
        for id_ in ids.values():
            zero_here(bus, id_)
        ranges = Ranges(bus, list(ids.values()))
        if ask is None:
            _while_moving(ranges)
        else:
            ask("move")
            ranges.look()
        for joint, low, high in zip(ids, ranges.low, ranges.high, strict=True):
            if high - low < LEAST_TICKS:
                raise UserError(f"joint {joint} was not moved to its ends: begin again")
        servos = {
            joint: read_back(bus, id_, int(low), int(high))
            for (joint, id_), low, high in zip(ids.items(), ranges.low, ranges.high, strict=True)
        }
    finally:
        port.close()
    path = Path(line.calibration) if line.calibration else default_calibration(described)
    save(path, servos)
    return str(path)


def _enter(sentence: str) -> None:
    print(f"{sentence} ", end="", flush=True)
    if not sys.stdin.readline():
        raise UserError("calibration needs a person at a terminal")


def _while_moving(ranges: Any) -> None:
    print("Move every joint to both its ends. Then Enter")
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        here = ranges.look()
        low, high = ranges.low, ranges.high
        told = "  ".join(f"{a}..{b} ({x})" for a, b, x in zip(low, high, here, strict=True))
        print(f"\r\x1b[2K{told}", end="", flush=True)
    sys.stdin.readline()
    print()

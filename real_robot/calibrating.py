"""`robot calibrate`: where an arm's zero is, which way each joint turns, and how far."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.robots.config import DynamixelOptions, calibration_file, describe

LEAST_TICKS = 100  # a joint that was moved by less was not moved
POLL_S = 0.02

Ask = Callable[[str, Callable[[], Any]], object]


def calibrate(robot: str, *, ask: Ask | None = None, **changes: Any) -> str:
    """Writes the robot's calibration file and its servos; returns the file's path, last.

    ask(sentence, meanwhile): shows a sentence and calls `meanwhile` again and again until that is
    done, by default until Enter. changes: of the adapter's options, such as port=…. Raises
    UserError; what was written to servos before that stays.
    """
    from real_robot.robots.dynamixel import table
    from real_robot.robots.dynamixel.bus import Bus, SerialPort, adapter_latency_s
    from real_robot.robots.dynamixel.calibration import (
        SILENT,
        Ranges,
        finish,
        read_back,
        save,
        set_direction,
        set_position_mode,
        set_zero,
    )

    described = describe(robot)
    if described.config.adapter != "dynamixel":
        raise UserError(f"{robot} needs no calibration: only servos on a line do")
    line = build(DynamixelOptions, described.config.dynamixel | changes, "dynamixel.")
    joints = {row.id: joint for joint, row in described.joints.items() if row.id is not None}
    if missing := [joint for joint, row in described.joints.items() if row.id is None]:
        raise UserError(f"{described.path.name}: joints.{missing[0]}.id is missing")
    wait = ask or _enter
    port = SerialPort(line.port, line.baud)
    try:
        owner = port.owner()
        if owner is not None or not port.claim():
            who = f"process {owner}" if owner is not None else "another process"
            raise UserError(f"the port is in use by {who}: stop that first")
        latency_s = adapter_latency_s(line.port) if line.latency_s is None else line.latency_s
        bus = Bus(port, line.baud, latency_s=latency_s)

        def here() -> dict[int, int]:
            """Ticks now. Raises UserError where a servo does not answer."""
            found = dict(zip(joints, Ranges(bus, list(joints)).look().tolist(), strict=True))
            for id_, ticks in found.items():
                _checked(ticks == SILENT, id_)
            return found

        here()
        wait("Torque goes off: hold the arm. Then Enter", lambda: None)
        for id_ in joints:
            _checked(bus.write(id_, table.TORQUE_ENABLE.address, b"\0").code, id_)
            set_position_mode(bus, id_)
        wait(
            "Turn each joint a little to its positive side, as the model has it. Then Enter",
            lambda: None,
        )
        aside = here()
        wait("Bring every joint to its zero. Then Enter", lambda: None)
        for id_, ticks in here().items():
            # the shorter way round
            moved = (aside[id_] - ticks + table.CENTER) % table.TICKS - table.CENTER
            if abs(moved) < LEAST_TICKS:
                raise UserError(
                    f"joint {joints[id_]} was not turned to its positive side: begin again"
                )
            set_direction(bus, id_, moved)
            set_zero(bus, id_)
        ranges = Ranges(bus, list(joints))
        wait("Move every joint to both its ends. Then Enter", ranges.update)
        for joint, low, high in zip(joints.values(), ranges.low, ranges.high, strict=True):
            if high - low < LEAST_TICKS:
                raise UserError(f"joint {joint} was not moved to its ends: begin again")
        servos = {
            joint: read_back(bus, id_, int(low), int(high))
            for (id_, joint), low, high in zip(joints.items(), ranges.low, ranges.high, strict=True)
        }
        for servo in servos.values():
            finish(bus, servo)
    finally:
        port.close()
    path = calibration_file(described, line)
    save(path, servos)
    path.with_suffix(".unconfirmed.json").unlink(missing_ok=True)  # every joint has its zero again
    return str(path)


def _checked(code: int, id_: int) -> None:
    if code:
        raise UserError(f"servo {id_} does not answer: check its power, id and baud rate")


def _enter(sentence: str, meanwhile: Callable[[], Any]) -> None:
    """Shows what `meanwhile` sees, where it sees anything, until Enter."""
    print(sentence, flush=True)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        if (seen := meanwhile()) is not None:
            print(f"\r\x1b[2K{seen}", end="", flush=True)
    if not sys.stdin.readline():
        raise UserError("calibration needs a person at a terminal")

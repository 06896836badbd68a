"""`robot calibrate`: set each joint's zero, direction and range."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.robots.config import DynamixelOptions, calibration_file, describe

MIN_TICKS = 100  # a joint that was turned by less than this counts as not turned
POLL_S = 0.02

Ask = Callable[[str, Callable[[], Any]], object]


def calibrate(robot: str, *, ask: Ask | None = None, **changes: Any) -> str:
    """Calibrate a robot: write its servos and then its calibration file. Return the file's path.

    Args:
        ask: called as ask(sentence, meanwhile). It shows the sentence to the operator, and calls
            `meanwhile` repeatedly until the operator has done what the sentence says. The default
            waits for Enter.
        changes: options of the adapter, such as port=….

    Raises UserError. Values that were already written to servos then remain in the servos.
    """
    from real_robot.robots.dynamixel import table
    from real_robot.robots.dynamixel.bus import Bus, SerialPort, adapter_latency_s
    from real_robot.robots.dynamixel.calibration import (
        SILENT,
        Ranges,
        read_back,
        save,
        set_direction,
        set_position_mode,
        set_zero,
        write_limits,
    )

    described = describe(robot)
    if described.config.adapter != "dynamixel":
        raise UserError(
            f"{robot} needs no calibration: its adapter is {described.config.adapter}, and only "
            "dynamixel needs one"
        )
    options = build(DynamixelOptions, described.config.dynamixel | changes, "dynamixel.")
    joints = {row.id: joint for joint, row in described.joints.items() if row.id is not None}
    if missing := [joint for joint, row in described.joints.items() if row.id is None]:
        raise UserError(
            f"{described.path.name}: joints.{missing[0]}.id is missing: add the id of its servo"
        )
    wait = ask or _enter
    port = SerialPort(options.port, options.baud)
    try:
        owner = port.owner()
        if owner is not None or not port.claim():
            who = f"process {owner}" if owner is not None else "another process"
            raise UserError(f"the port is in use by {who}: stop it first")
        latency_s = (
            adapter_latency_s(options.port) if options.latency_s is None else options.latency_s
        )
        bus = Bus(port, options.baud, latency_s=latency_s)

        def read_ticks() -> dict[int, int]:
            """Return each servo's position in ticks. Raises UserError if one does not answer."""
            positions = dict(zip(joints, Ranges(bus, list(joints)).update().tolist(), strict=True))
            for id_, ticks in positions.items():
                _require_answer(ticks == SILENT, id_)
            return positions

        read_ticks()
        wait("Torque will be switched off. Hold the arm, then press Enter", lambda: None)
        for id_ in joints:
            _require_answer(bus.write(id_, table.TORQUE_ENABLE.address, b"\0").code, id_)
            set_position_mode(bus, id_)
        wait(
            "Turn each joint a little in the positive direction of the model. Then press Enter",
            lambda: None,
        )
        turned = read_ticks()
        wait("Move every joint to its zero. Then press Enter", lambda: None)
        for id_, ticks in read_ticks().items():
            # A servo counts modulo one turn: take the shorter of the two directions.
            moved = (turned[id_] - ticks + table.CENTER) % table.TICKS - table.CENTER
            if abs(moved) < MIN_TICKS:
                raise UserError(
                    f"joint {joints[id_]} was not turned in its positive direction before it was "
                    "moved to its zero: start again"
                )
            set_direction(bus, id_, moved)
            set_zero(bus, id_)
        ranges = Ranges(bus, list(joints))
        wait("Move every joint to both ends of its range. Then press Enter", ranges.update)
        for joint, low, high in zip(joints.values(), ranges.low, ranges.high, strict=True):
            if high - low < MIN_TICKS:
                raise UserError(
                    f"joint {joint} was not moved to both ends of its range: start again"
                )
        servos = {
            joint: read_back(bus, id_, int(low), int(high))
            for (id_, joint), low, high in zip(joints.items(), ranges.low, ranges.high, strict=True)
        }
        for servo in servos.values():
            write_limits(bus, servo)
    finally:
        port.close()
    path = calibration_file(described, options)
    save(path, servos)
    # Every joint has a new zero, so no joint must be confirmed any more.
    path.with_suffix(".unconfirmed.json").unlink(missing_ok=True)
    return str(path)


def _require_answer(code: int, id_: int) -> None:
    if code:
        raise UserError(f"servo {id_} does not answer: check its power, id and baud rate")


def _enter(sentence: str, meanwhile: Callable[[], Any]) -> None:
    """Show a sentence, and then the results of `meanwhile` until the operator presses Enter."""
    print(sentence, flush=True)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        if (status := meanwhile()) is not None:
            print(f"\r\x1b[2K{status}", end="", flush=True)
    if not sys.stdin.readline():
        raise UserError("calibration needs an operator: run it at a terminal")

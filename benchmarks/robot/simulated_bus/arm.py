"""Simulated servos of a robot, created from its file."""

import random

import numpy as np

from benchmarks.robot.simulated_bus.line import Line, Log
from benchmarks.robot.simulated_bus.servo import SimulatedServo
from real_robot.robots.config import RobotDescription
from real_robot.robots.dynamixel import table as t
from real_robot.robots.dynamixel.calibration import MAX_HOMING, Servo, ticks
from real_robot.robots.physics import Physics

MARGIN = 30  # ticks by which the position limits in the servos exceed the robot's limits


def build(
    described: RobotDescription,
    *,
    baud: int = 1_000_000,
    latency_s: float = 1e-3,
    seed: int = 0,
    calibrated: bool = True,
    stand: bool = True,
    model: str = "XM430-W350",
    log: Log | None = None,
) -> Line:
    """Create the robot's servos on a bus.

    Each servo is mounted at a random angle, and every second one counts in the reverse direction.
    calibrated: True: the servos contain the values that a calibration writes. stand: see `Physics`.
    """
    physics = Physics(described.model, described.spec.joints, stand=stand)
    chance = random.Random(seed)
    kind = next(each for each in t.MODELS.values() if each.name == model)
    servos = []
    for index, row in enumerate(described.joints.values()):
        direction = -1 if index % 2 else 1
        servo = SimulatedServo(
            row.id if row.id is not None else index + 1,
            index,
            physics,
            model=kind,
            mounting_ticks=chance.randrange(-MAX_HOMING // 2, MAX_HOMING // 2),
            direction=direction,
        )
        if calibrated:
            _set(servo, t.RETURN_DELAY, 0)
            _set(servo, t.DRIVE_MODE, t.REVERSE if direction < 0 else 0)
            _set(servo, t.HOMING_OFFSET, -direction * servo.mounting_ticks)
            low, high = (ticks(float(np.nan_to_num(angle))) for angle in row.position)
            _set(servo, t.MIN_POSITION, max(low - MARGIN, 0))
            _set(servo, t.MAX_POSITION, min(high + MARGIN, t.TICKS - 1))
        servos.append(servo)
    return Line(servos, physics, baud=baud, latency_s=latency_s, seed=seed, log=log)


def calibration(line: Line, described: RobotDescription) -> dict[str, Servo]:
    """Return the calibration of the arm's servos."""
    return {
        joint: Servo(
            id=servo.id,
            drive_mode=servo.get(t.DRIVE_MODE),
            homing_offset=servo.get(t.HOMING_OFFSET),
            range_min=servo.get(t.MIN_POSITION),
            range_max=servo.get(t.MAX_POSITION),
        )
        for joint, servo in zip(described.spec.joints, line.servos, strict=True)
    }


def _set(servo: SimulatedServo, item: t.Item, value: int) -> None:
    error = servo.write(item.address, item.pack(value))
    if error:
        raise ValueError(f"servo {servo.id} refuses {value} for register {item.address}")

"""Tabletop arm on a simulated line with a simulated clock. No test here sleeps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.robot.simulated_bus import arm
from benchmarks.robot.simulated_bus.line import Faults, Line
from benchmarks.robot.simulated_bus.port import SteppedPort
from real_robot.robot import Command, Reading, Sent
from real_robot.robots.config import RobotDescription, describe
from real_robot.robots.dynamixel.bus import Bus
from real_robot.robots.dynamixel.robot import DynamixelRobot

START_NS = 1_000_000_000_000


class Rig:
    """Simulated line, its port, and a robot that a test connects."""

    def __init__(self, described: RobotDescription, **options: Any) -> None:
        watchdog_s = options.pop("watchdog_s", 0.0)
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.line: Line = arm.build(
            described, log=lambda *event: self.events.append(event), **options
        )
        self.port = SteppedPort(self.line, START_NS)
        self.robot = DynamixelRobot(
            described.spec,
            arm.calibration(self.line, described),
            lambda: self.port,
            baud=1_000_000,
            watchdog_s=watchdog_s,
        )
        self.ticks = 0

    @property
    def bus(self) -> Bus:
        return Bus(self.port, 1_000_000)

    def faults(self, **faults: Any) -> None:
        self.line.faults = Faults(**faults)

    def event(self, kind: str, **what: Any) -> None:
        self.line.event(kind, what, self.port.now_ns())

    def armed(self) -> Reading:
        self.robot.connect()
        return self.robot.arm()

    def wait(self, seconds: float) -> None:
        self.port.sleep_until(self.port.now_ns() + round(seconds * 1e9))

    def tick(self, q: np.ndarray, period_s: float = 0.01) -> tuple[Reading, Sent]:
        """Read, command, and wait for the rest of the period."""
        start, self.ticks = self.port.now_ns(), self.ticks + 1
        reading = self.robot.read()
        sent = self.robot.command(Command(self.ticks, start, q))
        self.port.sleep_until(start + round(period_s * 1e9))
        return reading, sent

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [what for _, name, what in self.events if name == kind]


@pytest.fixture(scope="session")
def desk() -> RobotDescription:
    return describe("desk")


@pytest.fixture
def make_rig(desk: RobotDescription) -> Callable[..., Rig]:
    return lambda **options: Rig(desk, **options)


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()

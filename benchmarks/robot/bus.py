"""Benchmark of the servo bus alone: faults at random times, and durations of transactions.

    python -m benchmarks.robot bus [repeats=50] [transactions=2000]

Faults are injected into the simulated bus of the tabletop arm, on a simulated clock, while the arm
follows a path at 100 Hz. The results are the time until a reading shows the fault, the bound of
this time, and the number of goals outside the limits that the servos accepted. The duration of
transactions is measured on a pseudo-terminal in real time. This project's client alternates with
the vendor's (dynamixel-sdk, if it is installed).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from benchmarks.robot.simulated_bus import arm
from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from benchmarks.robot.simulated_bus.line import Faults
from benchmarks.robot.simulated_bus.port import SteppedPort
from offline_rl.utils.hardware import describe_machine
from real_robot.robot import Code, Command, Reading, Status
from real_robot.robots.config import describe
from real_robot.robots.dynamixel import table as registers
from real_robot.robots.dynamixel.bus import Bus, SerialPort
from real_robot.robots.dynamixel.robot import SIZE, DynamixelRobot

PERIOD_S, WATCHDOG_S = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `bus`."""

    repeats: int = 50  # repeats of each fault
    transactions: int = 2000  # number of transactions per client


class Run:
    """Run of the arm along its path until a fault is detected."""

    def __init__(self, seed: int) -> None:
        described = describe("desk")
        self.arrived: list[tuple[int, str, dict[str, Any]]] = []
        self.line = arm.build(described, seed=seed, log=lambda *e: self.arrived.append(e))
        self.port = SteppedPort(self.line, 10**12)
        servos = arm.calibration(self.line, described)
        self.robot = DynamixelRobot(
            described.spec, servos, lambda: self.port, baud=1_000_000, watchdog_s=WATCHDOG_S
        )
        self.robot.connect()
        self.start, self.k = self.robot.arm().q, 0
        self.injected_ns = self._next_ns = 0

    def tick(self) -> Reading:
        self.port.sleep_until(self._next_ns)
        start, self.k = self.port.now_ns(), self.k + 1
        reading = self.robot.read()
        goal = self.start + 0.25 * np.sin(0.02 * self.k * np.arange(1, 6))
        self.robot.command(Command(self.k, start, goal))
        self._next_ns = start + round(PERIOD_S * 1e9)
        return reading

    def inject(self, share: float, fault: Callable[[Run], None]) -> None:
        """Inject a fault. share: when, as a fraction of the time that remains in the period."""
        remaining_ns = self._next_ns - self.port.now_ns()
        self.port.sleep_until(self.port.now_ns() + round(share * remaining_ns))
        self.injected_ns = self.port.now_ns()
        fault(self)

    def count_outside(self) -> int:
        """Return the number of accepted goals outside the limits."""
        limits = self.robot.spec.limits
        goals = [what for _, kind, what in self.arrived if kind == "goals"]
        ticks = np.array([[row.get(str(k), 2048) for k in range(1, 6)] for row in goals])
        angles = (ticks - registers.CENTER) * registers.RAD
        return int(((angles < limits.position_low) | (angles > limits.position_high)).sum())


def event(kind: str, **what: Any) -> Callable[[Run], None]:
    return lambda run: run.line.event(kind, what, run.port.now_ns())


def set_faults(**values: Any) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        run.line.faults = Faults(**values)

    return inject


def has_status(bits: int) -> Callable[[Reading], bool]:
    return lambda reading: bool((reading.status & bits).any())


def has_jumped(reading: Reading) -> bool:
    return bool(abs(reading.q).max() > np.pi)


# row of the failure matrix -> (name, function that injects the fault at servo i, function that
# detects it in a reading, bound in s)
ROWS: dict[str, tuple[str, Callable[[int], Callable[[Run], None]], Callable[..., bool], float]] = {
    "8": (
        "measurements stand still",
        lambda i: set_faults(frozen=(i,)),
        has_status(Status.MISSING),
        0.05 + PERIOD_S,
    ),
    "9": (
        "servo missing",
        lambda i: set_faults(missing=(i,)),
        has_status(Status.MISSING),
        0.01 + PERIOD_S,
    ),
    "12": (
        "answer late by 16 to 60 ms",
        lambda i: event("late_once", seconds=0.005 + 0.011 * i),
        lambda reading: reading.code is Code.TIMEOUT,
        0.01 + PERIOD_S,
    ),
    "13": (
        "unplugged",
        lambda i: set_faults(unplugged=True),
        lambda reading: reading.code is Code.LOST,
        2 * PERIOD_S,
    ),
    "14a": (
        "servo reboots",
        lambda i: event("reboot", id=i),
        has_status(Status.MISSING | Status.TORQUE_OFF),
        0.1,
    ),
    "14b": (
        "torque drops",
        lambda i: event("torque_off", id=i),
        has_status(Status.TORQUE_OFF),
        0.1,
    ),
    "15": (
        "hardware error",
        lambda i: event("fail", id=i, bits=0x20),
        has_status(Status.OVERLOAD),
        0.01 + PERIOD_S,
    ),
    "16": ("turn jumps by 4096", lambda i: set_faults(wrap={i: 4096}), has_jumped, 0.01 + PERIOD_S),
}


def matrix(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for number, (name, fault, detected, bound_s) in ROWS.items():
        chance = np.random.default_rng(int.from_bytes(number.encode(), "little"))
        delays, outside = [], 0
        for repeat in range(repeats):
            run = Run(repeat)
            for _ in range(chance.integers(1, 60)):
                run.tick()
            run.inject(chance.uniform(), fault(int(chance.integers(1, 6))))
            while not detected(reading := run.tick()):
                if reading.end_ns - run.injected_ns > 1e9:
                    break
            delays.append((reading.end_ns - run.injected_ns) * 1e-9)
            outside += run.count_outside()
        rows.append(_row(number, name, delays, bound_s, outside))
    rows.append(silence(repeats))
    return rows


def silence(repeats: int) -> dict[str, Any]:
    """Measure row 20: the time from the host's last packet until all servos have stopped."""
    chance, delays, outside = np.random.default_rng(20), [], 0
    for repeat in range(repeats):
        run = Run(repeat)
        for _ in range(chance.integers(1, 60)):
            run.tick()
        last = run.port.now_ns()  # time of the last command
        run.port.sleep_until(last + 500_000_000)
        fired_ns = [at for at, kind, _ in run.arrived if kind == "watchdog"]
        delays.append((max(fired_ns) - last) * 1e-9 if len(fired_ns) == 5 else np.inf)
        outside += run.count_outside()
    return _row("20", "host silent: the servos' own watchdogs", delays, WATCHDOG_S + 0.02, outside)


def _row(
    number: str, name: str, delays: list[float], bound_s: float, outside: int
) -> dict[str, Any]:
    return {
        "row": number,
        "fault": name,
        "repeats": len(delays),
        "median_ms": round(1e3 * float(np.median(delays)), 2),
        "max_ms": round(1e3 * max(delays), 2),
        "bound_ms": round(1e3 * bound_s, 2),
        "late": sum(delay > bound_s for delay in delays),
        "goals_outside_limits": outside,
    }


def loss(repeats: int) -> list[dict[str, Any]]:
    """Measure rows 10 and 11: readings that fail despite the retries within a tick."""
    rows = []
    for fault in ("drop", "corrupt"):
        for share in (0.02, 0.2):
            run = Run(0)
            run.line.faults = Faults(**{fault: share})
            readings = [run.tick() for _ in range(20 * repeats)]
            failed = sum(reading.code is not Code.OK for reading in readings)
            longest = max(reading.end_ns - reading.request_ns for reading in readings)
            rows.append(
                {
                    "answers": f"{'lost' if fault == 'drop' else 'broken'}, {100 * share:.0f} %",
                    "readings": len(readings),
                    "failed_percent": round(100 * failed / len(readings), 2),
                    "longest_ms": round(longest * 1e-6, 2),
                }
            )
    return rows


def transactions(count: int) -> list[dict[str, Any]]:
    """Measure the duration of a sync read of five servos in ms. The clients alternate.

    This project's client reads 16 bytes per servo, and the position only. The vendor's client reads
    the position only.
    """
    times: dict[str, list[float]] = {}
    with SimulatedHardware("desk") as hardware:
        port = SerialPort(hardware.port, 1_000_000)
        bus, ids = Bus(port, 1_000_000), (1, 2, 3, 4, 5)
        position = registers.PRESENT_POSITION
        calls: dict[str, Callable[[], Any]] = {
            "ours, 16 bytes": lambda: bus.sync_read(ids, 120, SIZE),
            "ours, position": lambda: bus.sync_read(ids, position.address, position.size),
        }
        try:
            import dynamixel_sdk as dxl

            vendor_port = dxl.PortHandler(hardware.port)
            vendor_port.setBaudRate(1_000_000)
            group = dxl.GroupSyncRead(
                vendor_port, dxl.PacketHandler(2.0), position.address, position.size
            )
            for id_ in ids:
                group.addParam(id_)
            calls[f"dynamixel-sdk {metadata.version('dynamixel-sdk')}, position"] = group.txRxPacket
        except ImportError:
            print("dynamixel-sdk is not installed: only this project's client is measured")
        for name, call in calls.items():
            for _ in range(20):
                call()
            times[name] = []
        for _ in range(count // 20):
            for name, call in calls.items():
                for _ in range(20):
                    start, cpu = time.perf_counter(), time.process_time()
                    call()
                    times[name].append(1e3 * (time.perf_counter() - start))
                    times.setdefault(f"{name}, CPU", []).append(1e3 * (time.process_time() - cpu))
        port.close()
    return [
        {
            "client": name,
            "median_ms": round(float(np.median(durations)), 3),
            "p99_ms": round(float(np.percentile(durations, 99)), 3),
            "max_ms": round(max(durations), 3),
            "cpu_ms": round(float(np.mean(times[f"{name}, CPU"])), 3),
        }
        for name, durations in times.items()
        if not name.endswith(", CPU")
    ]


def measure(options: Options) -> dict[str, Any]:
    return {
        "transactions": transactions(options.transactions),
        "load": round(os.getloadavg()[0], 1),  # of the last minute of timing
        "matrix": matrix(options.repeats),
        "loss": loss(options.repeats),
        "machine": describe_machine(),
    }

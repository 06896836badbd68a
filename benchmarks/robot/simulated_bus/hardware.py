"""Simulated hardware for tests and benchmarks: a server process, its port and its faults.

    with SimulatedHardware("desk") as hardware:
        robot = make("desk", **hardware.robot_options)

The control file is one JSON object that is always replaced completely. `faults` has fields of
`line.Faults`; they apply until the file changes. `events` is a list of [number, kind, arguments]
for `Line.event`. Each event is executed once, in the order of the numbers.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from real_robot.control.rings import Reader, Ring
from real_robot.control.session import new_folder

CHANNELS = {"target": "target", "puck": "puck"}  # channel -> body that the tracker measures
START_S = 30.0  # maximum time until the process has started; it imports MuJoCo


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the server."""

    robot: str  # name in configs/robot, or path of a robot's file
    folder: str  # folder of the port, the rings and the control file
    baud: int = 1_000_000  # simulated baud rate; the pseudo-terminal itself has none
    latency_s: float = 1e-3  # latency of the USB adapter
    seed: int = 0
    calibrated: bool = True  # True: the servos contain the values that a calibration writes
    tracker_noise_m: float = 0.0005  # standard deviation of the tracker's noise


def truth(joints: int) -> np.dtype:
    """Return the record type of the true state. Tests and benchmarks read it; robots must not."""
    rows = [(name, "<f8", (joints,)) for name in ("q", "dq", "torque")]
    places = [(name, "<f8", (3,)) for name in ("tip", "puck")]
    return np.dtype([("time_ns", "<i8"), ("simulated_ns", "<i8"), *rows, *places])


class SimulatedHardware:
    """Server process with simulated hardware.

    options: fields of `Options`. folder: folder to use, which is not deleted; default: a temporary
    one. Raises UserError.
    """

    def __init__(self, robot: str, *, folder: Path | None = None, **options: Any) -> None:
        self._temporary = folder is None
        self.folder = Path(new_folder()) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._faults: dict[str, Any] = {}
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        arguments = {"robot": robot, "folder": self.folder, **options}
        command = [sys.executable, "-m", "benchmarks.robot.simulated_bus.server"]
        self._process = subprocess.Popen(
            [*command, *(f"{k}={v}" for k, v in arguments.items())],
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + START_S
        while not (self.folder / "port").is_symlink():
            if self._process.poll() is not None or time.monotonic() > end:
                self._process.kill()
                output = self._process.communicate()[1].strip()
                self.close()
                raise UserError(f"the simulated hardware did not start: {output[-500:]}")
            time.sleep(0.005)
        self._truth = Reader(Ring.open(self.folder / "truth"))

    @property
    def port(self) -> str:
        return str(self.folder / "port")

    @property
    def robot_options(self) -> dict[str, Any]:
        """Options for `robots.make.make` that connect a robot to this hardware."""
        names = {"port": "port", "calibration": "calibration.json", "tracker": "tracker"}
        return {key: str(self.folder / name) for key, name in names.items()}

    @property
    def pid(self) -> int:
        return self._process.pid

    def faults(self, **faults: Any) -> None:
        """Replace all faults by these, which are fields of `line.Faults`."""
        self._faults = faults
        self._write_control()

    def event(self, kind: str, **what: Any) -> None:
        """Trigger an event once. `Line.event` lists the kinds."""
        self._events.append((len(self._events) + 1, kind, what))
        self._write_control()

    def _write_control(self) -> None:
        """Write the control file. The server reads it within 20 ms."""
        control = {"faults": self._faults, "events": self._events[-50:]}
        write_text(self.folder / "control.json", json.dumps(control))

    def truth(self) -> np.ndarray:
        """Return the newest true state; valid until the next call."""
        self._truth.newest()
        return self._truth.record

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return all events so far, or all events of one kind. `t_ns` is monotonic time."""
        with (self.folder / "events.jsonl").open() as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]
        return [row for row in rows if kind is None or row["kind"] == kind]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, 9)
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "SimulatedHardware":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

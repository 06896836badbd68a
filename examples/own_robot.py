"""Adapter for your own robot. This example simulates two joints with a file of six numbers.

offline-rl robot check robot=examples/own_robot.yaml
offline-rl robot run robot=examples/own_robot.yaml bundle=<bundle>

The control loop and the watchdog are separate processes, each with an instance of this class.
Replace the file with your robot's driver. `real_robot/robot.py` states what each method must do.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from real_robot.robot import Code, Command, Reading, Sent, Status


class Arm:
    """Two joints with ideal motors. Rows of the file: positions, goals, and torque (0 or 1)."""

    def __init__(self, described, port: str = "") -> None:  # must not open the port
        self.spec = described.spec
        self.path = Path(port or Path(tempfile.gettempdir()) / "own_robot.npy")
        self.seq, self.armed = 0, False

    def connect(self) -> None:
        if not self.path.exists():
            np.save(self.path, np.zeros((3, len(self.spec.joints))))

    def arm(self) -> Reading:
        state = np.load(self.path)
        self._write(state[0], state[0], 1.0)  # goals at the measured positions, torque on
        self.armed = True
        return self.read()

    def read(self) -> Reading:
        start = time.monotonic_ns()
        try:
            q, goal, torque = np.load(self.path)
        except (OSError, ValueError, EOFError):  # must not raise while the robot is armed
            q = goal = torque = np.zeros(len(self.spec.joints))
            return self._reading(Code.LOST, start, q, q, torque)
        return self._reading(Code.OK, start, np.where(torque > 0, goal, q), 0 * q, torque)

    def command(self, command: Command) -> Sent:
        self._write(command.q, command.q, 1.0)
        return Sent(Code.OK, time.monotonic_ns(), command.q.copy())

    def hold(self, reason: str) -> list[str]:
        state = np.load(self.path)
        self._write(state[0], state[0], 1.0)
        return []  # the joints whose goal could not be set

    def disarm(self) -> None:
        state = np.load(self.path)
        self._write(state[0], state[0], 0.0)
        self.armed = False

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, q: np.ndarray, goal: np.ndarray, torque: float) -> None:
        """Replace the file at once, so that no process reads half of it."""
        new = self.path.with_suffix(".new.npy")
        np.save(new, np.stack([q, goal, np.full(len(q), torque)]))
        new.replace(self.path)

    def _reading(self, code, start, q, dq, torque) -> Reading:
        self.seq += code is Code.OK
        end = time.monotonic_ns()
        lost = self.armed & (torque == 0)
        status = np.where(lost, int(Status.TORQUE_OFF), 0)
        none = np.full(len(q), np.nan)  # no current is measured
        return Reading(code, self.seq, start, (start + end) // 2, end, q, dq, none, status)

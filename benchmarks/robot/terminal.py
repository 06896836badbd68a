"""Simulated operator at the terminal of `offline-rl robot run`, with simulated hardware.

The command runs in a pseudo-terminal and starts all processes of a run. Operator commands are typed
into the pseudo-terminal. The run is observed through three sources: the loop's rows in shared
memory, the process ids, and the hardware's log.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.safety.states import State

MAIN = "import sys; from offline_rl.cli.main import main; sys.exit(main(sys.argv[1:]))"
MODULES = {
    "control": "real_robot.control.control",
    "watchdog": "real_robot.control.watchdog",
    "inference": "real_robot.control.inference",
    "writer": "real_robot.recording.writer",
}
START_S, END_S = 60.0, 15.0


def command(*words: str) -> list[str]:
    """Return the command line of `offline-rl` with these arguments."""
    return [sys.executable, "-c", MAIN, *words]


class RunEnded(RuntimeError):
    """Raised if the run has ended and reads no more input."""


class Run:
    """Run in a pseudo-terminal. The robot is armed and holds when the constructor returns.

    options: options of `offline-rl robot run`. Raises RuntimeError with the terminal's output if
    the robot cannot be armed.
    """

    def __init__(self, hardware: SimulatedHardware, **options: Any) -> None:
        words = [f"{k}={v}" for k, v in (hardware.robot_options | options).items()]
        self._expected = {*MODULES} if "record" in options else {*MODULES} - {"writer"}
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command("robot", "run", "robot=desk", *words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.pids = {"console": self.process.pid}
        try:
            self.wait(self._find, START_S)
            self.shared = SharedValues(self.folder / "shared_values")
            self.wait(lambda: self.shared["control_beat"] > 0, START_S)
            self.ring = Ring.open(self.folder / "ticks")
            self._rows = Reader(self.ring)
            self.wait(lambda: self.state is State.HOLD, START_S)
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        while True:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the terminal is closed
                return
            if not data:
                return
            self.output = (self.output + data.decode(errors="replace"))[-4000:]

    def _find(self) -> bool:
        """Find the child processes and their folder. Return True once all exist."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in map(int, path.read_text().split()):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):  # the process has already ended
                continue
            for name, module in MODULES.items():
                if module in line:
                    self.pids[name] = pid
                    self.folder = Path(line[line.index(module) + 1])
        return self._expected <= set(self.pids)

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done()`. Raises RunEnded if the run ends, RuntimeError on a timeout."""
        end = time.monotonic() + seconds
        while not done():
            if (ended := self.process.poll() is not None) or time.monotonic() > end:
                kind = RunEnded if ended else RuntimeError
                raise kind(f"the run did not continue. Its terminal shows: {self.output}")
            time.sleep(0.002)

    @property
    def row(self) -> np.ndarray:
        """Newest row; valid until the next access."""
        self._rows.newest()
        return self._rows.record

    @property
    def state(self) -> State:
        return State(int(self.row["state"]))

    def type(self, text: str) -> int:
        """Type `text`. Return the monotonic time in ns."""
        now = time.monotonic_ns()
        os.write(self._master, text.encode())
        return now

    def command(self, word: str, state: State, seconds: float = 5.0) -> None:
        """Type a command and wait for a state."""
        self.type(f"{word}\n")
        self.wait(lambda: self.state is state, seconds)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process. Return the monotonic time in ns."""
        now = time.monotonic_ns()
        os.kill(self.pids[name], how)
        return now

    def resume(self, name: str) -> None:
        """Resume a stopped process, so that it can end."""
        if name == "console" or self._is_alive(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[name], signal.SIGCONT)

    def close(self) -> None:
        """Quit the run. Kill processes that do not end in time."""
        if self.process.poll() is None:
            self.type("quit\n")
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for name in MODULES:
            if self._is_alive(name):
                os.kill(self.pids[name], signal.SIGKILL)
        self._listener.join(END_S)
        os.close(self._master)
        self.process.wait()

    def _is_alive(self, name: str) -> bool:
        line = Path(f"/proc/{self.pids.get(name, 0)}/cmdline")
        return line.exists() and MODULES[name] in line.read_bytes().decode().split("\0")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

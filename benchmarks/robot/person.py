"""A person at the terminal of `offline-rl robot run`, beside the simulated hardware's desk.

All processes of a run, started by its own command in a pseudo-terminal, with words typed as a
person types them. What is looked at from outside: the loop's rows in shared memory, the processes'
numbers, and the hardware's own log.
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
from real_robot.control.rings import Reader, Ring, Words
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
    """`offline-rl` with these words."""
    return [sys.executable, "-c", MAIN, *words]


class RunEnded(RuntimeError):
    """Nobody is there any more to hear what is typed."""


class Run:
    """options: of `offline-rl robot run`. It holds, armed, when the constructor returns.

    Raises RuntimeError with what the terminal said where it does not come to that.
    """

    def __init__(self, hardware: SimulatedHardware, **options: Any) -> None:
        words = [f"{k}={v}" for k, v in (hardware.line | options).items()]
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
        self.said = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.pids = {"console": self.process.pid}
        try:
            self.wait(self._find, START_S)
            self.words = Words(self.folder / "words")
            self.wait(lambda: self.words["control_beat"] > 0, START_S)
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
            except OSError:  # nobody has the terminal any more
                return
            if not data:
                return
            self.said = (self.said + data.decode(errors="replace"))[-4000:]

    def _find(self) -> bool:
        """The children and their folder, once all of them are there."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in map(int, path.read_text().split()):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):  # it lived for a moment
                continue
            for name, module in MODULES.items():
                if module in line:
                    self.pids[name] = pid
                    self.folder = Path(line[line.index(module) + 1])
        return self._expected <= set(self.pids)

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Raises RunEnded where it has ended, RuntimeError where it is not done by then."""
        end = time.monotonic() + seconds
        while not done():
            if (ended := self.process.poll() is not None) or time.monotonic() > end:
                kind = RunEnded if ended else RuntimeError
                raise kind(f"the run did not go on; its terminal said: {self.said}")
            time.sleep(0.002)

    @property
    def row(self) -> np.ndarray:
        """The newest; valid until the next call."""
        self._rows.newest()
        return self._rows.record

    @property
    def state(self) -> State:
        return State(int(self.row["state"]))

    def type(self, text: str) -> int:
        """Returns when, monotonic ns."""
        now = time.monotonic_ns()
        os.write(self._master, text.encode())
        return now

    def word(self, word: str, state: State, seconds: float = 5.0) -> None:
        """Types it and waits for what it leads to."""
        self.type(f"{word}\n")
        self.wait(lambda: self.state is state, seconds)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> int:
        """Returns when, monotonic ns."""
        now = time.monotonic_ns()
        os.kill(self.pids[name], how)
        return now

    def go_on(self, name: str) -> None:
        """A stopped process would not hear that it is to end."""
        if name == "console" or self._lives(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[name], signal.SIGCONT)

    def close(self) -> None:
        """Quits as a person does; whoever does not end by that is killed."""
        if self.process.poll() is None:
            self.type("quit\n")
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for name in MODULES:
            if self._lives(name):
                os.kill(self.pids[name], signal.SIGKILL)
        self._listener.join(END_S)
        os.close(self._master)
        self.process.wait()

    def _lives(self, name: str) -> bool:
        line = Path(f"/proc/{self.pids.get(name, 0)}/cmdline")
        return line.exists() and MODULES[name] in line.read_bytes().decode().split("\0")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

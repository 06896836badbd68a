"""Terminal of a run: a status line, the space bar as emergency stop, and typed commands.

The space bar, Escape, Ctrl-C, Ctrl-\\ and Ctrl-Z stop the robot immediately, even while a command
is being typed. Commands end with Enter: start, finish, re-arm, arm, limp, confirm=<joint>, quit. A
keyboard does not replace a switch that cuts the power.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from real_robot.control.loop import Request
from real_robot.control.rings import Ring, SharedValues
from real_robot.control.session import put_request
from real_robot.rows import Mode
from real_robot.safety.states import CONFIRM, RE_ARM, Reason, State

ESTOP_KEYS = (" ", "\x1b", "\x03", "\x1c", "\x1a")  # space, Escape, Ctrl-C, Ctrl-\, Ctrl-Z
QUIT_KEY = "\x04"  # Ctrl-D
ESTOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
QUIT_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
COMMANDS = ("start", "finish", "arm", "limp")
POLL_S = 0.01
LINE_S = 0.2  # time between two status lines
RE_ARM_AFTER_S = 0.1  # time for the loop to process the released emergency stop


@contextlib.contextmanager
def keys(stream: TextIO) -> Iterator[int | None]:
    """Switch a terminal to unbuffered input. Yield its descriptor; None if it is no terminal.

    In this mode no key sends a signal, and no key stops the terminal's output.
    """
    if not stream.isatty():
        yield None
        return
    handle = stream.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        now = termios.tcgetattr(handle)
        now[0] &= ~termios.IXON
        now[3] &= ~termios.ISIG
        termios.tcsetattr(handle, termios.TCSANOW, now)
        yield handle
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(handle, termios.TCSANOW, before)


class Console:
    """Console of a run. It converts keys to requests, and rows to a status line."""

    def __init__(
        self,
        shared: SharedValues,
        requests: Ring,
        joints: Sequence[str] = (),
        no_plan: Path | None = None,
    ) -> None:
        """Create a console. no_plan: path of the file with the reason why the plan ran out."""
        self._shared, self._requests, self._joints = shared, requests, joints
        self._no_plan = no_plan
        self.typed = ""
        self.quit = self._gone = False
        self.message = ""  # response to the last command
        self.lost = 0  # number of damaged rows in shared memory

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals in the context: kill -INT, a closed terminal, and kill."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return
        handled = (*ESTOP_SIGNALS, *QUIT_SIGNALS)
        before = {each: signal.signal(each, self._handle_signal) for each in handled}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _handle_signal(self, number: int, frame: object) -> None:
        if number in ESTOP_SIGNALS:
            self._stop()
        else:
            self.quit = True

    def _stop(self) -> None:
        self._shared["estop"] += 1
        self.typed, self.message = "", "EMERGENCY STOP; type quit to end"

    def feed(self, characters: str) -> None:
        """Process characters from the keyboard."""
        for character in characters:
            if character in ESTOP_KEYS:
                self._stop()
            elif character == QUIT_KEY:
                self.quit = True
            elif character in "\r\n":
                self._execute(self.typed.strip())
                self.typed = ""
            elif character in "\x7f\b":
                self.typed = self.typed[:-1]
            else:
                self.typed += character

    def _execute(self, command: str) -> None:
        if self.quit:
            return  # while a run ends, only the emergency stop works
        if command == "quit":
            self.quit = True
        elif command == RE_ARM:
            self._shared["estop_released"] = self._shared["estop_seen"]
            time.sleep(RE_ARM_AFTER_S)
            put_request(self._requests, Request(typed=command))
        elif command.startswith(CONFIRM):
            put_request(self._requests, Request(confirm=command.removeprefix(CONFIRM)))
        elif command in COMMANDS:
            request: dict[str, Any] = {command: True}
            put_request(self._requests, Request(**request))
        elif command:
            commands = ", ".join((*COMMANDS, RE_ARM, f"{CONFIRM}<joint>", "quit"))
            self.message = (
                f"unknown command {command!r}. Commands: {commands}. Space is the emergency stop"
            )
            return
        self.message = ""

    def wait(self, handle: int | None) -> None:
        """Wait up to 10 ms for keys and process them. A closed terminal acts as `quit`."""
        self._shared["console_beat"] += 1
        if handle is None or self._gone:
            time.sleep(POLL_S)
        elif select.select([handle], [], [], POLL_S)[0]:
            try:
                typed = os.read(handle, 64)
            except OSError:
                typed = b""  # a closed terminal also returns no bytes
            self._gone = not typed
            self.quit = self.quit or self._gone
            self.feed(typed.decode(errors="ignore"))

    def line(self, row: np.ndarray, rate_hz: float, silent_s: float = 0.0) -> str:
        """Return the status line: state, rate, missed deadlines and messages.

        silent_s: time since control's last row; above 0, the line says that the state is stale.
        """
        state = State(int(row["state"]))
        if silent_s:
            return f"STALE: no state from control for {silent_s:.1f} s; the last was {state.name}"
        parts = [f"{state.name:9s}", f"{rate_hz:6.1f} Hz", f"missed {int(row['missed'])}"]
        if int(row["mode"]) == Mode.POLICY:
            parts.append(f"inference {int(row['inference_ns']) * 1e-6:.0f} ms")
        if row["clips"].any():
            parts.append("at a limit")
        if int(row["latched"]) >= 0:
            parts.append(f"{self.stop_reason(row)}; type {RE_ARM}")
        if self.lost:
            parts.append(f"{self.lost} rows damaged in shared memory")
        if self._shared["starting"]:
            parts.append("motion starts with the first plan")
        if self.message:
            parts.append(self.message)
        if self.typed:
            parts.append(f"> {self.typed}")
        return " | ".join(parts)

    def log_line(self, row: np.ndarray) -> str:
        """Return the state as a line for a log. The line changes only if the state changes."""
        parts = [State(int(row["state"])).name]
        parts += [self.stop_reason(row)] if int(row["latched"]) >= 0 else []
        parts += [self.message] if self.message else []
        return " | ".join(parts)

    def stop_reason(self, row: np.ndarray) -> str:
        """Return the reason why the robot stopped. row: a row whose `latched` is set."""
        bits, reason = int(row["culprits"]), Reason(int(row["latched"]))
        text = reason.describe([joint for i, joint in enumerate(self._joints) if bits >> i & 1])
        if reason is Reason.PLAN_EXHAUSTED and self._no_plan is not None:
            with contextlib.suppress(OSError):  # control may not have written the file yet
                text = f"{text} ({self._no_plan.read_text()})"
        return text


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line. It is dropped if the output is blocked: waiting would stop the robot."""
    stream = sys.stdout if stream is None else stream
    with contextlib.suppress(OSError):
        handle = stream.fileno()
        stream.flush()
        blocks = os.get_blocking(handle)
        os.set_blocking(handle, False)
        try:
            os.write(handle, f"{line}\n".encode())
        finally:
            os.set_blocking(handle, blocks)


def show_line(line: str, stream: TextIO = sys.stdout) -> None:
    """Replace the last line of a terminal. The line is dropped if the terminal is blocked."""
    if not stream.isatty():
        return
    handle = stream.fileno()
    with contextlib.suppress(OSError):  # the terminal accepts no output, or is gone
        os.set_blocking(handle, False)
        try:
            os.write(handle, f"\r\x1b[2K{line}".encode())
        finally:
            os.set_blocking(handle, True)

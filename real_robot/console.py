"""The terminal of a run: one line of state, the space bar as emergency stop, words for the rest.

The space bar stops at once, whatever is being typed, and so do Escape and what ends or suspends
other programs: Ctrl-C, Ctrl-\\, Ctrl-Z. Words end with Enter: start, finish, re-arm, arm, limp,
confirm=<joint>, quit. A keyboard is no substitute for a switch that cuts the power.
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

from real_robot.control.loop import Wish
from real_robot.control.rings import Ring, Words
from real_robot.control.session import put_wish
from real_robot.rows import Mode
from real_robot.safety.states import CONFIRM, RE_ARM, Reason, State

ESTOP_KEYS = (" ", "\x1b", "\x03", "\x1c", "\x1a")  # and Escape, Ctrl-C, Ctrl-\, Ctrl-Z
QUIT_KEY = "\x04"  # Ctrl-D
ESTOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
QUIT_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
WORDS = ("start", "finish", "arm", "limp")
POLL_S = 0.01
LINE_S = 0.2  # between two lines of state
RE_ARM_AFTER_S = 0.1  # in which the loop sees that the key is up


@contextlib.contextmanager
def keys(stream: TextIO) -> Iterator[int | None]:
    """The terminal's descriptor, each key at once; None where `stream` is no terminal.

    No key makes a signal, and none stops the terminal's output.
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
        with contextlib.suppress(termios.error):  # of a terminal that is gone
            termios.tcsetattr(handle, termios.TCSANOW, before)


class Console:
    """Turns keys into wishes, and rows into a line."""

    def __init__(
        self, words: Words, wishes: Ring, joints: Sequence[str] = (), no_plan: Path | None = None
    ) -> None:
        """no_plan: a file that says why the plan ran out."""
        self._words, self._wishes, self._joints = words, wishes, joints
        self._no_plan = no_plan
        self.typed = ""
        self.quit = self._gone = False
        self.said = ""  # about the last word
        self.lost = 0  # rows that were damaged in shared memory

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Hears what the system says: of Ctrl-C without a terminal, of one that closed, of kill."""
        if threading.current_thread() is not threading.main_thread():
            yield  # another thread hears them
            return
        heard = (*ESTOP_SIGNALS, *QUIT_SIGNALS)
        before = {each: signal.signal(each, self._hear) for each in heard}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, frame: object) -> None:
        if number in ESTOP_SIGNALS:
            self._stop()
        else:
            self.quit = True

    def _stop(self) -> None:
        self._words["estop"] += 1
        self.typed, self.said = "", "EMERGENCY STOP; type quit to end"

    def feed(self, characters: str) -> None:
        """What came from the keyboard."""
        for character in characters:
            if character in ESTOP_KEYS:
                self._stop()
            elif character == QUIT_KEY:
                self.quit = True
            elif character in "\r\n":
                self._word(self.typed.strip())
                self.typed = ""
            elif character in "\x7f\b":
                self.typed = self.typed[:-1]
            else:
                self.typed += character

    def _word(self, word: str) -> None:
        if self.quit:
            return  # while a run ends, nothing but the emergency stop is heard
        if word == "quit":
            self.quit = True
        elif word == RE_ARM:
            self._words["estop_released"] = self._words["estop_seen"]
            time.sleep(RE_ARM_AFTER_S)
            put_wish(self._wishes, Wish(typed=word))
        elif word.startswith(CONFIRM):
            put_wish(self._wishes, Wish(confirm=word.removeprefix(CONFIRM)))
        elif word in WORDS:
            wish: dict[str, Any] = {word: True}
            put_wish(self._wishes, Wish(**wish))
        elif word:
            known = ", ".join((*WORDS, RE_ARM, f"{CONFIRM}<joint>", "quit"))
            self.said = f"{word!r} is no word here; there are {known}; space is the emergency stop"
            return
        self.said = ""

    def wait(self, handle: int | None) -> None:
        """Takes what is typed, for at most 10 ms; a terminal that is gone types `quit`."""
        self._words["console_beat"] += 1
        if handle is None or self._gone:
            time.sleep(POLL_S)
        elif select.select([handle], [], [], POLL_S)[0]:
            try:
                typed = os.read(handle, 64)
            except OSError:
                typed = b""  # as a closed terminal answers too
            self._gone = not typed
            self.quit = self.quit or self._gone
            self.feed(typed.decode(errors="ignore"))

    def line(self, row: np.ndarray, rate_hz: float, silent_s: float = 0.0) -> str:
        """The state, who moves the robot, rates, and what holds it back.

        silent_s: since when control has sent no row; all that is known is that old.
        """
        state = State(int(row["state"]))
        if silent_s:
            return f"STALE: no word from control for {silent_s:.1f} s; it was {state.name}"
        parts = [f"{state.name:9s}", f"{rate_hz:6.1f} Hz", f"missed {int(row['missed'])}"]
        if int(row["mode"]) == Mode.POLICY:
            parts.append(f"inference {int(row['inference_ns']) * 1e-6:.0f} ms")
        if row["clips"].any():
            parts.append("at a limit")
        if int(row["latched"]) >= 0:
            parts.append(f"{self.why(row)}; type {RE_ARM}")
        if self.lost:
            parts.append(f"{self.lost} rows damaged in shared memory")
        if self._words["starting"]:
            parts.append("starts with the first plan")
        if self.said:
            parts.append(self.said)
        if self.typed:
            parts.append(f"> {self.typed}")
        return " | ".join(parts)

    def news(self, row: np.ndarray) -> str:
        """The state in a line that changes only with it, for a log."""
        parts = [State(int(row["state"])).name]
        parts += [self.why(row)] if int(row["latched"]) >= 0 else []
        parts += [self.said] if self.said else []
        return " | ".join(parts)

    def why(self, row: np.ndarray) -> str:
        """Why the robot stopped, with the joints' names. row: one with a latched reason."""
        bits, reason = int(row["culprits"]), Reason(int(row["latched"]))
        text = reason.told([joint for i, joint in enumerate(self._joints) if bits >> i & 1])
        if reason is Reason.PLAN_EXHAUSTED and self._no_plan is not None:
            with contextlib.suppress(OSError):  # control writes it within its tick
                text = f"{text} ({self._no_plan.read_text()})"
        return text


def tell(line: str, stream: TextIO | None = None) -> None:
    """Print a line; dropped if the reader takes none, for who waits here stops the robot."""
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


def show(line: str, stream: TextIO = sys.stdout) -> None:
    """In place of the last one, where `stream` is a terminal; dropped where that takes nothing."""
    if not stream.isatty():
        return
    handle = stream.fileno()
    with contextlib.suppress(OSError):  # it is full, or gone
        os.set_blocking(handle, False)
        try:
            os.write(handle, f"\r\x1b[2K{line}".encode())
        finally:
            os.set_blocking(handle, True)

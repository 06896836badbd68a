"""Signal handling: Ctrl-C and a scheduler's signals stop work immediately or at a safe point."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
COMPILERS = {"g++", "c++", "gcc", "cc", "cc1plus", "cc1", "as", "ld", "collect2", "lto1"}
COMPILERS |= {"clang", "clang++", "nvcc", "cicc", "ptxas"}


@contextmanager
def handle_signals(
    numbers: Sequence[signal.Signals], note: Callable[[int, Any], object]
) -> Iterator[None]:
    """Handle the signals `numbers` within the block by `note(number, frame)`.

    Signals that the process ignores stay ignored; shells set this for background processes.
    Outside the main thread nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers if main}
    handlers = {n: old for n, old in handlers.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C end the block with KeyboardInterrupt, even if a library raises another error."""
    interrupted = False

    def note(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        stop_compilers()
        raise KeyboardInterrupt

    try:
        with handle_signals([signal.SIGINT], note):
            yield
    except BaseException as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise


class Abandoned(KeyboardInterrupt):
    """Raised when a signal interrupts work that can be repeated, such as compilation."""


class StopRequest:
    """A flag that is set when a signal requests the process to stop."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log, self._requested, self._in_abandonable = log, False, False

    def __call__(self) -> bool:
        """Return True once a signal has arrived."""
        return self._requested

    @contextmanager
    def abandon_on_signal(self) -> Iterator[None]:
        """Raise Abandoned in the block at a signal, or immediately if one has arrived before."""
        try:
            self._in_abandonable = True
            if self._requested:
                raise Abandoned
            yield
        except Exception as error:  # for example, the signal also ended a compiler
            if self._requested:
                raise Abandoned from error
            raise
        finally:
            self._in_abandonable = False

    def note(self, number: int, frame: object) -> None:
        """Handle a signal: print what happens next, and raise if the process stops immediately."""
        again, self._requested = self._requested, True
        if again:
            stop_compilers()
            raise KeyboardInterrupt
        if self._in_abandonable:
            self._log("Interrupted. The compilation is abandoned.")
            stop_compilers()
            raise Abandoned
        self._log("Interrupted. A checkpoint is written first. Interrupt again to skip it.")


@contextmanager
def postpone_signals(log: Callable[[str], object]) -> Iterator[StopRequest]:
    """Run the block with a StopRequest; the first signal only sets it, and the block continues.

    The block reads it and stops at a safe point. A second signal ends the block with
    KeyboardInterrupt. log: called with a message for the user.
    """
    request = StopRequest(log)
    with handle_signals(STOP_SIGNALS, request.note):
        yield request


def stop_compilers() -> None:
    """Kill the compilers that this process has started, directly or not (on Linux only).

    Killing only a compiler's driver would leave its child processes, which keep the pipes open.
    """
    parents, names = dict[int, int](), dict[int, str]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # the process has ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            process = int(file.parent.name)
            names[process], parents[process] = name, int(rest.split()[1])

    def is_descendant(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    for process, name in names.items():
        if name in COMPILERS and is_descendant(process):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)

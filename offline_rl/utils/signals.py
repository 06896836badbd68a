"""Ctrl-C and the end that a scheduler asks for: at once, or when what is under way is safe."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)  # to stop
COMPILERS = {"g++", "c++", "gcc", "cc", "cc1plus", "cc1", "as", "ld", "collect2", "lto1"}
COMPILERS |= {"clang", "clang++", "nvcc", "cicc", "ptxas"}


@contextmanager
def handled(
    numbers: Sequence[signal.Signals], note: Callable[[int, Any], object]
) -> Iterator[None]:
    """Calls `note(number, frame)` for each of `numbers` that comes in the block.

    One that is ignored, as shells arrange it for what runs in the background, stays ignored; in
    another thread than the main one all stay as they are.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if main}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block in KeyboardInterrupt, whatever a library makes of it on the way."""
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        stop_compilers()
        raise KeyboardInterrupt

    try:
        with handled([signal.SIGINT], note):
            yield
    except BaseException as error:
        if came:
            raise KeyboardInterrupt from error
        raise


class Abandoned(KeyboardInterrupt):
    """Work whose result can be made again was cut short by the first signal."""


class StopRequest:
    """Whether the process was asked to stop, and what that interrupts at once."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._came, self._abandons = say, False, False

    def __call__(self) -> bool:
        """Return True once a signal came."""
        return self._came

    @contextmanager
    def abandons(self) -> Iterator[None]:
        """A signal ends the block at once, in Abandoned; so does one that came before."""
        try:
            self._abandons = True
            if self._came:
                raise Abandoned
            yield
        except Exception as error:  # such as that of a compiler which the signal ended, too
            if self._came:
                raise Abandoned from error
            raise
        finally:
            self._abandons = False

    def note(self, number: int, frame: object) -> None:
        """Handle a signal: say what happens, and raise if that is now."""
        again, self._came = self._came, True
        if again:
            stop_compilers()
            raise KeyboardInterrupt
        if self._abandons:
            self._say("interrupted: the compilation is abandoned")
            stop_compilers()
            raise Abandoned
        self._say("interrupted: a checkpoint is written first; once more to leave without it")


@contextmanager
def postponed(say: Callable[[str], object]) -> Iterator[StopRequest]:
    """Let the block go on after a signal, and learn of it from what it is given.

    A second signal ends the block in KeyboardInterrupt. say: is passed what is going to happen.
    """
    request = StopRequest(say)
    with handled(ASKING, request.note):
        yield request


def stop_compilers() -> None:
    """Kill the compilers that this process started, at any depth; on Linux, else nothing.

    A compiler's driver that is killed alone leaves its children behind, which hold its pipes.
    """
    parents, names = dict[int, int](), dict[int, str]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            process = int(file.parent.name)
            names[process], parents[process] = name, int(rest.split()[1])

    def is_ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    for process, name in names.items():
        if name in COMPILERS and is_ours(process):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)

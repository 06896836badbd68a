"""Monotonic clock, absolute deadlines, and real-time priority from the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

CLOCK_MONOTONIC, TIMER_ABSTIME = 1, 1
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
EINTR = 4
PRIORITY = 80


AHEAD_NS = 1_000_000  # a timestamp further in the future comes from another clock


def is_current(time_ns: int, now_ns: int, max_age_ns: float) -> bool:
    """Return True if another process's timestamp is at most `max_age_ns` old, not in the future."""
    return -AHEAD_NS <= now_ns - time_ns <= max_age_ns


class Clock(Protocol):
    """Clock of the control loop. Tests use a clock that they advance themselves."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int:
        """Return the wall-clock time, for logs only: it may jump, so no decision uses it."""

    def suspended_ns(self) -> int:
        """Return the total time that the computer was suspended since boot.

        CLOCK_MONOTONIC does not advance during a suspension.
        """

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep until `deadline_ns`. Return immediately if it has passed."""


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64)]


class MonotonicClock:
    """Clock on CLOCK_MONOTONIC. It sleeps until absolute times, so periods do not drift."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._time = _Timespec()
        self._where = ctypes.byref(self._time)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def suspended_ns(self) -> int:
        # A pause between reading the two clocks would look like a suspension.
        for _ in range(3):
            before = time.monotonic_ns()
            boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            if time.monotonic_ns() - before < AHEAD_NS:
                break
        return boot - before

    def sleep_until(self, deadline_ns: int) -> None:
        self._time.seconds, self._time.nanoseconds = divmod(deadline_ns, 1_000_000_000)
        while (
            self._libc.clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, self._where, None) == EINTR
        ):
            pass


@dataclass(frozen=True)
class Granted:
    """Real-time guarantees that the kernel granted. Without them, ticks may be late."""

    fifo: bool
    locked: bool

    @property
    def text(self) -> str:
        """Return the guarantees in words, for the outcome of a run."""
        how = f"SCHED_FIFO {PRIORITY}" if self.fifo else "ordinary scheduling (no SCHED_FIFO)"
        return f"{how}, memory {'locked' if self.locked else 'not locked'}"


def request_real_time(priority: int = PRIORITY, *, all_memory: bool = False) -> Granted:
    """Request real-time priority and locked memory from the kernel.

    all_memory: lock all memory, including libraries, not only the pages in use. This needs 100 MB
    more. Releasing it takes 10 ms, so a killed process ends 10 ms later.
    """
    fifo, flags = True, MCL_CURRENT | MCL_FUTURE | (0 if all_memory else MCL_ONFAULT)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        fifo = False
    locked = ctypes.CDLL(None).mlockall(flags) == 0
    return Granted(fifo, locked)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the context: a collection takes milliseconds."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()

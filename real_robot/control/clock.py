"""Monotonic time, absolute deadlines, and what the kernel grants a process that must keep them."""

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


AHEAD_NS = 1_000_000  # what is stamped further ahead has another clock


def is_current(time_ns: int, now_ns: int, max_age_ns: float) -> bool:
    """Whether what another process stamped `time_ns` holds now: not too old, nor of the future."""
    return -AHEAD_NS <= now_ns - time_ns <= max_age_ns


class Clock(Protocol):
    """Where the loop has its time from; tests have one that only goes when told."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int:
        """For people: it may jump, and nothing is decided by it."""

    def suspended_ns(self) -> int:
        """For how long the computer was suspended since it started; CLOCK_MONOTONIC stood still."""

    def sleep_until(self, deadline_ns: int) -> None:
        """Returns at `deadline_ns` or later; at once where that has passed."""


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64)]


class MonotonicClock:
    """CLOCK_MONOTONIC; sleeps by `clock_nanosleep` with an absolute time, which does not drift."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._time = _Timespec()
        self._where = ctypes.byref(self._time)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def suspended_ns(self) -> int:
        for _ in range(3):  # a pause between two clocks would be taken for a suspension
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
    """What this process got, which decides how late a tick may be; a run's outcome says so."""

    fifo: bool
    locked: bool

    @property
    def text(self) -> str:
        """In words, for the run's outcome."""
        how = f"SCHED_FIFO {PRIORITY}" if self.fifo else "ordinary scheduling (no SCHED_FIFO)"
        return f"{how}, memory {'locked' if self.locked else 'not locked'}"


def ask_for_real_time(priority: int = PRIORITY, *, whole: bool = False) -> Granted:
    """Real-time priority and locked memory, where the kernel grants them to this process.

    whole: all of the memory, libraries included, not only what is touched. That is 100 MB more and
    takes 10 ms to give back, for which a process that was killed would live on.
    """
    fifo, flags = True, MCL_CURRENT | MCL_FUTURE | (0 if whole else MCL_ONFAULT)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        fifo = False
    locked = ctypes.CDLL(None).mlockall(flags) == 0
    return Granted(fifo, locked)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """No garbage collection, which takes milliseconds; what is there by now is never looked at."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()

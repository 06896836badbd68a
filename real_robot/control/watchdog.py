"""The watchdog process: `python -m real_robot.control.watchdog <session folder>`.

It has the robot's port open beside the control process. Where that one dies or its heartbeat stands
still, it kills it first, since a process that was only stopped would write again when it goes on;
then it lets the line fall silent and tells the robot, once, to hold where it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from real_robot.control.clock import PRIORITY, ask_for_real_time
from real_robot.control.rings import Words
from real_robot.control.session import Session, main_folder, told_as_error
from real_robot.robot import Robot
from real_robot.safety.answers import held

POLL_MS = 2
DEATH_MS = 15  # in which a process that was killed is gone; the robot is held in any case
SILENCE_S = 0.005  # of the line, since the owner wrote last
STALL_NS, STALL_PERIODS = 30_000_000, 3


class Watchdog:
    """Looks after one process at a time: the one that `owner_pid` names."""

    def __init__(self, robot: Robot, words: Words) -> None:
        self._robot, self._words = robot, words
        self._pid, self._handle = 0, -1
        self._poll = select.poll()
        self._reason, self._lives = "", False  # why it fired; whether the owner may still write
        self._missed: Sequence[str] = ()  # joints that did not hear it

    def look(self, now_ns: int) -> str | None:
        """Beats; waits at most 2 ms; why the robot was told to hold now, or None."""
        words = self._words
        words["watchdog_beat"] += 1
        words["watchdog_ns"] = now_ns
        if words["owner_pid"] != self._pid:
            self._adopt(words["owner_pid"])
        if self._handle < 0:
            time.sleep(POLL_MS / 1000)
        # who is named and has no handle was gone before it could be watched
        dead = bool(self._poll.poll(POLL_MS)) if self._handle >= 0 else bool(self._pid)
        if not words["armed"]:
            return None
        if words["watchdog_fired"]:
            return self._again(dead)
        patience = max(STALL_NS, STALL_PERIODS * words["period_ns"])
        stalled = now_ns - words["control_ns"] > patience
        if not dead and not stalled:
            return None
        words["watchdog_fired"] = 1
        self._reason = "the control process died" if dead else "the control process stands still"
        self._lives = not self.fence()
        return self._hold()

    def fence(self) -> bool:
        """Ends the owner and lets the line fall silent; whether the owner was seen to end."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):  # it is gone already
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        begun_ns = time.monotonic_ns()  # from here on it writes nothing more
        ended = self._handle < 0 or bool(self._poll.poll(DEATH_MS))
        time.sleep(max(0.0, SILENCE_S - (time.monotonic_ns() - begun_ns) * 1e-9))
        return ended

    def _hold(self) -> str:
        self._missed = held(self._robot.spec, self._robot.hold, self._reason)
        if not self._missed:
            return self._reason
        return f"{self._reason}; {', '.join(self._missed)} did not answer: see whether it stands"

    def _again(self, dead: bool) -> str | None:
        """After an end that came late, whose last goal may have come after; and who missed it."""
        if dead:
            time.sleep(POLL_MS / 1000)  # which the poll does no more
        if not self._missed and not (self._lives and dead):
            return None
        self._lives &= not dead
        return self._hold()

    def _adopt(self, pid: int) -> None:
        if self._handle >= 0:
            self._poll.unregister(self._handle)
            os.close(self._handle)
        self._pid, self._handle = pid, -1
        if pid:
            try:
                self._handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            self._poll.register(self._handle, select.POLLIN)


def watch(session: Session, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
    """Until everyone is told to end and nobody is armed; goes on watching after it has fired."""
    words = Words(session.path / "words")
    robot = session.make_robot()
    while not words["control_beat"]:  # it has the line to itself while it connects
        if session.ended(words):
            return
        time.sleep(POLL_MS / 1000)
    robot.connect()
    ask_for_real_time(PRIORITY + 1, whole=True)  # before whom it watches, and from no disk
    watchdog, told = Watchdog(robot, words), ""
    try:
        # an armed owner's end may not have been seen yet, where all are told to end because of it
        while not session.ended(words) or (words["armed"] and not words["watchdog_fired"]):
            reason = watchdog.look(now_ns())
            if reason is not None and reason != told:
                told = reason
                (session.path / "watchdog.fired").write_text(told)
    finally:
        robot.close()


def main(arguments: list[str]) -> None:
    session = main_folder(arguments)
    with told_as_error(session, "watchdog"):
        watch(session)


if __name__ == "__main__":
    main(sys.argv)

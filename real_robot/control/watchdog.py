"""The watchdog process: `python -m real_robot.control.watchdog <session folder>`.

The watchdog opens the robot's port in addition to the control process. It acts if control dies or
if control's heartbeat does not change. It then does three things. It kills control, because a
process that was only suspended would write again once it resumes. It waits until the bus is silent.
It commands the robot, once, to hold its position.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

from real_robot.control.clock import PRIORITY, request_real_time
from real_robot.control.rings import SharedValues
from real_robot.control.session import Session, load_session, report_errors
from real_robot.robot import Robot
from real_robot.safety.validation import hold_by_adapter

POLL_MS = 2
# maximum wait until a killed process ends; the watchdog then holds the robot, even if the process
# has not ended
DEATH_MS = 15
SILENCE_S = 0.005  # minimum wait between the kill and the hold, so that the bus is silent
# control has stalled after this time or this number of periods without a tick, whichever is longer
STALL_NS, STALL_PERIODS = 30_000_000, 3


class Watchdog:
    """Watchdog of one process, the owner of the bus. `owner_pid` is the owner's process id."""

    def __init__(self, robot: Robot, shared: SharedValues) -> None:
        self._robot, self._shared = robot, shared
        self._pid, self._handle = 0, -1
        self._poll = select.poll()
        self._reason = ""  # why the watchdog fired
        self._owner_may_write = False  # True: the owner was killed, but its end was not observed
        self._missed: Sequence[str] = ()  # joints that did not answer the hold

    def step(self, now_ns: int) -> str | None:
        """Send a heartbeat and check the owner. Without a fault this takes at most 2 ms.

        Return the reason if this call commanded the robot to hold; otherwise None.
        """
        shared = self._shared
        shared["watchdog_beat"] += 1
        shared["watchdog_ns"] = now_ns
        if shared["owner_pid"] != self._pid:
            self._adopt(shared["owner_pid"])
        if self._handle < 0:
            time.sleep(POLL_MS / 1000)
        # if there is an owner but no handle, the owner ended before it could be watched
        dead = bool(self._poll.poll(POLL_MS)) if self._handle >= 0 else bool(self._pid)
        if not shared["armed"]:
            return None
        if shared["watchdog_fired"]:
            return self._hold_again(dead)
        patience = max(STALL_NS, STALL_PERIODS * shared["period_ns"])
        stalled = now_ns - shared["control_ns"] > patience
        if not dead and not stalled:
            return None
        shared["watchdog_fired"] = 1
        self._reason = "the control process died" if dead else "the control process has stalled"
        self._owner_may_write = not self.fence()
        return self._hold()

    def fence(self) -> bool:
        """Kill the owner and wait until the bus is silent.

        Return True if the owner's end was observed.
        """
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):  # the process has already ended
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        start_ns = time.monotonic_ns()  # the owner writes nothing from now on
        ended = self._handle < 0 or bool(self._poll.poll(DEATH_MS))
        time.sleep(max(0.0, SILENCE_S - (time.monotonic_ns() - start_ns) * 1e-9))
        return ended

    def _hold(self) -> str:
        self._missed = hold_by_adapter(self._robot.spec, self._robot.hold, self._reason)
        if not self._missed:
            return self._reason
        return (
            f"{self._reason}; {', '.join(self._missed)} did not answer: check that it does not move"
        )

    def _hold_again(self, dead: bool) -> str | None:
        """Hold again if joints missed the hold, or if the owner ended only after the first hold."""
        if dead:
            time.sleep(POLL_MS / 1000)  # polling an ended process does not wait
        if not self._missed and not (self._owner_may_write and dead):
            return None
        self._owner_may_write &= not dead
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
    """Watch the control process until the run ends and the robot is not armed.

    The watchdog continues to watch after it has fired.
    """
    shared = SharedValues(session.path / "shared_values")
    robot = session.make_robot()
    while not shared["control_beat"]:  # while control connects, no other process may use the bus
        if session.ended(shared):
            return
        time.sleep(POLL_MS / 1000)
    lock = session.claim_watch()
    robot.connect()
    # a higher priority than control, and all memory locked
    request_real_time(PRIORITY + 1, all_memory=True)
    watchdog, last_reason = Watchdog(robot, shared), ""
    try:
        # The run may end because the owner died while armed. The watchdog must still notice it.
        while not session.ended(shared) or (shared["armed"] and not shared["watchdog_fired"]):
            reason = watchdog.step(now_ns())
            if reason is not None and reason != last_reason:
                last_reason = reason
                (session.path / "watchdog.fired").write_text(last_reason)
    finally:
        robot.close()
        lock.close()


def main(arguments: list[str]) -> None:
    session = load_session(arguments)
    with report_errors(session, "watchdog"):
        watch(session)


if __name__ == "__main__":
    main(sys.argv)

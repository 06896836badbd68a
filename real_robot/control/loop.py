"""Control loop. Each tick reads the robot, checks the plan's target, and sends the goal.

Deadlines are t_0 + k P, in integer nanoseconds. If the loop wakes more than half a period after a
deadline, that deadline is missed and its tick is skipped. So no two commands are closer than half a
period. The loop continues at the next deadline and never catches up with a burst. After three
misses in a row, the loop runs a tick as soon as it wakes. This tick gets the number of the nearest
deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.clock import Clock, is_current
from real_robot.control.rings import Ring
from real_robot.control.schedule import Chunk, Schedule
from real_robot.robot import Code, Reading
from real_robot.rows import Mode
from real_robot.safety.guard import Guard
from real_robot.safety.states import ARMED, MOVING, Event, Reason, Refused, State

# The robot stops after MISSED_IN_A_ROW missed deadlines in a row. It also stops if more than the
# fraction MISSED_SHARE of the deadlines in the last WINDOW_S seconds was missed.
MISSED_IN_A_ROW, MISSED_SHARE, WINDOW_S = 3, 0.05, 1.0
TAKEOVER_RAMP_S = 0.2  # time in which the robot moves to the takeover device's target
UNARMED = frozenset({State.CONNECTED, State.CHECKED})
PLANNED = frozenset({State.RUNNING, State.SOFT_STOP})  # states that use a plan
TELEOP_AGE_S = 0.1  # a takeover device's target is ignored if it is older than this
# The computer was suspended if CLOCK_BOOTTIME gains more than this on CLOCK_MONOTONIC between two
# ticks. A smaller gain may be the time between reading the two clocks.
SUSPENDED_NS = 100_000_000
STARTING_S = 2.0  # `start` expires if no plan comes within this time


FLAGS = ("estop", "arm", "start", "take", "release", "finish", "limp")  # bool fields of a Request


@dataclass(frozen=True)
class Request:
    """Request for one tick, from the operator's keyboard or from a takeover device."""

    estop: bool = False  # the emergency stop is pressed, and re-arm has not cleared it
    arm: bool = False  # check the robot and switch torque on
    start: bool = False  # run the policy as soon as it has a plan
    take: bool = False  # begin a takeover
    release: bool = False  # end a takeover
    finish: bool = False  # decelerate and hold
    limp: bool = False  # switch torque off: the arm drops
    typed: str | None = None  # what the operator typed to re-arm
    confirm: str | None = None  # joint to trust again after its encoder jumped
    target: Sequence[float] | None = None  # [J] rad or m, during a takeover
    target_ns: int = 0  # time at which the device sent the target
    late: bool = False  # the request is too old: the robot may have changed its state

    @property
    def has_command(self) -> bool:
        """True if the request contains a command, not only a target."""
        texts = self.typed, self.confirm
        return texts != (None, None) or any(getattr(self, flag) for flag in FLAGS)


class Inputs(Protocol):
    """Inputs that the loop reads once per tick. No method blocks."""

    def chunk(self) -> Chunk | None:
        """Return the newest chunk if there is a new one since the last call."""

    def has_plan_ended(self) -> bool:
        """Return True if a recording is played and its last chunk has been returned."""
        return False

    def request(self) -> Request: ...

    def watchdog_ns(self) -> int | None:
        """Return the watchdog's last heartbeat; None: the run has no watchdog."""

    def recorder_lost(self) -> bool: ...

    def console_lost(self) -> bool:
        """Return True if no process reads the keys; False if the run needs no terminal."""
        return False


_NAN = float("nan")


class Loop:
    """Control loop of the control process. `step` waits for a deadline and runs its tick."""

    def __init__(
        self,
        guard: Guard,
        clock: Clock,
        schedule: Schedule,
        inputs: Inputs,
        ticks: Ring,
    ) -> None:
        self.guard, self.clock, self.schedule, self.inputs = guard, clock, schedule, inputs
        self.period_ns = round(guard.envelope.period_s * 1e9)
        self.ring = ticks
        self.row = ticks.record
        self.missed = 0  # number of missed deadlines
        self.tick_number = 0
        self.episode = 0
        self.refused: str | None = None  # why the last request was refused
        # returns why inference has sent no plan; its argument is the present time in ns
        self.explain_missing_plan: Callable[[int], str] = lambda now_ns: "inference is silent"
        count = len(guard.envelope.joints)
        self._start_ns = clock.now_ns()
        # one entry for each of the last deadlines; 1: it was missed
        self._window = bytearray(max(1, round(WINDOW_S / guard.envelope.period_s)))
        self._window_sum = self._in_a_row = 0
        self._invalid = ""  # the last reported fault of the adapter
        self.starting = False  # `start` was typed; motion begins with the first plan
        self._start_requested_ns = 0  # time at which `start` was typed
        self._taken_ns, self._from = 0, [0.0] * count  # time and position at the takeover's start
        self._target: Sequence[float] | None = None  # last target of the takeover device
        self._target_ns = 0
        self._mixed = [0.0] * count
        self._end_ns = self._start_ns  # end of the last tick
        self._nan = np.full(count, np.nan)
        self._suspended_ns = clock.suspended_ns()

    def begin(self) -> None:
        """Set the next deadline to one period from now."""
        now = self.clock.now_ns()
        self._start_ns = now - self.tick_number * self.period_ns
        self.guard.motion.now_ns = self.guard.motion.fresh_ns = now

    def step(self) -> None:
        """Sleep until the next deadline. Run its tick, or count it as missed."""
        self.tick_number += 1
        deadline = self._start_ns + self.tick_number * self.period_ns
        self.clock.sleep_until(deadline)
        wake = self.clock.now_ns()
        late = wake - deadline
        if late > self.period_ns // 2:
            skipped = 1 + (late - self.period_ns // 2) // self.period_ns
            self._count_missed(skipped)
            if self._in_a_row < MISSED_IN_A_ROW:
                self.tick_number += skipped - 1
                return
            self.tick_number += skipped
            deadline += skipped * self.period_ns
        self._count_met()
        self.tick(deadline, wake)

    def _count_missed(self, count: int) -> None:
        self.missed += count
        self._in_a_row += count
        for k in range(min(count, len(self._window))):
            self._mark((self.tick_number + k) % len(self._window), 1)

    def _count_met(self) -> None:
        self._mark(self.tick_number % len(self._window), 0)

    def _mark(self, index: int, value: int) -> None:
        self._window_sum += value - self._window[index]
        self._window[index] = value

    def _too_many_missed(self) -> bool:
        share = self._window_sum / len(self._window)
        return self._in_a_row >= MISSED_IN_A_ROW or share > MISSED_SHARE

    def tick(self, deadline: int, wake: int) -> None:
        """Run one tick, at time `wake`."""
        guard, schedule = self.guard, self.schedule
        reading = guard.read()
        now = self.clock.now_ns()
        others = 0
        if self._too_many_missed():
            others |= 1 << Reason.DEADLINES_MISSED
        suspended, self._suspended_ns = self._suspended_ns, self.clock.suspended_ns()
        if self._suspended_ns - suspended > SUSPENDED_NS:
            others |= 1 << Reason.SUSPENDED
        self._in_a_row = 0
        if self.inputs.recorder_lost():
            others |= 1 << Reason.RECORDER_LOST
        if self.inputs.console_lost() and guard.state in MOVING:
            others |= 1 << Reason.CONSOLE_LOST
        request = self.inputs.request()
        if request.estop:
            others |= 1 << Reason.ESTOP_PRESSED
        if self._apply_request(request, reading, now):
            return  # the robot was just armed: control begins with the next tick
        chunk = self.inputs.chunk()
        self._expire_start(now)
        if chunk is not None and (self.starting or guard.state in PLANNED):
            accepted = schedule.offer(chunk, now, guard.motion.q, guard.motion.v)
            if accepted and self.starting:
                self._start(now)
        target: Sequence[float] | None = None
        if guard.state in PLANNED:
            target = schedule.target(now)
            if target is None and guard.state is State.RUNNING and self.inputs.has_plan_ended():
                self.finish(now)
        elif guard.state is State.TAKEOVER:
            target = self._takeover_target(request, now)
        watchdog = self.inputs.watchdog_ns() if guard.state in ARMED else None
        before = guard.state
        motion = guard.tick(target, reading, now, watchdog_ns=watchdog, others=others)
        sent_ns = self.clock.now_ns()
        if guard.invalid != self._invalid:
            self._invalid = guard.invalid
            self.refused = guard.invalid or self.refused
        self._publish(deadline, wake, now, sent_ns, reading, before, target, motion.reasons)
        if guard.state not in PLANNED:
            schedule.clear()

    def _apply_request(self, request: Request, reading: Reading, now: int) -> bool:
        """Apply an operator's request. Return True if it armed the robot.

        If the request is refused, `refused` says why.
        """
        guard = self.guard
        try:
            if request.late and request.has_command:
                raise Refused("the command was typed before the robot was ready: type it again")
            if request.typed is not None:
                guard.re_arm(request.typed, now)
            if request.confirm is not None:
                guard.confirm(request.confirm)
                self.refused = guard.confirmation_request(reading.q.tolist()) or None
            if request.arm:
                self._arm(request.estop, now)
                return True
            if request.limp:
                guard.limp(now)
            if request.start:
                self._request_start(now)
            if request.take:
                guard.take(now)
                self._taken_ns, self._from[:] = now, reading.q.tolist()
                self._target = None
            if request.release:
                guard.release(now)
            if request.finish:
                self.finish(now)
        except (Refused, UserError) as error:
            self.refused = str(error)
        return False

    def _arm(self, estop: bool, now: int) -> None:
        if self.guard.state not in UNARMED:
            raise Refused(f"arm is refused while {self.guard.state.name}")
        if estop:
            raise Refused("arm is refused while the emergency stop is pressed: re-arm first")
        self.guard.run_check(now)
        self.guard.arm(now)
        self.begin()

    def _request_start(self, now: int) -> None:
        if self.starting:
            raise Refused("start was already requested: motion begins with the first plan")
        self.guard.machine.after(Event.START, now)
        self.starting, self._start_requested_ns, self.episode = True, now, self.episode + 1

    def _expire_start(self, now: int) -> None:
        """Drop a pending `start` if the robot no longer holds, or if no plan came in time.

        A late start would be dangerous: a hand may be in the robot's way.
        """
        self.starting = self.starting and self.guard.state is State.HOLD
        if self.starting and now - self._start_requested_ns > STARTING_S * 1e9:
            self.starting = False
            why = self.explain_missing_plan(now)
            self.refused = f"no plan came within {STARTING_S:.0f} s: {why}; type start again"

    def finish(self, now: int) -> None:
        """Bring the robot to rest, in a run or a takeover. Cancel a pending `start`.

        Raises Refused if the robot is not moving and no start is pending.
        """
        starting, self.starting = self.starting, False
        if self.guard.state is State.TAKEOVER:
            self.guard.release(now)
        elif not starting:
            self.guard.finish(now)
        self.schedule.clear()

    def _start(self, now: int) -> None:
        self.starting = False
        try:
            self.guard.start(now)
        except Refused as error:
            self.refused = str(error)
            self.schedule.clear()

    def _takeover_target(self, request: Request, now: int) -> Sequence[float] | None:
        """Return the takeover target.

        It moves within TAKEOVER_RAMP_S from the position at takeover to the device's target.
        """
        if request.target is not None:
            self._target, self._target_ns = request.target, request.target_ns
        current = is_current(self._target_ns, now, TELEOP_AGE_S * 1e9)
        if self._target is None or not current:
            # The robot stays where it is until the device has sent its first target.
            is_new = now - self._taken_ns <= TELEOP_AGE_S * 1e9
            return self._from if is_new else None
        share = min(1.0, (now - self._taken_ns) / (TAKEOVER_RAMP_S * 1e9))
        for i, x in enumerate(self._target):
            self._mixed[i] = self._from[i] + share * (x - self._from[i])
        return self._mixed

    def _publish(
        self,
        deadline: int,
        wake: int,
        now: int,
        sent_ns: int,
        reading: Reading,
        before: State,
        target: Sequence[float] | None,
        reasons: int,
    ) -> None:
        guard, row, chunk = self.guard, self.row, self.schedule.chunk
        latched = guard.machine.latched
        row["tick"], row["deadline_ns"], row["wake_ns"] = self.tick_number, deadline, wake
        row["read_ns"], row["measured_ns"] = reading.request_ns, reading.middle_ns
        channels_ns = reading.channels_ns
        row["channels_ns"] = reading.middle_ns if channels_ns is None else channels_ns
        row["read_done_ns"], row["sent_ns"], row["end_ns"] = reading.end_ns, sent_ns, self._end_ns
        row["wall_ns"] = self.clock.wall_ns()
        row["state"], row["latched"] = guard.state, -1 if latched is None else latched
        row["culprits"] = guard.culprits
        row["stop"], row["reasons"], row["missed"] = guard.motion.stop, reasons, self.missed
        operator = before is State.TAKEOVER
        policy = before is State.RUNNING
        row["mode"] = Mode.OPERATOR if operator else Mode.POLICY if policy else Mode.NOBODY
        row["intervention"] = operator
        row["code"], row["reading_seq"] = reading.code, reading.seq
        row["age_ns"], row["episode"] = now - guard.motion.fresh_ns, self.episode
        if chunk is None:
            row["chunk_seq"], row["chunk_index"], row["observed_ns"] = -1, -1, 0
            row["inference_ns"], row["action"] = 0, self._nan
            row["is_backup"], row["margin"] = 0, _NAN
        else:
            index = self.schedule.index
            row["chunk_seq"], row["chunk_index"] = chunk.seq, index
            row["observed_ns"] = chunk.observed_ns
            row["inference_ns"] = chunk.completed_ns - chunk.observed_ns
            row["is_backup"], row["margin"] = chunk.is_backup, chunk.margin
            row["action"] = chunk.actions[index] if index >= 0 else self._nan
        row["q"], row["dq"], row["current_a"] = reading.q, reading.dq, reading.current_a
        row["status"] = reading.status
        row["target"] = self._nan if target is None else target
        sent = guard.sent
        row["sent"] = sent.q if sent is not None and sent.code == Code.OK else self._nan
        row["clips"] = guard.motion.clips
        for name in guard.spec.channels:  # a missing channel is NaN, not its last value
            row[f"channel.{name}"] = reading.channels.get(name, _NAN)
        self.ring.push()
        self._end_ns = self.clock.now_ns()

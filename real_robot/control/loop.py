"""The control loop: read, check, newest plan, goal, safety, send, publish; then sleep.

Deadlines are t_0 + k P, in integer nanoseconds. Who wakes later than half a period has missed: that
tick is left out, so that no two commands are closer than half a period, and the loop goes on at the
next point of the grid. It never catches up by a burst. After three misses in a row it ticks as soon
as it wakes, and that is the tick of the nearest point.
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

MISSED_IN_A_ROW, MISSED_SHARE, WINDOW_S = 3, 0.05, 1.0
TAKEOVER_RAMP_S = 0.2
UNARMED = frozenset({State.CONNECTED, State.CHECKED})
PLANNED = frozenset({State.RUNNING, State.SOFT_STOP})  # where a plan is of use
TELEOP_AGE_S = 0.1  # an older target of a person's is none
SUSPENDED_NS = 100_000_000  # more between two ticks is a suspension; less, two clocks read apart
STARTING_S = 2.0  # in which the first plan comes: nobody expects a robot to move later


FLAGS = ("estop", "arm", "start", "take", "release", "finish", "limp")  # of a wish


@dataclass(frozen=True)
class Wish:
    """What a person at the keys or a takeover device wants, in one tick."""

    estop: bool = False  # held or latched by the device
    arm: bool = False  # torque on, once more, after a fault
    start: bool = False  # the policy moves the robot as soon as it has a plan
    take: bool = False
    release: bool = False
    finish: bool = False
    limp: bool = False  # torque off: the arm drops
    typed: str | None = None  # to re-arm
    confirm: str | None = None  # a joint that stands where it is measured, though its encoder leapt
    target: Sequence[float] | None = None  # [J] rad or m, while taken over
    target_ns: int = 0  # when the device said so
    late: bool = False  # said so long ago that the robot may be doing something else by now

    @property
    def said(self) -> bool:
        """Whether it is more than a target."""
        words = self.typed, self.confirm
        return words != (None, None) or any(getattr(self, flag) for flag in FLAGS)


class Inputs(Protocol):
    """What the loop asks once a tick; none of it waits."""

    def chunk(self) -> Chunk | None:
        """The newest one not given before."""

    def plan_handed_out(self) -> bool:
        """True if no further chunk will come, because a recording was played back to its end."""
        return False

    def wish(self) -> Wish: ...

    def watchdog_ns(self) -> int | None:
        """Its last heartbeat; None where none is wanted."""

    def recorder_lost(self) -> bool: ...

    def console_lost(self) -> bool:
        """Whether nobody would hear a key; False where no terminal is wanted."""
        return False


_NAN = float("nan")


class Loop:
    """Ticks. Made by the control process; tests give it a clock of their own."""

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
        self.missed = 0  # deadlines, since the beginning
        self.tick_number = 0
        self.episode = 0
        self.refused: str | None = None  # the last wish that was
        # of inference, at a time in ns
        self.why_no_plan: Callable[[int], str] = lambda now_ns: "inference is silent"
        count = len(guard.envelope.joints)
        self._start_ns = clock.now_ns()
        self._window = bytearray(max(1, round(WINDOW_S / guard.envelope.period_s)))
        self._window_sum = self._in_a_row = 0
        self._invalid = ""  # the adapter's wrong answer that was reported last
        self.starting = False  # a person wants the policy to begin; it does with its first plan
        self._asked_ns = 0  # when that was said
        self._taken_ns, self._from = 0, [0.0] * count
        self._target: Sequence[float] | None = None  # a person's last one
        self._target_ns = 0
        self._mixed = [0.0] * count
        self._end_ns = self._start_ns
        self._nan = np.full(count, np.nan)
        self._suspended_ns = clock.suspended_ns()

    def begin(self) -> None:
        """The next deadline is one period from now, whatever was missed since the last."""
        now = self.clock.now_ns()
        self._start_ns = now - self.tick_number * self.period_ns
        self.guard.motion.now_ns = self.guard.motion.fresh_ns = now

    def step(self) -> None:
        """Sleeps to the next deadline and does that tick, or counts it as missed."""
        self.tick_number += 1
        deadline = self._start_ns + self.tick_number * self.period_ns
        self.clock.sleep_until(deadline)
        wake = self.clock.now_ns()
        late = wake - deadline
        if late > self.period_ns // 2:
            skipped = 1 + (late - self.period_ns // 2) // self.period_ns
            self._miss(skipped)
            if self._in_a_row < MISSED_IN_A_ROW:
                self.tick_number += skipped - 1
                return
            self.tick_number += skipped
            deadline += skipped * self.period_ns
        self._met()
        self.tick(deadline, wake)

    def _miss(self, count: int) -> None:
        self.missed += count
        self._in_a_row += count
        for k in range(min(count, len(self._window))):
            self._mark((self.tick_number + k) % len(self._window), 1)

    def _met(self) -> None:
        self._mark(self.tick_number % len(self._window), 0)

    def _mark(self, place: int, value: int) -> None:
        self._window_sum += value - self._window[place]
        self._window[place] = value

    def _too_many_missed(self) -> bool:
        share = self._window_sum / len(self._window)
        return self._in_a_row >= MISSED_IN_A_ROW or share > MISSED_SHARE

    def tick(self, deadline: int, wake: int) -> None:
        """One tick, at `wake`."""
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
        wish = self.inputs.wish()
        if wish.estop:
            others |= 1 << Reason.ESTOP_PRESSED
        if self._obey(wish, reading, now):
            return  # newly armed: the next tick is the first
        chunk = self.inputs.chunk()
        self._expect_a_plan(now)
        if chunk is not None and (self.starting or guard.state in PLANNED):
            taken = schedule.offer(chunk, now, guard.motion.q, guard.motion.v)
            if taken and self.starting:
                self._start(now)
        target: Sequence[float] | None = None
        if guard.state in PLANNED:
            target = schedule.goal(now)
            if target is None and guard.state is State.RUNNING and self.inputs.plan_handed_out():
                self.finish(now)
        elif guard.state is State.TAKEOVER:
            target = self._persons(wish, now)
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

    def _obey(self, wish: Wish, reading: Reading, now: int) -> bool:
        """What a person wants and may have; what is refused stands in `refused`. True: armed."""
        guard = self.guard
        try:
            if wish.late and wish.said:
                raise Refused("that was typed before the robot listened: type it again")
            if wish.typed is not None:
                guard.re_arm(wish.typed, now)
            if wish.confirm is not None:
                guard.confirm(wish.confirm)
                self.refused = guard.doubts(reading.q.tolist()) or None
            if wish.arm:
                self._arm(wish.estop, now)
                return True
            if wish.limp:
                guard.limp(now)
            if wish.start:
                self._ask_to_start(now)
            if wish.take:
                guard.take(now)
                self._taken_ns, self._from[:] = now, reading.q.tolist()
                self._target = None
            if wish.release:
                guard.release(now)
            if wish.finish:
                self.finish(now)
        except (Refused, UserError) as error:
            self.refused = str(error)
        return False

    def _arm(self, estop: bool, now: int) -> None:
        if self.guard.state not in UNARMED:
            raise Refused(f"arm is refused while {self.guard.state.name}")
        if estop:
            raise Refused("arm is refused while the emergency stop is pressed: re-arm first")
        self.guard.passed(now)
        self.guard.arm(now)
        self.begin()

    def _ask_to_start(self, now: int) -> None:
        if self.starting:
            raise Refused("start is asked for already: it begins with the first plan")
        self.guard.machine.after(Event.START, now)
        self.starting, self._asked_ns, self.episode = True, now, self.episode + 1

    def _expect_a_plan(self, now: int) -> None:
        """Forgets the wish to start where the robot no longer holds, or no plan has come in time:
        by then a hand may be in its way."""
        self.starting = self.starting and self.guard.state is State.HOLD
        if self.starting and now - self._asked_ns > STARTING_S * 1e9:
            self.starting = False
            why = self.why_no_plan(now)
            self.refused = f"no plan came within {STARTING_S:.0f} s: {why}; type start again"

    def finish(self, now: int) -> None:
        """Whoever moves the robot, or is about to, brings it to rest. Raises Refused where nobody
        does."""
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

    def _persons(self, wish: Wish, now: int) -> Sequence[float] | None:
        """A person's target, reached from where the robot was measured within 0.2 s."""
        if wish.target is not None:
            self._target, self._target_ns = wish.target, wish.target_ns
        current = is_current(self._target_ns, now, TELEOP_AGE_S * 1e9)
        if self._target is None or not current:
            # until the device has spoken for the first time, the robot stays
            waits = now - self._taken_ns <= TELEOP_AGE_S * 1e9
            return self._from if waits else None
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
        person = before is State.TAKEOVER
        policy = before is State.RUNNING
        row["mode"] = Mode.PERSON if person else Mode.POLICY if policy else Mode.NOBODY
        row["intervention"] = person
        row["code"], row["reading_seq"] = reading.code, reading.seq
        row["age_ns"], row["episode"] = now - guard.motion.fresh_ns, self.episode
        if chunk is None:
            row["chunk_seq"], row["chunk_index"], row["observed_ns"] = -1, -1, 0
            row["inference_ns"], row["action"] = 0, self._nan
        else:
            index = self.schedule.index
            row["chunk_seq"], row["chunk_index"] = chunk.seq, index
            row["observed_ns"] = chunk.observed_ns
            row["inference_ns"] = chunk.answered_ns - chunk.observed_ns
            row["action"] = chunk.actions[index] if index >= 0 else self._nan
        row["q"], row["dq"], row["current_a"] = reading.q, reading.dq, reading.current_a
        row["status"] = reading.status
        row["target"] = self._nan if target is None else target
        sent = guard.sent
        row["sent"] = sent.q if sent is not None and sent.code == Code.OK else self._nan
        row["clips"] = guard.motion.clips
        for name in guard.spec.channels:  # one that is no more is unknown, not what it was
            row[f"channel.{name}"] = reading.channels.get(name, _NAN)
        self.ring.push()
        self._end_ns = self.clock.now_ns()

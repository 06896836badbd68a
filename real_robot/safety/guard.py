"""Guard: the only access to the robot. Every command passes the safety check."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import copysign

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.robot import Code, Command, Reading, Robot, RobotSpec, Sent, Status
from real_robot.safety.answers import (
    call,
    failure,
    hold_by_adapter,
    reading_fault,
    sent_fault,
    spec_fault,
    stamp_fault,
)
from real_robot.safety.check import LEAP, check, is_blind, leapt
from real_robot.safety.limiter import Motion
from real_robot.safety.limits import Envelope
from real_robot.safety.states import (
    ARMED,
    CHECK_VALID_S,
    CONFIRM,
    CONTACTS,
    FAULTS,
    MOVING,
    STOPPING,
    Event,
    Machine,
    Reason,
    Refused,
    State,
    event_of,
)

ROUNDING = 1e-9  # rad; tolerance when two floats are the same goal
ARM_PATIENCE_S = 1.0  # maximum time of the readings before arming
ARM_TRIES = 3  # number of readings, one of which must succeed
SETTLE_S = 0.3  # time without motion after which the robot counts as at rest
PUSHED = 0.125  # share of tracking_error beyond which a joint counts as pushed by hand
LET_GO_S = 0.5  # time after a push until the joint returns
RETURN = 0.1  # share of the velocity limit at which it returns
MENDED = Status.WATCHDOG | Status.TORQUE_OFF  # statuses that arming clears


class Guard:
    """Owner of the adapter. Call `tick` once per period, with the target and the reading."""

    def __init__(self, robot: Robot, envelope: Envelope) -> None:
        if fault := spec_fault(robot.spec):
            raise UserError(f"the adapter's spec cannot be used: {fault}")
        self.__robot = robot
        self.spec: RobotSpec = robot.spec
        self.envelope = envelope
        self.machine = Machine()
        count = len(envelope.joints)
        self.motion, self._other = Motion([0.0] * count, 0), Motion([0.0] * count, 0)
        self.sent: Sent | None = None  # result of this tick's command; None: none was sent
        self.missing = 0  # number of failed commands since arming
        self._low, self._high = np.array(envelope.low), np.array(envelope.high)
        self._goal = np.zeros(count)
        view = self._goal.view()
        view.flags.writeable = False
        self._view, self._seq = view, 0
        self._mute = False
        self._watched, self._watched_ns = [0.0] * count, 0  # last q while unarmed; time 0: none yet
        self.invalid = ""  # the fault in the adapter's last return value
        self._relief: list[float] | None = None  # goals that a robot at rest moves to
        # for pushes by hand: see `_comply_with_push`
        self._anchor: list[float] | None = None  # goals that a pushed robot returns to
        self._sag, self._give, self._settled = ([0.0] * count for _ in range(3))
        self._pushed = [False] * count
        self._stands_ns = self._pushed_ns = 0
        # the last stop after which `_release_contact` moved the goals
        self._relieved: tuple[State, Reason] | None = None
        self._stood_ns = 0  # when the robot came to rest after that stop
        self._status = np.zeros(count, int)  # from the last reading
        self.culprits = 0  # bits of the joints that caused the stop
        # joint -> last measured position before its encoder leapt, rad or m
        self.unconfirmed = dict[str, float]()

    @property
    def state(self) -> State:
        return self.machine.state

    def connect(self, now_ns: int) -> None:
        """Connect to the robot. Raises UserError if it cannot, Refused if already connected."""
        if self.state is not State.DISCONNECTED:
            raise Refused(f"connect is refused while {self.state.name}")
        call("connect", self.__robot.connect)
        self.machine.fire(Event.CONNECT, now_ns)

    def read(self) -> Reading:
        """Return a valid reading. Code REFUSED: the adapter's was invalid; see `invalid`."""
        try:
            answer = self.__robot.read()
        except Exception as error:
            fault: str | None = failure(error)
        else:
            fault = reading_fault(self.spec, answer)
        self.invalid = "" if fault is None else f"the adapter's read() failed: {fault}"
        if fault is None:
            return answer
        now_ns, nan = self.motion.now_ns, np.full(len(self.spec.joints), np.nan)
        status = np.full(len(self.spec.joints), int(Status.MISSING))
        seq = self.motion.seq
        return Reading(Code.REFUSED, seq, now_ns, now_ns, now_ns, nan, nan, nan, status)

    def run_check(self, now_ns: int) -> None:
        """Read the robot and enter CHECKED. Raises Refused if the robot must not be armed."""
        self.machine.after(Event.CHECK, now_ns)
        if (problem := self._problem_before_arming(now_ns)) is not None:
            raise Refused(problem)
        self.machine.fire(Event.CHECK, now_ns)

    def arm(self, now_ns: int) -> None:
        """Switch torque on; the robot holds its position. Raises Refused if this fails."""
        if self.state is State.CHECKED and now_ns - self.machine.checked_ns > CHECK_VALID_S * 1e9:
            self.machine.fire(Event.EXPIRE, now_ns)
        if self.state is not State.CHECKED:
            raise Refused(f"arm is refused while {self.state.name}: check first")
        if (problem := self._problem_before_arming(now_ns)) is not None:
            raise Refused(problem)
        q, middle_ns = self._arm_robot()
        self.machine.fire(Event.ARM, now_ns)
        self.motion, self._other = (Motion(q, now_ns) for _ in range(2))
        self.motion.middle_ns = middle_ns  # to detect an encoder leap before the first tick
        self.sent, self.missing, self._mute = None, 0, False
        self._relief = self._relieved = None
        # the robot may have been moved by hand: do not return to an earlier position
        self._anchor, self._stands_ns, self._pushed_ns = None, 0, 0

    def _arm_robot(self) -> tuple[list[float], int]:
        """Switch torque on. Return the position at which the robot holds, [J], and its time in ns.

        Raises Refused if the robot does not hold. This reading becomes the first goal, and the
        servos move there within one period. So the next reading must agree with it.
        """
        spec, e = self.spec, self.envelope
        reading = call("arm", self.__robot.arm)
        fault = reading_fault(spec, reading)
        if fault is None and reading.code is not Code.OK:
            fault = f"its reading failed ({reading.code.name.lower()})"
        if fault is None:
            q, middle_ns = (
                reading.q.tolist(),
                reading.middle_ns,
            )  # copied: an adapter may reuse its arrays
            after = self._read_with_retries()
            fault = self.invalid or None
            if fault is None and after.code is not Code.OK:
                fault = f"the reading after it failed ({after.code.name.lower()})"
        if fault is None:
            dt_s = max(e.period_s, abs(after.middle_ns - middle_ns) * 1e-9)
            for i, joint in enumerate(spec.joints):
                furthest = e.rules.velocity_ratio * e.velocity[i] * dt_s + 2 * e.resolution[i]
                q_armed, q_next = q[i], float(after.q[i])
                if not abs(q_armed - q_next) <= min(furthest, e.tracking_error[i]):
                    fault = f"joint {joint} is at {q_next:.3f}, but arm() returned {q_armed:.3f}"
                    break
                if after.status[i]:
                    fault = f"joint {joint} reports {Status(int(after.status[i])).name}"
                    break
        if fault is not None:
            raise Refused(f"arm() of {spec.name} failed: {fault}. Torque may be on; type limp")
        return q, middle_ns

    def _read_with_retries(self) -> Reading:
        for _ in range(ARM_TRIES):
            if (reading := self.read()).code == Code.OK:
                break
        return reading

    @property
    def cause(self) -> Reason | None:
        """Reason why the robot stopped or is stopping; None: it did not stop."""
        machine = self.machine
        return machine.pending if machine.latched is None else machine.latched

    def confirm(self, joint: str) -> None:
        """Trust the joint's encoder again: the operator has compared it with the joint's position.

        Raises Refused.
        """
        if self.state in ARMED:
            raise Refused(f"confirm is refused while {self.state.name}")
        if joint not in self.unconfirmed:
            waiting = ", ".join(self.unconfirmed) or "none"
            raise Refused(f"joint {joint!r} needs no confirmation. These joints do: {waiting}")
        del self.unconfirmed[joint]

    def confirmation_request(self, q: Sequence[float]) -> str:
        """Return which joints the operator must confirm before arming; empty: none. q: [J]."""
        joints = [
            f"joint {joint} was last trusted at {self.unconfirmed[joint]:.3f} and is measured at "
            f"{position:.3f} {unit}"
            for joint, unit, position in zip(self.spec.joints, self.spec.units, q, strict=True)
            if joint in self.unconfirmed
        ]
        if not joints:
            return ""
        first = next(iter(self.unconfirmed))
        return (
            f"the encoder leapt: {'; '.join(joints)}. If the joint really stands where it is "
            f"measured, type {CONFIRM}{first}; otherwise calibrate the robot"
        )

    def _problem_before_arming(self, now_ns: int) -> str | None:
        """Return why the robot cannot be armed; None: it can."""
        reading = self._read_with_retries()
        if self.invalid:
            return self.invalid
        if reading.code != Code.OK:
            return f"{self.spec.name} does not answer: {reading.code.name.lower()}"
        # now_ns was taken before the reading
        if fault := stamp_fault(reading, now_ns + round(ARM_PATIENCE_S * 1e9)):
            return f"the adapter's read() failed: {fault}"
        self._watch(reading)
        if request := self.confirmation_request(reading.q.tolist()):
            return request
        for i, joint in enumerate(self.spec.joints):
            q, low, high = reading.q[i], self.envelope.low[i], self.envelope.high[i]
            unit = self.spec.units[i]
            if not low <= q <= high:
                return (
                    f"joint {joint} is at {q:.3f} {unit}, its limits are {low:.3f} to "
                    f"{high:.3f}: move it inside by hand"
                )
            if status := Status(int(reading.status[i])) & ~MENDED:
                return f"joint {joint} reports {status.name}: clear it before arming"
        if not self.envelope.inside(reading.q.tolist()):
            return f"{self.spec.name} is outside its workspace: move it inside by hand"
        return None

    def start(self, now_ns: int) -> None:
        self.machine.fire(Event.START, now_ns)

    def take(self, now_ns: int) -> None:
        """Hand control to an operator."""
        self.machine.fire(Event.TAKE, now_ns)

    def release(self, now_ns: int) -> None:
        self.machine.fire(Event.RELEASE, now_ns)

    def finish(self, now_ns: int) -> None:
        """Decelerate and hold because the task is finished. This latches no reason.

        A robot that is already stopping because its plan ran out accepts no new plan after it.
        """
        self.machine.fire(Event.FINISH, now_ns)

    def re_arm(self, typed: str, now_ns: int) -> None:
        """Clear the latched reason for an operator, and only for an operator.

        Raises Refused while the cause persists, or while the robot still moves.
        """
        if not self.at_rest and self.state not in MOVING:
            raise Refused("the robot still moves: re-arm once it stands still")
        self.machine.re_arm(typed, there=self._still_there(), now_ns=now_ns)
        self.culprits = 0

    def _still_there(self) -> list[Reason]:
        """Return the last tick's reasons, without those that arming clears or checks itself.

        After a fault or an emergency stop, a joint without torque reports this, sinks, and may be
        outside its limits.
        """
        # a suspension has ended when it is detected
        reasons = self.motion.reasons & ~(1 << Reason.SUSPENDED)
        if self.state in (State.FAULT, State.ESTOP):
            status = int(np.bitwise_or.reduce(self._status))
            if not status & ~(MENDED | Status.MISSING):
                reasons &= ~(1 << Reason.SERVO_ERROR)
            if self._mute or status & Status.TORQUE_OFF:
                reasons &= ~(1 << Reason.TRACKING_ERROR | 1 << Reason.POSITION_MEASURED)
        return [reason for reason in Reason if reasons >> reason & 1]

    def limp(self, now_ns: int) -> None:
        """Switch torque off, on an operator's request: the arm drops."""
        self.machine.fire(Event.LIMP, now_ns)
        self._mute = True
        call("disarm", self.__robot.disarm)

    def close(self, now_ns: int) -> None:
        """Close the robot, in any state. The robot holds."""
        self.machine.fire(Event.CLOSE, now_ns)
        call("close", self.__robot.close)

    def tick(
        self,
        target: Sequence[float] | None,
        reading: Reading,
        now_ns: int,
        *,
        watchdog_ns: int | None = None,
        others: int = 0,
    ) -> Motion:
        """Run one period: the check, its state change and one command. Return the motion.

        The arguments are those of `check`. Nothing is sent while the robot is not armed.
        """
        machine = self.machine
        self.sent = None
        if not self.invalid and (fault := stamp_fault(reading, now_ns)):
            self.invalid = f"the adapter's read() failed: {fault}"
        if self.invalid:
            others |= 1 << Reason.ADAPTER_INVALID
        if machine.state not in ARMED and machine.state not in STOPPING:
            self._expire(now_ns)
            self._watch(reading)
            return self.motion
        self._watched_ns = 0
        if (
            target is not None
            and machine.state is State.SOFT_STOP
            and machine.pending is Reason.PLAN_EXHAUSTED
        ):
            machine.fire(Event.FRESH_PLAN, now_ns)
        before, after, self._status = self.motion, self._other, reading.status
        check(
            self.envelope,
            before,
            after,
            machine.state,
            target,
            reading,
            now_ns,
            watchdog_ns=watchdog_ns,
            others=others,
            relief=self._relief,
        )
        leaps = bool(after.reasons >> Reason.ENCODER_LEAPT & 1)
        if leaps:
            self._follow_leapt_encoder(before, after)
        self.motion, self._other = after, before
        self._apply_reasons(after.reasons, now_ns)
        self._send(now_ns, anyway=leaps)
        if machine.state is State.SOFT_STOP and after.is_at_rest():
            machine.fire(Event.STANDSTILL, now_ns)
        self._release_contact(after)
        self._comply_with_push(after)
        return after

    def _follow_leapt_encoder(self, before: Motion, after: Motion) -> None:
        """Set the goal of each joint whose encoder leapt to its measured position.

        The servo compares its goal with its encoder. Any other goal would move the joint by the
        size of the leap, into its mechanical stop. A second reading distinguishes a leap from a
        single wrong value, which must not become a goal. If it fails, the adapter holds the robot.
        """
        again, e = self._read_with_retries(), self.envelope
        if again.code != Code.OK:
            self._hold_by_adapter()
        for i, joint in enumerate(self.spec.joints):
            if not after.blame[i] >> Reason.ENCODER_LEAPT & 1:
                continue
            self.unconfirmed.setdefault(joint, before.measured[i])
            q = float(again.q[i])  # NaN where the reading failed
            if (
                abs(q - after.measured[i])
                <= e.rules.velocity_ratio * e.velocity[i] * e.period_s + 2 * e.resolution[i]
            ):
                after.rest_at(i, q)

    def _hold_by_adapter(self) -> None:
        """Let the adapter hold the robot at its position. No goal is sent after that."""
        self._mute = True
        hold_by_adapter(self.spec, self.__robot.hold, Reason.ENCODER_LEAPT.text)

    def _watch(self, reading: Reading) -> None:
        """Detect encoder leaps while the robot is not armed, even if it is moved by hand."""
        if reading.code != Code.OK:
            return
        e, motion = self.envelope, self.motion
        if not self._watched_ns and motion.middle_ns:  # it was armed until now
            self._watched[:], self._watched_ns = motion.measured, motion.middle_ns
        dt_s = (reading.middle_ns - self._watched_ns) * 1e-9
        if dt_s <= 0:
            return
        for i, q in enumerate(reading.q.tolist()):
            fastest = LEAP * e.rules.velocity_ratio * e.velocity[i] + 2 * e.resolution[i] / dt_s
            before, dq = self._watched[i], float(reading.dq[i])
            if self._watched_ns and leapt(before, q, dq, fastest, dt_s):
                self.unconfirmed.setdefault(self.spec.joints[i], before)
            self._watched[i] = q
        self._watched_ns = reading.middle_ns

    def _release_contact(self, motion: Motion) -> None:
        """Move the goals back to the measured joint positions after a stop that may be a collision.

        This happens once, when the robot is at rest, so that the servos stop pushing.
        """
        latched, e = self.machine.latched, self.envelope
        if self._relief is not None and motion.is_at_rest():
            self._relief = None  # the goals have arrived, or cannot move
        if latched is None or latched not in CONTACTS:
            self._relief, self._relieved, self._stood_ns = None, None, 0
            return
        stop = self.state, latched
        if stop == self._relieved:
            return
        self._relief = None  # it belongs to an earlier stop
        if not motion.is_at_rest():
            self._stood_ns = 0
            return
        self._stood_ns = self._stood_ns or motion.now_ns
        if motion.now_ns - self._stood_ns > e.max_age_ns or self._mute:
            # too late: the robot may have been moved since, and would jump to these goals
            self._relieved = stop
        elif not is_blind(e, motion, motion.reasons):
            apart = zip(motion.measured, motion.q, e.resolution, strict=True)
            goals_differ = any(abs(q - goal) > digit + ROUNDING for q, goal, digit in apart)
            relief = [*motion.measured]
            for i, grip in enumerate(e.grips):
                if grip is not None and (motion.q[i] - relief[i]) * grip.closes > 0:
                    relief[i] = motion.q[i]  # keep holding the gripped object
            self._relief, self._relieved = relief if goals_differ else None, stop

    def _comply_with_push(self, motion: Motion) -> None:
        """Let a robot that holds be pushed by hand, and move it back after the push.

        The force of a pushed servo grows with the error, and the joint would snap back. So beyond a
        threshold the joint's goal follows the measured position within its limits, or immediately
        if the push is faster. Some time after the push the joint returns slowly. A robot that was
        stopped by a reason stays where it was pushed.
        """
        e, latched = self.envelope, self.machine.latched
        holds = self.state is State.HOLD or (self.state in STOPPING and latched in CONTACTS)
        if self._mute or not holds or is_blind(e, motion, motion.reasons):
            self._anchor, self._stands_ns = None, 0
            return
        anchor = self._settle(motion) if self._anchor is None else self._anchor
        if anchor is None:
            return
        for i, goal in enumerate(motion.q):
            push_limit, measured = PUSHED * e.tracking_error[i], motion.measured[i]
            error = measured - goal - self._sag[i]
            moved = abs(measured - self._settled[i]) > push_limit
            self._pushed[i] = (
                abs(error) > (push_limit / 2 if self._pushed[i] else push_limit) and moved
            )
            if self._pushed[i]:
                self._pushed_ns = motion.now_ns
                goal += error - copysign(0.75 * push_limit, error)
                self._give[i] = goal = min(max(goal, e.low[i]), e.high[i])
                if abs(error) > 2 * push_limit:
                    motion.rest_at(i, goal)
            elif latched is None and motion.now_ns - self._pushed_ns > LET_GO_S * 1e9:
                step = RETURN * e.velocity[i] * e.period_s
                self._give[i] += min(max(anchor[i] - self._give[i], -step), step)
        still = self._give == motion.q and motion.is_at_rest() and not any(self._pushed)
        self._relief = None if still else self._give

    def _settle(self, motion: Motion) -> list[float] | None:
        """Return the goals of a robot at rest, and store the steady-state error of its joints.

        None: the robot is not yet at rest.
        """
        if self._relief is not None or not motion.is_at_rest():
            self._stands_ns = 0
            return None
        self._stands_ns = self._stands_ns or motion.now_ns
        if motion.now_ns - self._stands_ns < SETTLE_S * 1e9:
            return None
        self._anchor, self._settled = [*motion.q], [*motion.measured]
        self._give[:] = motion.q
        for i, goal in enumerate(motion.q):
            max_sag = PUSHED * self.envelope.tracking_error[i] / 2
            self._sag[i] = min(max(motion.measured[i] - goal, -max_sag), max_sag)
            self._pushed[i] = False
        return self._anchor

    @property
    def at_rest(self) -> bool:
        """Return True if the goals are at rest and will not move, or if nothing is sent."""
        sends = self.state in ARMED or self.state in STOPPING
        return not sends or (self.motion.is_at_rest() and self._relief is None)

    def _expire(self, now_ns: int) -> None:
        checked = self.machine.checked_ns
        if self.state is State.CHECKED and now_ns - checked > CHECK_VALID_S * 1e9:
            self.machine.fire(Event.EXPIRE, now_ns)

    def _apply_reasons(self, reasons: int, now_ns: int) -> None:
        """Change the state by the most severe reason: emergency stop, then fault, then stop.

        An emergency stop also ends the motion of goals after a fault.
        """
        if self.state is State.FAULT:
            reasons &= 1 << Reason.ESTOP_PRESSED
        if not reasons or not (self.state in ARMED or self.state is State.FAULT):
            return
        causes = [reason for reason in Reason if reasons >> reason & 1]
        causes.sort(key=lambda r: (r is not Reason.ESTOP_PRESSED, r not in FAULTS, r))
        reason, before = causes[0], self.cause
        self.machine.fire(event_of(reason), now_ns, reason)
        if self.cause is reason and before is not reason:
            blame = enumerate(self.motion.blame)
            self.culprits = sum(1 << i for i, bits in blame if bits >> reason & 1)

    def _send(self, now_ns: int, *, anyway: bool) -> None:
        """Send the goals. anyway: also after a fault at rest, because the goals have changed."""
        motion = self.motion
        latched = self.state in (State.FAULT, State.ESTOP)
        resting = latched and motion.is_at_rest() and self._relief is None
        if self._mute or (resting and not anyway):
            return  # servos keep their last goal; one that lost torque gets no command to move
        self._goal[:] = motion.q
        if self.unconfirmed and ((self._goal < self._low) | (self._goal > self._high)).any():
            # No goal within the limits can hold a joint that is measured outside them. The adapter
            # holds the robot at its position.
            self._hold_by_adapter()
            return
        np.clip(self._goal, self._low, self._high, out=self._goal)
        self._seq += 1
        try:
            sent = self.__robot.command(Command(self._seq, now_ns, self._view))
        except Exception as error:
            fault: str | None = failure(error)
        else:
            fault = sent_fault(self.spec, sent)
        if fault is not None:
            self.invalid = f"the adapter's command() failed: {fault}"
            self.missing += 1
            self._apply_reasons(1 << Reason.ADAPTER_INVALID, now_ns)
            return
        self.sent = sent
        if sent.code != Code.OK:
            self.missing += 1
            self._mute = latched and sent.code == Code.LOST
            if sent.code in (Code.LOST, Code.REFUSED):
                self._apply_reasons(1 << Reason.BUS_LOST, now_ns)
            return
        for i, q in enumerate(sent.q.tolist()):
            differs = abs(q - motion.q[i]) > self.envelope.resolution[i] + ROUNDING
            low, high = self.envelope.low[i] - ROUNDING, self.envelope.high[i] + ROUNDING
            if differs or not low <= q <= high:
                motion.blame[i] |= 1 << Reason.SENT_DIFFERS
                self._apply_reasons(1 << Reason.SENT_DIFFERS, now_ns)
                return

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Refused):
            self.close(self.motion.now_ns)

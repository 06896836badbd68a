"""Guard: the only part of the program that commands the robot. Every command passes the check."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import copysign

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.robot import Code, Command, Reading, Robot, RobotSpec, Sent, Status
from real_robot.safety.check import JUMP_FACTOR, check, has_jumped, is_position_unknown
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
    TRANSITIONS,
    Event,
    Machine,
    Reason,
    Refused,
    State,
    event_of,
)
from real_robot.safety.validation import (
    call,
    failure,
    hold_by_adapter,
    reading_fault,
    sent_fault,
    spec_fault,
    stamp_fault,
)

ROUNDING = 1e-9  # rad; two goals count as equal if they differ by less than this
ARM_PATIENCE_S = 1.0  # s; maximum duration of the readings before arming
ARM_TRIES = 3  # maximum number of attempts to get a good reading
REST_S = 0.3  # s; time without a change of the goals after which the robot counts as at rest
PUSHED = 0.125  # fraction of tracking_error beyond which a joint counts as pushed by hand
RETURN_AFTER_S = 0.5  # s; time from the end of a push until the joint returns
RETURN_SPEED = 0.1  # fraction of the velocity limit at which the joint returns
CLEARED_BY_ARMING = Status.WATCHDOG | Status.TORQUE_OFF


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
        self.failed_commands = 0  # since arming
        self._low, self._high = np.array(envelope.low), np.array(envelope.high)
        self._goal = np.zeros(count)
        view = self._goal.view()
        view.flags.writeable = False
        self._view, self._seq = view, 0
        self._silenced = False  # True: no goals are sent until the next arming
        # last measured positions while not armed, and their time in ns; 0: none yet
        self._unarmed_q, self._unarmed_ns = [0.0] * count, 0
        self.invalid = ""  # fault in the adapter's last return value; empty: none
        # goals to which a robot at rest moves; None: the robot keeps its present goals
        self._relief_goals: list[float] | None = None
        # Used by `_comply_with_push`:
        # goals to which the robot returns after a push; None: it has not been at rest yet
        self._return_goals: list[float] | None = None
        self._steady_error = [0.0] * count  # measured position minus goal, at rest
        self._push_goals = [0.0] * count  # goals while the robot is pushed and while it returns
        self._rest_positions = [0.0] * count  # measured positions at rest
        self._pushed = [False] * count  # joints that are pushed now
        self._rest_since_ns = 0  # time since which the goals have not changed; 0: they change
        self._pushed_ns = 0  # time of the last push
        # Used by `_release_contact`:
        # the stop after which the goals were already moved; None: no such stop
        self._handled_stop: tuple[State, Reason] | None = None
        self._stopped_since_ns = 0  # when the robot came to rest after a stop; 0: it still moves
        self._status = np.zeros(count, int)  # status of each joint in the last reading
        self.culprits = 0  # joints that caused the stop, one bit each
        # joint -> last measured position before its encoder jumped, rad or m
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
        """Return a valid reading.

        If the adapter returned an invalid one, the code is REFUSED and `invalid` describes the
        fault.
        """
        try:
            reading = self.__robot.read()
        except Exception as error:
            fault: str | None = failure(error)
        else:
            fault = reading_fault(self.spec, reading)
        self.invalid = "" if fault is None else f"the adapter's read() failed: {fault}"
        if fault is None:
            return reading
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
        self.motion.middle_ns = middle_ns  # to detect an encoder jump before the first tick
        self.sent, self.failed_commands, self._silenced = None, 0, False
        self._relief_goals = self._handled_stop = None
        # The robot may have been moved by hand: it must not return to an earlier position.
        self._return_goals, self._rest_since_ns, self._pushed_ns = None, 0, 0

    def _arm_robot(self) -> tuple[list[float], int]:
        """Switch torque on. Return the position at which the robot holds, [J], and its time in ns.

        This position becomes the first goal, and the servos move there within one period. The next
        reading must therefore agree with it. Raises Refused if it does not, or if arming failed.
        """
        spec, e = self.spec, self.envelope
        reading = call("arm", self.__robot.arm)
        fault = reading_fault(spec, reading)
        if fault is None and reading.code is not Code.OK:
            fault = f"its reading failed ({reading.code.name.lower()})"
        if fault is None:
            # tolist() copies: an adapter may reuse its arrays
            q, middle_ns = reading.q.tolist(), reading.middle_ns
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
        """Reason why the robot stopped or is stopping; None: no reason stopped it."""
        machine = self.machine
        return machine.pending if machine.latched is None else machine.latched

    def confirm(self, joint: str) -> None:
        """Trust a joint's encoder again, after the operator has checked the reported position.

        Raises Refused while the robot is armed, or if the joint needs no confirmation.
        """
        if self.state in ARMED:
            raise Refused(f"confirm is refused while {self.state.name}")
        if joint not in self.unconfirmed:
            waiting = ", ".join(self.unconfirmed) or "none"
            raise Refused(f"joint {joint!r} needs no confirmation. These joints do: {waiting}")
        del self.unconfirmed[joint]

    def confirmation_request(self, q: Sequence[float]) -> str:
        """Return the sentence that asks the operator to confirm joints; empty: none. q: [J]."""
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
            f"the encoder jumped: {'; '.join(joints)}. Look at the joint. If it really is at the "
            f"measured position, type {CONFIRM}{first}; otherwise calibrate the robot"
        )

    def _problem_before_arming(self, now_ns: int) -> str | None:
        """Return the reason why the robot cannot be armed; None: it can be armed."""
        reading = self._read_with_retries()
        if self.invalid:
            return self.invalid
        if reading.code != Code.OK:
            return f"{self.spec.name} does not answer: {reading.code.name.lower()}"
        # now_ns was taken before the reading
        if fault := stamp_fault(reading, now_ns + round(ARM_PATIENCE_S * 1e9)):
            return f"the adapter's read() failed: {fault}"
        self._detect_jumps_unarmed(reading)
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
            if status := Status(int(reading.status[i])) & ~CLEARED_BY_ARMING:
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

        If the robot is already stopping because its plan ran out, a new plan no longer resumes
        motion.
        """
        self.machine.fire(Event.FINISH, now_ns)

    def re_arm(self, typed: str, now_ns: int) -> None:
        """Clear the latched reason. Only an operator may do this.

        Raises Refused while the cause persists, or while the robot still moves.
        """
        if not self.at_rest and self.state not in MOVING:
            raise Refused("the robot still moves: re-arm once it is at rest")
        self.machine.re_arm(typed, present=self._blocking_reasons(), now_ns=now_ns)
        self.culprits = 0

    def _blocking_reasons(self) -> list[Reason]:
        """Return the last tick's reasons that prevent re-arming.

        In FAULT and ESTOP, a joint may have lost torque and may have sunk out of its limits. Such a
        joint does not prevent re-arming, because arming checks it again.
        """
        # SUSPENDED never persists: the computer runs again when the loop detects the suspension.
        reasons = self.motion.reasons & ~(1 << Reason.SUSPENDED)
        if self.state in (State.FAULT, State.ESTOP):
            status = int(np.bitwise_or.reduce(self._status))
            if not status & ~(CLEARED_BY_ARMING | Status.MISSING):
                reasons &= ~(1 << Reason.SERVO_ERROR)
            if self._silenced or status & Status.TORQUE_OFF:
                reasons &= ~(1 << Reason.TRACKING_ERROR | 1 << Reason.POSITION_MEASURED)
        return [reason for reason in Reason if reasons >> reason & 1]

    def limp(self, now_ns: int) -> None:
        """Switch torque off because an operator requested it. The arm drops."""
        self.machine.fire(Event.LIMP, now_ns)
        self._silenced = True
        call("disarm", self.__robot.disarm)

    def close(self, now_ns: int) -> None:
        """Close the connection, in any state. The robot holds its position."""
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
        """Run one period: check, change the state, send one command. Return the motion state.

        The arguments are those of `check`. No command is sent while the robot is not armed.
        """
        machine = self.machine
        self.sent = None
        if not self.invalid and (fault := stamp_fault(reading, now_ns)):
            self.invalid = f"the adapter's read() failed: {fault}"
        if self.invalid:
            others |= 1 << Reason.ADAPTER_INVALID
        if machine.state not in ARMED and machine.state not in STOPPING:
            self._expire(now_ns)
            self._detect_jumps_unarmed(reading)
            return self.motion
        self._unarmed_ns = 0
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
            relief=self._relief_goals,
        )
        jumped = bool(after.reasons >> Reason.ENCODER_LEAPT & 1)
        if jumped:
            self._follow_jumped_encoder(before, after)
        self.motion, self._other = after, before
        self._apply_reasons(after.reasons, now_ns)
        self._send(now_ns, anyway=jumped)
        if machine.state is State.SOFT_STOP and after.is_at_rest():
            machine.fire(Event.STANDSTILL, now_ns)
        self._release_contact(after)
        self._comply_with_push(after)
        return after

    def _follow_jumped_encoder(self, before: Motion, after: Motion) -> None:
        """Set the goal of each joint whose encoder jumped to its measured position.

        The servo compares its goal with its encoder. Any other goal would move the joint by the
        size of the jump, into its mechanical stop. A single wrong value must not become a goal, so
        a second reading must confirm the jump. If that reading fails, the adapter holds the robot.
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
        """Let the adapter hold the robot. No goals are sent until the next arming."""
        self._silenced = True
        hold_by_adapter(self.spec, self.__robot.hold, Reason.ENCODER_LEAPT.text)

    def _detect_jumps_unarmed(self, reading: Reading) -> None:
        """Detect encoder jumps while the robot is not armed, even while it is moved by hand."""
        if reading.code != Code.OK:
            return
        e, motion = self.envelope, self.motion
        if not self._unarmed_ns and motion.middle_ns:  # the robot was armed until now
            self._unarmed_q[:], self._unarmed_ns = motion.measured, motion.middle_ns
        dt_s = (reading.middle_ns - self._unarmed_ns) * 1e-9
        if dt_s <= 0:
            return
        for i, q in enumerate(reading.q.tolist()):
            fastest = (
                JUMP_FACTOR * e.rules.velocity_ratio * e.velocity[i] + 2 * e.resolution[i] / dt_s
            )
            before, dq = self._unarmed_q[i], float(reading.dq[i])
            if self._unarmed_ns and has_jumped(before, q, dq, fastest, dt_s):
                self.unconfirmed.setdefault(self.spec.joints[i], before)
            self._unarmed_q[i] = q
        self._unarmed_ns = reading.middle_ns

    def _release_contact(self, motion: Motion) -> None:
        """Move the goals to the measured positions after a stop that may be a collision.

        This happens once per stop, when the goals are at rest, so that the servos stop pushing.
        """
        latched, e = self.machine.latched, self.envelope
        if self._relief_goals is not None and motion.is_at_rest():
            self._relief_goals = None  # the sent goals have reached them, or cannot move
        if latched is None or latched not in CONTACTS:
            self._relief_goals, self._handled_stop, self._stopped_since_ns = None, None, 0
            return
        stop = self.state, latched
        if stop == self._handled_stop:
            return
        self._relief_goals = None  # these goals belong to an earlier stop
        if not motion.is_at_rest():
            self._stopped_since_ns = 0
            return
        self._stopped_since_ns = self._stopped_since_ns or motion.now_ns
        if motion.now_ns - self._stopped_since_ns > e.max_age_ns or self._silenced:
            # Do not move the goals. The position has been unknown for too long, or no goals are
            # sent. The robot may have been moved since the stop. It would jump to its old goals,
            # where the motion to the measured positions begins.
            self._handled_stop = stop
        elif not is_position_unknown(e, motion, motion.reasons):
            pairs = zip(motion.measured, motion.q, e.resolution, strict=True)
            goals_differ = any(abs(q - goal) > digit + ROUNDING for q, goal, digit in pairs)
            relief = [*motion.measured]
            for i, grip in enumerate(e.grips):
                if grip is not None and (motion.q[i] - relief[i]) * grip.closes > 0:
                    relief[i] = motion.q[i]  # keep holding the gripped object
            self._relief_goals, self._handled_stop = relief if goals_differ else None, stop

    def _comply_with_push(self, motion: Motion) -> None:
        """Let a robot that holds be pushed by hand, and move it back after the push.

        The force of a position servo grows with the distance between goal and position. A joint
        that is pushed and released would snap back. So the goal of a joint that was pushed beyond a
        threshold follows the measured position, within the limits of motion. If the push is faster
        than these limits, the goal follows immediately.

        `RETURN_AFTER_S` after the push, the joint returns slowly. If a reason has stopped the
        robot, it stays where it was pushed.
        """
        e, latched = self.envelope, self.machine.latched
        holds = self.state is State.HOLD or (self.state in STOPPING and latched in CONTACTS)
        if self._silenced or not holds or is_position_unknown(e, motion, motion.reasons):
            self._return_goals, self._rest_since_ns = None, 0
            return
        return_goals = (
            self._detect_rest(motion) if self._return_goals is None else self._return_goals
        )
        if return_goals is None:
            return
        for i, goal in enumerate(motion.q):
            push_limit, measured = PUSHED * e.tracking_error[i], motion.measured[i]
            error = measured - goal - self._steady_error[i]
            moved = abs(measured - self._rest_positions[i]) > push_limit
            self._pushed[i] = (
                abs(error) > (push_limit / 2 if self._pushed[i] else push_limit) and moved
            )
            if self._pushed[i]:
                self._pushed_ns = motion.now_ns
                goal += error - copysign(0.75 * push_limit, error)
                self._push_goals[i] = goal = min(max(goal, e.low[i]), e.high[i])
                if abs(error) > 2 * push_limit:
                    motion.rest_at(i, goal)
            elif latched is None and motion.now_ns - self._pushed_ns > RETURN_AFTER_S * 1e9:
                step = RETURN_SPEED * e.velocity[i] * e.period_s
                self._push_goals[i] += min(max(return_goals[i] - self._push_goals[i], -step), step)
        still = self._push_goals == motion.q and motion.is_at_rest() and not any(self._pushed)
        self._relief_goals = None if still else self._push_goals

    def _detect_rest(self, motion: Motion) -> list[float] | None:
        """Return the goals of a robot at rest; None: it has not been at rest for `REST_S`.

        Also store the measured positions and the steady-state error of each joint.
        """
        if self._relief_goals is not None or not motion.is_at_rest():
            self._rest_since_ns = 0
            return None
        self._rest_since_ns = self._rest_since_ns or motion.now_ns
        if motion.now_ns - self._rest_since_ns < REST_S * 1e9:
            return None
        self._return_goals, self._rest_positions = [*motion.q], [*motion.measured]
        self._push_goals[:] = motion.q
        for i, goal in enumerate(motion.q):
            max_error = PUSHED * self.envelope.tracking_error[i] / 2
            self._steady_error[i] = min(max(motion.measured[i] - goal, -max_error), max_error)
            self._pushed[i] = False
        return self._return_goals

    @property
    def at_rest(self) -> bool:
        """True if the goals are at rest and will not move, or if no goals are sent."""
        sends = self.state in ARMED or self.state in STOPPING
        return not sends or (self.motion.is_at_rest() and self._relief_goals is None)

    def _expire(self, now_ns: int) -> None:
        checked = self.machine.checked_ns
        if self.state is State.CHECKED and now_ns - checked > CHECK_VALID_S * 1e9:
            self.machine.fire(Event.EXPIRE, now_ns)

    def _apply_reasons(self, reasons: int, now_ns: int) -> None:
        """Change the state by the most severe reason: emergency stop, then fault, then soft stop.

        After a fault only an emergency stop changes the state: it ends the motion of the goals.
        """
        if not reasons:
            return
        causes = [
            reason
            for reason in Reason
            if reasons >> reason & 1 and (self.state, event_of(reason)) in TRANSITIONS
        ]
        if not causes:
            return
        causes.sort(key=lambda r: (r is not Reason.ESTOP_PRESSED, r not in FAULTS, r))
        reason, before = causes[0], self.cause
        self.machine.fire(event_of(reason), now_ns, reason)
        if self.cause is reason and before is not reason:
            blame = enumerate(self.motion.blame)
            self.culprits = sum(1 << i for i, bits in blame if bits >> reason & 1)

    def _send(self, now_ns: int, *, anyway: bool) -> None:
        """Send the goals. anyway: send them even to a robot at rest after a fault."""
        motion = self.motion
        latched = self.state in (State.FAULT, State.ESTOP)
        resting = latched and motion.is_at_rest() and self._relief_goals is None
        if self._silenced or (resting and not anyway):
            # Servos keep their last goal. A servo that lost torque must get no command to move.
            return
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
            self.failed_commands += 1
            self._apply_reasons(1 << Reason.ADAPTER_INVALID, now_ns)
            return
        self.sent = sent
        if sent.code != Code.OK:
            self.failed_commands += 1
            self._silenced = latched and sent.code == Code.LOST
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

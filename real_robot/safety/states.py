"""States of a run, the transitions between them, and the reasons to stop.

A transition that `TRANSITIONS` does not list is refused. A reason that stopped the robot stays
latched until an operator clears it. No timer, reconnection or default argument clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

CHECK_VALID_S = 60.0  # time for which a passed check is valid
RE_ARM = "re-arm"  # typed by the operator
# Typed by the operator, followed by the name of a joint whose encoder jumped. It has no space
# because the space bar is the emergency stop.
CONFIRM = "confirm="


class State(IntEnum):
    DISCONNECTED = 0
    CONNECTED = 1  # the robot is read; torque is off, or still on since an earlier run
    CHECKED = 2  # the robot passed the check at most 60 s ago
    HOLD = 3  # armed: the robot holds its last goal
    RUNNING = 4  # a policy moves the robot
    TAKEOVER = 5  # an operator moves the robot with a device
    SOFT_STOP = 6  # the robot decelerates along its path
    FAULT = 7  # the robot decelerates as hard as its limits permit, then holds; latched
    ESTOP = 8  # as FAULT, but because the operator pressed the emergency stop


ARMED = frozenset({State.HOLD, State.RUNNING, State.TAKEOVER, State.SOFT_STOP})
MOVING = frozenset({State.RUNNING, State.TAKEOVER})
STOPPING = frozenset({State.SOFT_STOP, State.FAULT, State.ESTOP})


class Event(IntEnum):
    CONNECT = 0
    CHECK = 1  # the check passed
    EXPIRE = 2  # the last check is older than CHECK_VALID_S
    ARM = 3
    START = 4
    TAKE = 5  # an operator takes over
    RELEASE = 6  # the operator ends the takeover
    FINISH = 7  # the task is finished; no reason is latched, even if the plan has just run out
    STOP = 8  # a reason that leads to SOFT_STOP, see `Reason`
    STANDSTILL = 9  # the goals have come to rest
    FRESH_PLAN = 10  # the plan had run out, and a new plan came before standstill
    FAULT = 11
    ESTOP = 12
    RE_ARM = 13  # by an operator, once the cause is gone
    LIMP = 14  # torque off, by an operator
    CLOSE = 15


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.DISCONNECTED, Event.CONNECT): State.CONNECTED,
    (State.CONNECTED, Event.CHECK): State.CHECKED,
    (State.CHECKED, Event.CHECK): State.CHECKED,
    (State.CHECKED, Event.EXPIRE): State.CONNECTED,
    (State.CHECKED, Event.ARM): State.HOLD,
    # torque may still be on since a fault or an earlier run
    (State.CONNECTED, Event.LIMP): State.CONNECTED,
    (State.CHECKED, Event.LIMP): State.CONNECTED,
    (State.HOLD, Event.START): State.RUNNING,
    (State.HOLD, Event.TAKE): State.TAKEOVER,
    (State.HOLD, Event.RE_ARM): State.HOLD,
    (State.HOLD, Event.STOP): State.HOLD,
    (State.HOLD, Event.LIMP): State.CONNECTED,
    (State.RUNNING, Event.TAKE): State.TAKEOVER,
    (State.RUNNING, Event.FINISH): State.SOFT_STOP,
    (State.RUNNING, Event.STOP): State.SOFT_STOP,
    (State.TAKEOVER, Event.RELEASE): State.SOFT_STOP,
    (State.TAKEOVER, Event.STOP): State.SOFT_STOP,
    (State.SOFT_STOP, Event.STOP): State.SOFT_STOP,
    (State.SOFT_STOP, Event.FINISH): State.SOFT_STOP,
    (State.SOFT_STOP, Event.FRESH_PLAN): State.RUNNING,
    (State.SOFT_STOP, Event.STANDSTILL): State.HOLD,
    (State.FAULT, Event.RE_ARM): State.CONNECTED,
    (State.FAULT, Event.LIMP): State.FAULT,
    (State.ESTOP, Event.RE_ARM): State.CONNECTED,
    (State.ESTOP, Event.LIMP): State.ESTOP,
    **{(state, Event.FAULT): State.FAULT for state in ARMED},
    **{(state, Event.ESTOP): State.ESTOP for state in (*ARMED, State.FAULT)},
    **{(state, Event.CLOSE): State.DISCONNECTED for state in State},
}


class Reason(IntEnum):
    """Reason why the robot stopped.

    The numbers and names must never change: recordings contain them. Each number is a bit position.
    """

    TARGET_NOT_FINITE = 0
    CLOCK_JUMPED = 1
    READING_STALE = 2
    SERVO_ERROR = 3
    POSITION_MEASURED = 4
    VELOCITY_MEASURED = 5
    CURRENT_HIGH = 6
    CURRENT_EXTREME = 7
    PLAN_EXHAUSTED = 8
    WATCHDOG_SILENT = 9
    CLIPPED_TOO_LONG = 10
    REQUEST_EXTREME = 11
    TRACKING_ERROR = 12
    WORKSPACE = 13
    DEADLINES_MISSED = 14
    BUS_LOST = 15
    SENT_DIFFERS = 16
    TELEOP_LOST = 17
    RECORDER_LOST = 18
    ESTOP_PRESSED = 19
    CONSOLE_LOST = 20
    ENCODER_LEAPT = 21
    SENSOR_STUCK = 22
    SUSPENDED = 23
    ADAPTER_INVALID = 24

    @property
    def text(self) -> str:
        """Return the reason in words, for the status line."""
        return _TEXTS[self]

    def describe(self, joints: Sequence[str]) -> str:
        """Return the text with "a joint" replaced by the joints that caused the stop, if any."""
        return (
            self.text.replace("a joint", f"joint {', '.join(joints)}", 1) if joints else self.text
        )


_TEXTS = {
    Reason.TARGET_NOT_FINITE: "the target contains NaN or infinite numbers",
    Reason.CLOCK_JUMPED: "the clock stood still, went backward or jumped",
    Reason.READING_STALE: "the robot's readings are too old",
    Reason.SERVO_ERROR: "a joint reports an error, has lost torque or does not answer",
    Reason.POSITION_MEASURED: (
        "a joint was measured outside its limits by more than its tracking error"
    ),
    Reason.VELOCITY_MEASURED: "a joint was measured above its velocity limit",
    Reason.CURRENT_HIGH: "a joint draws more current than its limit",
    Reason.CURRENT_EXTREME: "a joint draws more than 1.5 times its current limit",
    Reason.PLAN_EXHAUSTED: "the plan ended before inference sent another",
    Reason.WATCHDOG_SILENT: "the watchdog process is silent",
    Reason.CLIPPED_TOO_LONG: "the targets were beyond the limits for too long",
    Reason.REQUEST_EXTREME: "the target is far beyond the limits",
    Reason.TRACKING_ERROR: "a joint does not follow its goal: it may be blocked",
    Reason.WORKSPACE: "the next step would leave the workspace",
    Reason.DEADLINES_MISSED: "too many deadlines were missed",
    Reason.BUS_LOST: "the robot does not answer",
    Reason.SENT_DIFFERS: "the command that was sent differs from the goal",
    Reason.TELEOP_LOST: "the takeover device is silent",
    Reason.RECORDER_LOST: "the recorder is gone",
    Reason.ESTOP_PRESSED: "the emergency stop was pressed",
    Reason.CONSOLE_LOST: "the terminal's process is silent: no key would stop the robot",
    Reason.ENCODER_LEAPT: "the encoder of a joint jumped, so its zero may be wrong",
    Reason.SENSOR_STUCK: (
        "the measurements of a joint do not change while its goals move: its sensor is stuck, or "
        "it is blocked"
    ),
    Reason.SUSPENDED: "the computer was suspended",
    Reason.ADAPTER_INVALID: "the robot's adapter failed, or returned an invalid value",
}

FAULTS = frozenset(
    {
        Reason.SERVO_ERROR,
        Reason.VELOCITY_MEASURED,
        Reason.CURRENT_EXTREME,
        Reason.BUS_LOST,
        Reason.SENT_DIFFERS,
        Reason.ENCODER_LEAPT,
        Reason.SENSOR_STUCK,
        Reason.SUSPENDED,
        Reason.ADAPTER_INVALID,
    }
)


# Reasons that may be a collision. Once the robot is at rest, its goals move to the measured
# positions. SENSOR_STUCK is one of them: a servo that measures no motion keeps pushing.
CONTACTS = frozenset(
    {
        Reason.SENSOR_STUCK,
        Reason.VELOCITY_MEASURED,
        Reason.CURRENT_HIGH,
        Reason.CURRENT_EXTREME,
        Reason.TRACKING_ERROR,
        Reason.ESTOP_PRESSED,
    }
)


def event_of(reason: Reason) -> Event:
    """Return the event that a reason triggers."""
    if reason is Reason.ESTOP_PRESSED:
        return Event.ESTOP
    return Event.FAULT if reason in FAULTS else Event.STOP


class Refused(Exception):
    """Raised for a transition that `TRANSITIONS` does not list, or whose condition is not met."""


@dataclass
class Machine:
    """State machine of a run. Nothing else changes the state."""

    state: State = State.DISCONNECTED
    latched: Reason | None = None  # why the robot stopped; cleared by an operator
    pending: Reason | None = None  # why the robot is stopping; becomes `latched` at standstill
    checked_ns: int = 0  # time of the last passed check

    def after(self, event: Event, now_ns: int, reason: Reason | None = None) -> State:
        """Return the state that `fire` would lead to. Raises Refused if there is none."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise Refused(f"{event.name.lower()} is refused while {self.state.name}")
        if event in (Event.STOP, Event.FAULT, Event.ESTOP):
            if reason is None or event_of(reason) is not event:
                raise Refused(f"{event.name.lower()} needs a reason that leads to it")
        elif event is Event.RE_ARM:
            raise Refused("only an operator can re-arm: use Machine.re_arm")
        if event in (Event.START, Event.TAKE, Event.LIMP) and self.state is State.HOLD:
            self._refuse_latched(event)
        if event is Event.ARM and now_ns - self.checked_ns > CHECK_VALID_S * 1e9:
            raise Refused(f"the check is older than {CHECK_VALID_S:.0f} s: check again")
        if event is Event.FRESH_PLAN and self.pending is not Reason.PLAN_EXHAUSTED:
            raise Refused("a new plan resumes motion only if the last one ran out")
        return after

    def fire(self, event: Event, now_ns: int, reason: Reason | None = None) -> State:
        """Change the state. Raises Refused, without a change, if the transition is not listed.

        reason: required with STOP, FAULT and ESTOP.
        """
        after = self.after(event, now_ns, reason)
        if event is Event.CHECK:
            self.checked_ns = now_ns
        if after in (State.FAULT, State.ESTOP) and event is not Event.LIMP:
            self.latched, self.pending = reason, None
        elif event is Event.STOP and self.state is State.HOLD:
            self.latched = self.latched if self.latched is not None else reason
        elif event is Event.STOP:
            # Keep the first cause. Only a plan that ran out is replaced by a later cause.
            if self.pending in (None, Reason.PLAN_EXHAUSTED):
                self.pending = reason
        elif event is Event.STANDSTILL:
            self.latched, self.pending = self.pending, None
        elif event is Event.FRESH_PLAN or (
            event is Event.FINISH and self.pending is Reason.PLAN_EXHAUSTED
        ):
            self.pending = None
        self.state = after
        return after

    def re_arm(self, typed: str, *, present: Sequence[Reason], now_ns: int) -> State:
        """Clear the latched reason, in HOLD, FAULT or ESTOP.

        Args:
            typed: the text that the operator typed; must be `RE_ARM`.
            present: reasons to stop that still exist.

        Raises Refused if `typed` differs, if a reason is present, or in another state.
        """
        after = TRANSITIONS.get((self.state, Event.RE_ARM))
        if after is None:
            raise Refused(f"re-arming is refused while {self.state.name}")
        if typed != RE_ARM:
            raise Refused(f"to re-arm, type {RE_ARM!r}")
        if present:
            raise Refused(f"still present: {'; '.join(reason.text for reason in present)}")
        self.latched, self.state = None, after
        self.checked_ns = 0
        return after

    def _refuse_latched(self, event: Event) -> None:
        if self.latched is not None and event is not Event.LIMP:
            raise Refused(f"latched: {self.latched.text}; re-arm first")

"""Interface of a robot to the control loop: a specification, readings, commands and seven calls.

All values are in SI units and radians: a joint's `q` is in rad, or in m if it slides. Servo ticks
and degrees stay inside adapters. Times are CLOCK_MONOTONIC in integer nanoseconds. Joints are
identified by name. Arrays over joints, [J], are float64 and in the order of `RobotSpec.joints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Literal, Protocol

import numpy as np


class Code(IntEnum):
    """Result code of a call on the bus. The loop gets codes, not exceptions."""

    OK = 0
    TIMEOUT = 1  # at least one joint sent no complete answer within `RobotSpec.timeout_s`
    CORRUPT = 2  # answers came in that time, but none with a valid checksum
    LOST = 3  # the port, process or connection is gone
    REFUSED = 4  # the robot answered but did not execute the command


class Status(IntFlag):
    """Status flags of a joint; 0: no problem."""

    MISSING = 1  # it did not answer this request
    TORQUE_OFF = 2  # although armed: it rebooted, or its protection switched torque off
    OVER_TEMPERATURE = 4
    OVERLOAD = 8
    VOLTAGE = 16
    ENCODER = 32
    WATCHDOG = 64  # the servo's watchdog fired: it ignores goals
    ERROR = 128  # any other hardware error


@dataclass(frozen=True)
class Limits:
    """Limits per joint, [J]. NaN: not declared, which `robot check` refuses."""

    position_low: np.ndarray  # rad or m
    position_high: np.ndarray
    velocity: np.ndarray  # rad/s or m/s, > 0, of commands
    acceleration: np.ndarray  # rad/s² or m/s²
    jerk: np.ndarray  # rad/s³ or m/s³
    stop_acceleration: np.ndarray  # for every stop, >= acceleration
    stop_jerk: np.ndarray  # >= jerk
    tracking_error: np.ndarray  # rad or m, maximum distance of goal and measured position
    current_a: np.ndarray  # A, mean over 50 ms; infinite if the joint measures no current

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Return (limit, index of the joint) for every limit that is not declared."""
        return tuple(
            (f.name, int(i)) for f in fields(self) for i in np.nonzero(np.isnan(self[f.name]))[0]
        )

    def __getitem__(self, name: str) -> np.ndarray:
        value: np.ndarray = getattr(self, name)
        return value


@dataclass(frozen=True)
class Workspace:
    """Box that the robot must not leave: it contains every listed site, each a sphere."""

    model: Path  # MJCF with the robot's joint names
    points: tuple[str, ...]  # sites of the model: tool, elbow and other parts that may collide
    low_m: np.ndarray  # [3], in the model's frame
    high_m: np.ndarray  # [3]


@dataclass(frozen=True)
class Channel:
    """Additional measurement of a robot, such as an object's position or a gripper's force."""

    shape: tuple[int, ...]
    unit: str  # m, N, A, K, or 1


@dataclass(frozen=True)
class Grip:
    """Grip of a joint that is a gripper. Contact while it closes is not a fault."""

    current_a: float  # A, maximum current for holding
    squeeze: float  # rad or m, maximum distance of the goal beyond the measured position
    closes: Literal[-1, 1]  # it closes toward its lowest (-1) or highest (1) position


@dataclass(frozen=True)
class RobotSpec:
    """Specification of a robot. It can be read while the robot is disconnected."""

    name: str
    joints: tuple[str, ...]
    units: tuple[Literal["rad", "m"], ...]  # [J], of `q`
    limits: Limits
    resolution: np.ndarray  # [J] rad or m: rounding of a goal; 0: none
    rate_hz: float  # nominal control rate
    timeout_s: float  # maximum duration of `read` and `command`
    max_reading_age_s: float  # an older reading stops the robot
    # behavior without commands: servos keep their last goal, a controller stops the robot, or
    # nothing holds it
    hold: Literal["goal", "controller", "none"] = "goal"
    own_watchdog_s: float | None = (
        None  # the robot stops by itself after this time without a command
    )
    workspace: Workspace | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    # joint -> limits, by their names in a robot's file, that may be outside the plausible range
    unusual: Mapping[str, Sequence[str]] = field(default_factory=dict)
    grips: Mapping[str, Grip] = field(default_factory=dict)  # joint -> grip, for grippers


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of one transaction. If `code` is not OK, they are the last valid ones."""

    code: Code
    seq: int  # number of the measurement; repeated if there is no new one
    request_ns: int  # start of the transaction
    middle_ns: int  # time of the measurement
    end_ns: int  # end of the transaction
    q: np.ndarray  # [J] rad or m
    dq: np.ndarray  # [J] rad/s or m/s
    current_a: np.ndarray  # [J] A; NaN: not measured
    status: np.ndarray  # [J] int, bits of Status
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    channels_ns: int | None = None  # time of the oldest channel; None: that of the joints


@dataclass(frozen=True, slots=True)
class Command:
    """Goals for all joints."""

    seq: int
    time_ns: int  # time of the tick
    q: np.ndarray  # [J] rad or m; read-only, valid only during the call


@dataclass(frozen=True, slots=True)
class Sent:
    """Command that was sent, after rounding to the robot's resolution."""

    code: Code
    time_ns: int
    q: np.ndarray  # [J] rad or m; within `resolution` of the command, never outside the limits


class Robot(Protocol):
    """Protocol of an adapter. An adapter implements it without inheriting from it.

    `connect` and `arm` may raise UserError with one sentence; nothing has moved then. Once armed,
    no call raises: `read` and `command` return a code within `spec.timeout_s`.

    The watchdog process has a second instance, created with the same arguments and connected at the
    same time. It calls only `connect`, `hold` and `close`. So `connect` must neither lock the port
    nor write to it.
    """

    @property
    def spec(self) -> RobotSpec: ...

    def connect(self) -> None:
        """Open the port and verify the robot. No torque, no motion."""

    def arm(self) -> Reading:
        """Set each goal to the measured position, switch torque on, read back. Nothing moves."""

    def read(self) -> Reading: ...

    def command(self, command: Command) -> Sent: ...

    def hold(self, reason: str) -> Sequence[str]:
        """Set each goal to the measured position, once; torque stays on. Return the joints missed.

        It is called when control has failed, and must use whatever still works. The loop itself
        stops the robot by commands.
        """

    def disarm(self) -> None:
        """Switch torque off: an arm drops. Only on an operator's request, or if holding is unsafe.

        Raises UserError with the joints that may still hold, if this is known.
        """

    def close(self) -> None:
        """Close the connection, in any state, any number of times. Torque stays as it is."""

"""Interface between a robot's adapter and the control loop: specification, readings and commands.

All values are in SI units and radians: a joint's `q` is in rad, or in m if the joint slides. Only
adapters use servo ticks and degrees. Times are in integer nanoseconds of CLOCK_MONOTONIC. Joints
are identified by name. Arrays over joints, [J], are float64 and in the order of `RobotSpec.joints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Literal, Protocol

import numpy as np


class Code(IntEnum):
    """Result code of `read` and `command`. They return codes instead of raising exceptions."""

    OK = 0
    TIMEOUT = 1  # at least one joint sent no complete answer within `RobotSpec.timeout_s`
    CORRUPT = 2  # answers came within this time, but none had a valid checksum
    LOST = 3  # the port, process or connection is gone
    REFUSED = 4  # the robot answered but did not execute the command


class Status(IntFlag):
    """Status flags of a joint; 0: no problem."""

    MISSING = 1  # the joint did not answer this request
    TORQUE_OFF = 2  # the robot is armed, but the joint rebooted or protected itself
    OVER_TEMPERATURE = 4
    OVERLOAD = 8
    VOLTAGE = 16
    ENCODER = 32
    WATCHDOG = 64  # the servo's watchdog fired, so the servo ignores goals
    ERROR = 128  # any other hardware error


@dataclass(frozen=True)
class Limits:
    """Limits per joint, [J]. NaN: the limit is not declared; `robot check` refuses this."""

    position_low: np.ndarray  # rad or m
    position_high: np.ndarray
    velocity: np.ndarray  # rad/s or m/s, > 0, limit of the goals
    acceleration: np.ndarray  # rad/s² or m/s², limit of the goals
    jerk: np.ndarray  # rad/s³ or m/s³, limit of the goals
    stop_acceleration: np.ndarray  # limit during a stop, >= acceleration
    stop_jerk: np.ndarray  # limit during a stop, >= jerk
    tracking_error: np.ndarray  # rad or m, maximum distance between goal and measured position
    current_a: np.ndarray  # A, mean over 50 ms; infinite if the joint measures no current

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Return (name of the limit, index of the joint) for every limit that is not declared."""
        return tuple(
            (f.name, int(i)) for f in fields(self) for i in np.nonzero(np.isnan(self[f.name]))[0]
        )

    def __getitem__(self, name: str) -> np.ndarray:
        value: np.ndarray = getattr(self, name)
        return value


@dataclass(frozen=True)
class Workspace:
    """Box that must contain all listed sites of the robot. Each site is a sphere."""

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
    """Grip of a gripper joint. Contact while the gripper closes is not a fault."""

    current_a: float  # A, maximum current for holding
    squeeze: float  # rad or m, maximum distance of the goal beyond the measured position
    closes: Literal[-1, 1]  # direction of closing: to the lowest (-1) or highest (1) position


@dataclass(frozen=True)
class RobotSpec:
    """Specification of a robot. It can be read while the robot is disconnected."""

    name: str
    joints: tuple[str, ...]
    units: tuple[Literal["rad", "m"], ...]  # [J], of `q`
    limits: Limits
    resolution: np.ndarray  # [J] rad or m, step to which goals are rounded; 0: no rounding
    rate_hz: float  # nominal control rate
    timeout_s: float  # maximum duration of `read` and of `command`
    max_reading_age_s: float  # the robot stops if its last reading is older than this
    # what happens without commands. goal: servos keep their last goal; controller: a controller
    # stops the robot; none: nothing holds the robot
    hold: Literal["goal", "controller", "none"] = "goal"
    # the robot stops by itself after this time without a command; None: it does not
    own_watchdog_s: float | None = None
    workspace: Workspace | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    # joint -> limits that may be outside the plausible range, by their names in a robot's file
    unusual: Mapping[str, Sequence[str]] = field(default_factory=dict)
    grips: Mapping[str, Grip] = field(default_factory=dict)  # joint -> grip, for grippers


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of one transaction, or the last valid measurements if `code` is not OK."""

    code: Code
    seq: int  # number of the measurement; unchanged if there is no new measurement
    request_ns: int  # start of the transaction
    middle_ns: int  # time of the measurement
    end_ns: int  # end of the transaction
    q: np.ndarray  # [J] rad or m
    dq: np.ndarray  # [J] rad/s or m/s
    current_a: np.ndarray  # [J] A; NaN: not measured
    status: np.ndarray  # [J] int, bits of Status
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    channels_ns: int | None = None  # time of the oldest channel; None: `middle_ns`


@dataclass(frozen=True, slots=True)
class Command:
    """Goals for all joints. A goal is a position that the safety check has approved."""

    seq: int
    time_ns: int  # time of the tick
    q: np.ndarray  # [J] rad or m; read-only, valid only during the call


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of `command`: the goals as they were sent."""

    code: Code
    time_ns: int  # time at which the command was sent
    # [J] rad or m; differs from the command by at most `resolution`, and is inside the limits
    q: np.ndarray


class Robot(Protocol):
    """Protocol of an adapter. An adapter implements it without inheriting from it.

    `connect` and `arm` may raise a UserError of one sentence. They must not have moved the robot in
    this case. Once the robot is armed, no call raises. `read` and `command` then return a code
    within `spec.timeout_s`.

    The watchdog process creates a second instance with the same arguments. Both instances are
    connected at the same time. The watchdog calls only `connect`, `hold` and `close`. So `connect`
    must neither lock the port nor write to it.
    """

    @property
    def spec(self) -> RobotSpec: ...

    def connect(self) -> None:
        """Open the port and verify the robot. Do not switch torque on, and move nothing."""

    def arm(self) -> Reading:
        """Set each goal to the measured position, switch torque on, and read. Move nothing."""

    def read(self) -> Reading: ...

    def command(self, command: Command) -> Sent: ...

    def hold(self, reason: str) -> Sequence[str]:
        """Set each goal to the measured position, once. Torque stays on.

        Return the joints that were not reached. This is called when control has failed, so it must
        use whatever still works. The control loop itself stops the robot by commands instead.
        """

    def disarm(self) -> None:
        """Switch torque off. The arm drops.

        This is called only on an operator's request, or if holding is unsafe.

        Raises a UserError that names the joints that may still hold, if this is known.
        """

    def close(self) -> None:
        """Close the connection. Torque stays as it is. Works in any state and repeatedly."""

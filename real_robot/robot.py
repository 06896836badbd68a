"""What a robot is to the control loop: a description, readings, commands and seven calls.

SI units and radians throughout: a joint's `q` is in rad, or in m where it slides; servo ticks and
degrees stay inside adapters. Times are CLOCK_MONOTONIC in integer nanoseconds. Joints are told
apart by name; arrays over joints, [J], are float64 and in the order of `RobotSpec.joints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Literal, Protocol

import numpy as np


class Code(IntEnum):
    """How a call on the bus went: the loop gets numbers, not exceptions."""

    OK = 0
    TIMEOUT = 1  # no whole answer within `RobotSpec.timeout_s`, from at least one joint
    CORRUPT = 2  # answers came, and none passed its checksum in that time
    LOST = 3  # the port, process or connection is gone
    REFUSED = 4  # the robot answered and did not do it


class Status(IntFlag):
    """What a joint says of itself; 0 is well."""

    MISSING = 1  # it did not answer this time
    TORQUE_OFF = 2  # although armed: it rebooted, or protected itself
    OVER_TEMPERATURE = 4
    OVERLOAD = 8
    VOLTAGE = 16
    ENCODER = 32
    WATCHDOG = 64  # its own watchdog fired: goals are ignored
    ERROR = 128  # any other hardware error


@dataclass(frozen=True)
class Limits:
    """Per joint, [J]; NaN where nobody has declared one, which `robot check` refuses."""

    position_low: np.ndarray  # rad or m
    position_high: np.ndarray
    velocity: np.ndarray  # rad/s or m/s, > 0, of what is commanded
    acceleration: np.ndarray  # rad/s² or m/s²
    jerk: np.ndarray  # rad/s³ or m/s³
    stop_acceleration: np.ndarray  # of every stop, >= acceleration
    stop_jerk: np.ndarray  # >= jerk
    tracking_error: np.ndarray  # rad or m that a goal may be away from where the joint is
    current_a: np.ndarray  # A, its mean over 50 ms; infinite where the joint measures none

    def missing(self) -> tuple[tuple[str, int], ...]:
        """(limit, joint's index) of all that nobody has declared."""
        return tuple(
            (f.name, int(i)) for f in fields(self) for i in np.nonzero(np.isnan(self[f.name]))[0]
        )

    def __getitem__(self, name: str) -> np.ndarray:
        value: np.ndarray = getattr(self, name)
        return value


@dataclass(frozen=True)
class Workspace:
    """A box that every listed site of the robot, a sphere, stays in, by forward kinematics."""

    model: Path  # MJCF; its joints are found by the robot's names for them
    points: tuple[str, ...]  # sites of the model: tool, elbow, whatever may collide
    low_m: np.ndarray  # [3], in the model's frame
    high_m: np.ndarray  # [3]


@dataclass(frozen=True)
class Channel:
    """A further thing that a robot measures, such as a tracker's puck or a gripper's force."""

    shape: tuple[int, ...]
    unit: str  # m, N, A, K, or 1


@dataclass(frozen=True)
class Grip:
    """How a joint that is a gripper holds: contact while it closes is no fault."""

    current_a: float  # A that it holds with at most
    squeeze: float  # rad or m that its goal is beyond where it is measured, at most
    closes: Literal[-1, 1]  # toward its lowest or its highest position


@dataclass(frozen=True)
class RobotSpec:
    """Readable while the robot is disconnected."""

    name: str
    joints: tuple[str, ...]
    units: tuple[Literal["rad", "m"], ...]  # [J], of `q`
    limits: Limits
    resolution: np.ndarray  # [J] rad or m: what a goal may be rounded by; 0 where it is exact
    rate_hz: float  # the control rate it is made for
    timeout_s: float  # `read` and `command` return within this
    max_reading_age_s: float  # an older reading stops the robot
    # what it does when commands stay away: servos keep their last goal, a controller stops it by
    # itself, or nothing holds it
    hold: Literal["goal", "controller", "none"] = "goal"
    own_watchdog_s: float | None = None  # it stops by itself after so long without a command
    workspace: Workspace | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    # joint -> its limits, as a robot's file calls them, outside the plausible range on purpose
    unusual: Mapping[str, Sequence[str]] = field(default_factory=dict)
    grips: Mapping[str, Grip] = field(default_factory=dict)  # of the joints that are grippers


@dataclass(frozen=True, slots=True)
class Reading:
    """One transaction's worth of measurements. Where `code` is not OK, values are the last ones."""

    code: Code
    seq: int  # of the measurement: a robot that has nothing new repeats it
    request_ns: int  # the transaction's begin
    middle_ns: int  # and when its values are taken to be true: of the last ones, when they were
    end_ns: int
    q: np.ndarray  # [J] rad or m
    dq: np.ndarray  # [J] rad/s or m/s
    current_a: np.ndarray  # [J] A; NaN where not measured
    status: np.ndarray  # [J] int, of Status
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    channels_ns: int | None = None  # when the oldest of these was true; None: with the joints


@dataclass(frozen=True, slots=True)
class Command:
    """A goal for every joint."""

    seq: int
    time_ns: int  # of the tick
    q: np.ndarray  # [J] rad or m, read-only and reused: valid during the call


@dataclass(frozen=True, slots=True)
class Sent:
    """What left the host, after rounding to what the robot can be told."""

    code: Code
    time_ns: int
    q: np.ndarray  # [J] rad or m; within `resolution` of the command, never outside the limits


class Robot(Protocol):
    """Structural: an adapter has these and inherits nothing.

    `connect` and `arm` may raise UserError, one sentence; nothing has moved then. Once armed,
    nothing raises: `read` and `command` answer with a code, within `spec.timeout_s`.

    The watchdog process has an instance of its own, made by the same call with the same arguments
    and connected beside the first; it only ever calls `connect`, `hold` and `close`. `connect`
    must therefore neither lock the port nor write.
    """

    @property
    def spec(self) -> RobotSpec: ...

    def connect(self) -> None:
        """Opens the port and verifies who is there. No torque, no motion."""

    def arm(self) -> Reading:
        """Reads, sets goal := present, switches torque on, reads back. Nothing moves."""

    def read(self) -> Reading: ...

    def command(self, command: Command) -> Sent: ...

    def hold(self, reason: str) -> Sequence[str]:
        """Goal := present, once, by whatever means still work; torque stays on. For a control
        path that is gone: the loop itself decelerates by commands.

        Returns the names of the joints that it did not reach."""

    def disarm(self) -> None:
        """Torque off: an arm drops. Only for a person who asked, or where holding is the hazard.

        Raises UserError naming the joints that may still hold, where it can tell.
        """

    def close(self) -> None:
        """In any state, any number of times. Holds: torque stays as it is."""

"""Limits and rules that apply to a run: the robot's limits, tightened by the user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np

from offline_rl.utils.options import Checked, Range
from real_robot.robot import Grip, Limits, RobotSpec
from real_robot.safety.stopping import duration_s

LOWER = ("position_low",)  # limits for which a larger number is stricter
# Limits that only the robot's file may set, so that no user can make a stop softer.
STOPS = ("stop_acceleration", "stop_jerk")
# A larger position limit is probably in degrees. Joints that turn several times are not supported.
FURTHEST_RAD = 7.0
FURTHEST_M = 20.0  # a larger position limit is probably in millimeters
SMALLEST = 1e-6  # minimum of every limit except positions; a smaller number is a mistake


@dataclass(frozen=True)
class Plausible:
    """Largest plausible value of a limit, and the probable unit of a larger value."""

    max_value: float
    unit: str
    wrong_unit: str  # probable unit of a larger value
    factor: float  # converts from `wrong_unit` to `unit`


def _scale(unit: str, position: float, velocity: float, tracking: float) -> dict[str, Plausible]:
    """Return the plausible value of each limit of a joint whose positions are in `unit`."""
    wrong_unit, factor = ("degrees", np.pi / 180) if unit == "rad" else ("millimeters", 1e-3)
    max_values = {
        "position_low": (position, unit),
        "position_high": (position, unit),
        "velocity": (velocity, f"{unit}/s"),
        "acceleration": (300.0, f"{unit}/s²"),
        "jerk": (30_000.0, f"{unit}/s³"),
        "stop_acceleration": (1_000.0, f"{unit}/s²"),
        "stop_jerk": (100_000.0, f"{unit}/s³"),
        "tracking_error": (tracking, unit),
    }
    table = {
        name: Plausible(x, limit_unit, wrong_unit, factor)
        for name, (x, limit_unit) in max_values.items()
    }
    return table | {"current_a": Plausible(50.0, "A", "mA", 1e-3)}


# Fast arms reach 11 rad/s, 40 rad/s² and 10,000 rad/s³. Stops may brake several times as hard.
PLAUSIBLE = {"rad": _scale("rad", FURTHEST_RAD, 12.0, 1.0), "m": _scale("m", FURTHEST_M, 5.0, 0.2)}
# name of a limit in `Limits` -> name in a robot's file, where they differ
FILE_NAMES = {"position_low": "position", "position_high": "position", "current_a": "current"}
Upto1 = Annotated[float, Range(high=1, above=0)]
Upto10 = Annotated[float, Range(high=10, above=0)]


@dataclass(frozen=True)
class Rules(Checked):
    """Rules that stop a robot, in addition to its limits.

    The defaults are for position servos on a bench. A rule may be changed within its range, but not
    switched off. Raises ValueError for a number outside the range.
    """

    # stop if the goals miss their targets for longer than this; ramps to a target do not count
    trip_after_s: Upto10 = 0.4
    # stop if a target moves faster than this multiple of the velocity limit
    trip_ratio: Annotated[float, Range(high=1000, above=1)] = 200.0
    # stop if the measured velocity exceeds this multiple of the velocity limit
    velocity_ratio: Annotated[float, Range(1, 2)] = 1.2
    # a goal misses its target if they differ by more than this fraction of tracking_error
    held_back: Upto1 = 0.1
    # count of failed readings at which the bus counts as lost
    bus_faults: Annotated[float, Range(1, 5)] = 2.0
    bus_forgives: Upto1 = 0.05  # a good reading reduces the count of failed readings by this
    current_window_s: Upto1 = 0.05  # time constant of the low-pass filter of the measured current
    # a current above this multiple of the limit is a FAULT instead of a soft stop
    current_extreme: Annotated[float, Range(high=2, above=1)] = 1.5
    # a sensor counts as stuck if the goals move for this time and the measurements do not change
    stuck_s: Annotated[float, Range(0.02, 0.5)] = 0.1
    # stop if more periods than this lie between two ticks: the clock has jumped
    clock_step_periods: Annotated[float, Range(high=20, above=1)] = 5.0
    # stop if the watchdog process has sent no heartbeat for this time
    watchdog_age_s: Annotated[float, Range(0.02, 0.5)] = 0.08
    plan_age_s: Upto10 = 1.0  # a chunk is dropped if its observation is older than this


@dataclass(frozen=True)
class Envelope:
    """Limits and rules for the safety check, with one list of floats per limit, [J]."""

    joints: tuple[str, ...]
    period_s: float
    low: list[float]
    high: list[float]
    velocity: list[float]
    acceleration: list[float]
    jerk: list[float]
    stop_acceleration: list[float]
    stop_jerk: list[float]
    tracking_error: list[float]
    current_a: list[float]
    resolution: list[float]
    max_age_ns: int
    rules: Rules = field(default_factory=Rules)
    # q -> [6N] m: lower and upper bounds of the N spheres at the workspace's points; None: there is
    # no workspace
    points: Callable[[Sequence[float]], Sequence[float]] | None = None
    box_low_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    box_high_m: tuple[float, float, float] = (0.0, 0.0, 0.0)

    grips: list[Grip | None] = field(default_factory=list)  # [J]; None: the joint is no gripper
    # [J] rad or m; upper bound of the distance that a joint moves while it stops
    room: list[float] = field(default_factory=list)
    scratch: list[float] = field(default_factory=list)  # [J], reused by the check

    def __post_init__(self) -> None:
        limits = (self.velocity, self.acceleration, self.jerk, self.stop_acceleration)
        for values in (*limits, self.stop_jerk, self.tracking_error, self.current_a):
            if not min(values) >= SMALLEST:
                raise ValueError(f"a limit is {min(values):g}, expected at least {SMALLEST:g}")
        self.grips.extend([None] * (len(self.joints) - len(self.grips)))
        # The longest stop begins at the velocity limit. It first reduces the acceleration to 0 and
        # then decelerates.
        for v, a, j in zip(self.velocity, self.acceleration, self.jerk, strict=True):
            self.room.append(v * (2 * a / j) + v / 2 * (v / a + a / j))

    @property
    def longest_stop_s(self) -> float:
        """Duration of the slowest joint's hardest stop, from full velocity and acceleration."""
        motion = (self.velocity, self.acceleration)
        stops = (self.stop_acceleration, self.stop_jerk)
        return max(duration_s(*each) for each in zip(*motion, *stops, strict=True))

    def inside(self, q: Sequence[float]) -> bool:
        """Return True if every point of the robot at `q` is in the workspace."""
        if self.points is None:
            return True
        points = self.points(q)
        for i in range(len(points)):
            if not self.box_low_m[i % 3] <= points[i] <= self.box_high_m[i % 3]:
                return False
        return True


def tightest(robot: Limits, *others: Limits) -> Limits:
    """Return the strictest of each limit. Undeclared limits (NaN) are ignored."""
    merged: dict[str, Any] = {}
    for f in fields(Limits):
        values = [limits[f.name] for limits in (robot, *others)]
        if f.name in STOPS:
            merged[f.name] = robot[f.name]
        else:
            merged[f.name] = (np.fmax if f.name in LOWER else np.fmin).reduce(values)
    return Limits(**merged)


def limit_problems(
    joints: Sequence[str],
    limits: Limits,
    units: Sequence[str] = (),
    unusual: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return a sentence for each problem of the limits; empty if there is none.

    Args:
        units: unit of each joint, rad or m. If given, a limit outside `PLAUSIBLE` is a problem.
        unusual: joint -> limits that may be outside `PLAUSIBLE`.
    """
    problems = [
        f"joint {joints[i]} has no limit {name}: declare it" for name, i in limits.missing()
    ]
    if problems:
        return problems
    for i, joint in enumerate(joints):
        if not limits.position_low[i] < limits.position_high[i]:
            problems.append(
                f"joint {joint}: position_low {limits.position_low[i]:g} is not below "
                f"position_high {limits.position_high[i]:g}"
            )
        for f in fields(Limits):
            value = limits[f.name][i]
            if f.name.startswith("position"):
                invalid, expected = not np.isfinite(value), "a finite number"
            else:
                invalid = not value > 0 or (f.name != "current_a" and not np.isfinite(value))
                expected = "a positive number"
            if invalid:
                problems.append(f"joint {joint}: {f.name} is {value:g}, expected {expected}")
            elif not f.name.startswith("position") and value < SMALLEST:
                problems.append(
                    f"joint {joint}: {f.name} is {value:g}, expected at least {SMALLEST:g}. Limits "
                    "are in rad, m, s and A"
                )
            elif units and FILE_NAMES.get(f.name, f.name) not in (unusual or {}).get(joint, ()):
                problems += _implausible(joint, f.name, value, PLAUSIBLE[units[i]][f.name])
        for stop, name in ((limits.stop_acceleration, "acceleration"), (limits.stop_jerk, "jerk")):
            if stop[i] < limits[name][i]:
                problems.append(
                    f"joint {joint}: stop_{name} {stop[i]:g} is below {name} {limits[name][i]:g}: "
                    f"a stop must be able to brake at least as hard as the motion. Lower {name}"
                )
    return problems


def _implausible(joint: str, name: str, value: float, plausible: Plausible) -> list[str]:
    """Return a sentence if a value is probably in another unit; otherwise an empty list.

    Infinite values are accepted.
    """
    if abs(value) <= plausible.max_value or np.isinf(value):
        return []
    key = FILE_NAMES.get(name, name)
    turn = ", more than a full turn" if plausible.unit == "rad" and abs(value) > 2 * np.pi else ""
    return [
        f"joint {joint}: {key} is {value:g} {plausible.unit}{turn}, expected at most "
        f"{plausible.max_value:g}: did you mean {plausible.wrong_unit}? Then write "
        f"{value * plausible.factor:.4g}. If {value:g} is right, add unusual: [{key}] to the joint"
    ]


def envelope(
    spec: RobotSpec,
    limits: Limits,
    rate_hz: float,
    rules: Rules | None = None,
    points: Callable[[Sequence[float]], Sequence[float]] | None = None,
) -> Envelope:
    """Return the envelope for control at `rate_hz`. The limits must be merged and valid."""
    box = spec.workspace
    return Envelope(
        joints=spec.joints,
        period_s=1 / rate_hz,
        low=limits.position_low.tolist(),
        high=limits.position_high.tolist(),
        velocity=limits.velocity.tolist(),
        acceleration=limits.acceleration.tolist(),
        jerk=limits.jerk.tolist(),
        stop_acceleration=limits.stop_acceleration.tolist(),
        stop_jerk=limits.stop_jerk.tolist(),
        tracking_error=limits.tracking_error.tolist(),
        current_a=limits.current_a.tolist(),
        resolution=spec.resolution.tolist(),
        max_age_ns=int(spec.max_reading_age_s * 1e9),
        rules=rules or Rules(),
        points=points if box is not None else None,
        scratch=[0.0] * len(spec.joints),
        grips=[spec.grips.get(joint) for joint in spec.joints],
        box_low_m=tuple(box.low_m.tolist()) if box is not None else (0.0, 0.0, 0.0),
        box_high_m=tuple(box.high_m.tolist()) if box is not None else (0.0, 0.0, 0.0),
    )


def limits_from(
    values: Mapping[str, Mapping[str, float]], joints: Sequence[str], robot: Limits | None = None
) -> Limits:
    """Convert the limits of a file, {limit: {joint: number}}; NaN where the file has none.

    robot: limits that the file may only tighten. Raises ValueError if a limit or a joint does not
    exist, or if a limit is looser than the robot's.
    """
    names = [f.name for f in fields(Limits)]
    arrays = {name: np.full(len(joints), np.nan) for name in names}
    for name, by_joint in values.items():
        if name not in arrays:
            raise ValueError(f"there is no limit {name!r}. The limits are {', '.join(names)}")
        for joint, value in by_joint.items():
            if joint not in joints:
                raise ValueError(
                    f"{name}: there is no joint {joint!r}. The joints are {', '.join(joints)}"
                )
            i = joints.index(joint)
            if type(value) not in (int, float) or value != value:
                raise ValueError(f"{name} of joint {joint} is {value!r}, expected a number")
            if robot is not None:
                _no_looser(name, joint, value, robot[name][i])
            arrays[name][i] = value
    return Limits(**arrays)


def _no_looser(name: str, joint: str, value: float, robot_value: float) -> None:
    if name in STOPS and value != robot_value:
        raise ValueError(
            f"{name} of joint {joint} is set in limits=…, but only the robot's file may set it"
        )
    if value < robot_value if name in LOWER else value > robot_value:
        raise ValueError(
            f"{name} of joint {joint} is {value:g}, looser than the robot's {robot_value:g}. Use a "
            "stricter number: a file can only tighten limits, in rad, m, s and A"
        )

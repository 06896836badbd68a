"""The limits in force: the tightest of what the robot, the bundle and the user's file declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np

from offline_rl.utils.options import Checked, Range
from real_robot.robot import Grip, Limits, RobotSpec
from real_robot.safety.stopping import duration_s

LOWER = ("position_low",)  # the tightest of these is the greatest; of all others, the least
STOPS = ("stop_acceleration", "stop_jerk")  # the robot's own: a stop is never made softer
FURTHEST_RAD = 7.0  # limits beyond are degrees, or a joint that winds up, which none may here
SMALLEST = 1e-6  # of any limit but positions, in its unit: a smaller one is a mistake
FURTHEST_M = 20.0  # limits beyond are millimeters


@dataclass(frozen=True)
class Plausible:
    """Largest value that a limit has on any robot arm known to us, and the unit that it hides."""

    most: float
    unit: str
    wrong: str  # the unit that a larger value is probably in
    factor: float  # from that unit to `unit`


def _scale(unit: str, position: float, velocity: float, tracking: float) -> dict[str, Plausible]:
    wrong, factor = ("degrees", np.pi / 180) if unit == "rad" else ("millimeters", 1e-3)
    most = {
        "position_low": (position, unit),
        "position_high": (position, unit),
        "velocity": (velocity, f"{unit}/s"),
        "acceleration": (300.0, f"{unit}/s²"),
        "jerk": (30_000.0, f"{unit}/s³"),
        "stop_acceleration": (1_000.0, f"{unit}/s²"),
        "stop_jerk": (100_000.0, f"{unit}/s³"),
        "tracking_error": (tracking, unit),
    }
    table = {name: Plausible(x, per, wrong, factor) for name, (x, per) in most.items()}
    return table | {"current_a": Plausible(50.0, "A", "mA", 1e-3)}


# Fast arms reach 11 rad/s, 40 rad/s² and 10,000 rad/s³. A stop may be several times as hard.
PLAUSIBLE = {"rad": _scale("rad", FURTHEST_RAD, 12.0, 1.0), "m": _scale("m", FURTHEST_M, 5.0, 0.2)}
# what a robot's file calls them
FILE_NAMES = {"position_low": "position", "position_high": "position", "current_a": "current"}
Upto1 = Annotated[float, Range(high=1, above=0)]
Upto10 = Annotated[float, Range(high=10, above=0)]


@dataclass(frozen=True)
class Rules(Checked):
    """What stops a robot besides its limits. Defaults hold for position servos on a bench.

    A rule may be changed within its range, but not switched off. Raises ValueError.
    """

    trip_after_s: Upto10 = 0.4  # goals that are out of reach for so long stop it; not a ramp
    # so do targets that move at so many times the limit of velocity
    trip_ratio: Annotated[float, Range(high=1000, above=1)] = 200.0
    velocity_ratio: Annotated[float, Range(1, 2)] = 1.2  # measured over commanded
    held_back: Upto1 = 0.1  # of tracking_error, by which a command misses what was asked
    # readings that fail before the bus counts as lost; each good one
    bus_faults: Annotated[float, Range(1, 5)] = 2.0
    bus_forgives: Upto1 = 0.05  # takes this much away
    current_window_s: Upto1 = 0.05  # of the low-pass that the current's limit is meant for
    current_extreme: Annotated[float, Range(high=2, above=1)] = 1.5  # of the limit, a fault
    # a joint whose goals move and whose measurements do not for so long has a stuck sensor
    stuck_s: Annotated[float, Range(0.02, 0.5)] = 0.1
    # a longer step is a jump
    clock_step_periods: Annotated[float, Range(high=20, above=1)] = 5.0
    # an older heartbeat of the watchdog process stops the robot
    watchdog_age_s: Annotated[float, Range(0.02, 0.5)] = 0.08
    plan_age_s: Upto10 = 1.0  # a chunk inferred from an older observation is dropped


@dataclass(frozen=True)
class Envelope:
    """Limits and rules as the check reads them: plain floats, one list a limit, [J]."""

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
    # [6N] m from q: what the workspace's points reach to; None where there is no workspace
    points: Callable[[Sequence[float]], Sequence[float]] | None = None
    box_low_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    box_high_m: tuple[float, float, float] = (0.0, 0.0, 0.0)

    grips: list[Grip | None] = field(default_factory=list)  # [J]; None: no gripper
    room: list[float] = field(default_factory=list)  # no stop is longer; see __post_init__
    scratch: list[float] = field(default_factory=list)  # [J]

    def __post_init__(self) -> None:
        limits = (self.velocity, self.acceleration, self.jerk, self.stop_acceleration)
        for values in (*limits, self.stop_jerk, self.tracking_error, self.current_a):
            if not min(values) >= SMALLEST:
                raise ValueError(f"a limit is {min(values):g}, expected at least {SMALLEST:g}")
        self.grips.extend([None] * (len(self.joints) - len(self.grips)))
        # from the greatest velocity, with the acceleration still to be taken back and then turned
        for v, a, j in zip(self.velocity, self.acceleration, self.jerk, strict=True):
            self.room.append(v * (2 * a / j) + v / 2 * (v / a + a / j))

    @property
    def longest_stop_s(self) -> float:
        """The hardest stop of the slowest joint, from full velocity and acceleration."""
        motion = (self.velocity, self.acceleration)
        stops = (self.stop_acceleration, self.stop_jerk)
        return max(duration_s(*each) for each in zip(*motion, *stops, strict=True))

    def inside(self, q: Sequence[float]) -> bool:
        """Whether every point of the robot at `q` lies in the workspace."""
        if self.points is None:
            return True
        points = self.points(q)
        for i in range(len(points)):
            if not self.box_low_m[i % 3] <= points[i] <= self.box_high_m[i % 3]:
                return False
        return True


def tightest(robot: Limits, *others: Limits) -> Limits:
    """Each limit as the strictest of all; a limit that only one declares is that one's."""
    merged: dict[str, Any] = {}
    for f in fields(Limits):
        given = [limits[f.name] for limits in (robot, *others)]
        if f.name in STOPS:
            merged[f.name] = robot[f.name]
        else:
            merged[f.name] = (np.fmax if f.name in LOWER else np.fmin).reduce(given)
    return Limits(**merged)


def faults(
    joints: Sequence[str],
    limits: Limits,
    units: Sequence[str] = (),
    unusual: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """What is wrong with these limits, a sentence each; empty where nothing is.

    units: of the joints, rad or m; limits outside `PLAUSIBLE` are refused. unusual: joint -> its
    limits that may lie outside.
    """
    found = [f"joint {joints[i]} has no limit {name}: declare it" for name, i in limits.missing()]
    if found:
        return found
    for i, joint in enumerate(joints):
        if not limits.position_low[i] < limits.position_high[i]:
            found.append(
                f"joint {joint}: position_low {limits.position_low[i]:g} is not below "
                f"position_high {limits.position_high[i]:g}"
            )
        for f in fields(Limits):
            value = limits[f.name][i]
            if f.name.startswith("position"):
                wrong = not np.isfinite(value)
            else:
                wrong = not value > 0 or (f.name != "current_a" and not np.isfinite(value))
            if wrong:
                found.append(f"joint {joint}: {f.name} is {value:g}, expected a positive number")
            elif not f.name.startswith("position") and value < SMALLEST:
                found.append(
                    f"joint {joint}: {f.name} is {value:g}, expected at least {SMALLEST:g}: limits "
                    "are in rad, m, s and A"
                )
            elif units and FILE_NAMES.get(f.name, f.name) not in (unusual or {}).get(joint, ()):
                found += _implausible(joint, f.name, value, PLAUSIBLE[units[i]][f.name])
        for stop, name in ((limits.stop_acceleration, "acceleration"), (limits.stop_jerk, "jerk")):
            if stop[i] < limits[name][i]:
                found.append(
                    f"joint {joint}: stop_{name} {stop[i]:g} is below {name} {limits[name][i]:g}: "
                    f"a stop must be at least as hard as what it stops; lower {name}"
                )
    return found


def _implausible(joint: str, name: str, value: float, plausible: Plausible) -> list[str]:
    """A sentence if the value is probably in another unit. Infinite: the limit is switched off."""
    if abs(value) <= plausible.most or np.isinf(value):
        return []
    key = FILE_NAMES.get(name, name)
    turn = ", more than a full turn" if plausible.unit == "rad" and abs(value) > 2 * np.pi else ""
    return [
        f"joint {joint}: {key} is {value:g} {plausible.unit}{turn}, expected at most "
        f"{plausible.most:g}: did you mean {plausible.wrong}? Then write "
        f"{value * plausible.factor:.4g}; if it is right, add unusual: [{key}] to the joint"
    ]


def envelope(
    spec: RobotSpec,
    limits: Limits,
    rate_hz: float,
    rules: Rules | None = None,
    points: Callable[[Sequence[float]], Sequence[float]] | None = None,
) -> Envelope:
    """`limits`, merged and without faults, as the check reads them, at `rate_hz`."""
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
    """A user's file: {limit: {joint: number}}; what it does not name stays undeclared (NaN).

    robot: than whose limits none may be looser. Raises ValueError naming a limit or joint that does
    not exist, and one that is looser.
    """
    names = [f.name for f in fields(Limits)]
    arrays = {name: np.full(len(joints), np.nan) for name in names}
    for name, by_joint in values.items():
        if name not in arrays:
            raise ValueError(f"there is no limit {name!r}; there are {', '.join(names)}")
        for joint, value in by_joint.items():
            if joint not in joints:
                raise ValueError(f"{name}: there is no joint {joint!r}, but {', '.join(joints)}")
            i = joints.index(joint)
            if type(value) not in (int, float) or value != value:
                raise ValueError(f"{name} of joint {joint} is {value!r}, expected a number")
            if robot is not None:
                _no_looser(name, joint, value, robot[name][i])
            arrays[name][i] = value
    return Limits(**arrays)


def _no_looser(name: str, joint: str, value: float, robots: float) -> None:
    if name in STOPS and value != robots:
        raise ValueError(f"{name} of joint {joint}: how a robot stops is for its own file to say")
    if value < robots if name in LOWER else value > robots:
        raise ValueError(
            f"{name} of joint {joint} is {value:g}, looser than the robot's own {robots:g}: limits "
            "can be made tighter only, in rad, m, s and A"
        )

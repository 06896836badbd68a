"""`robot check`: whether this bundle may move this robot; each refusal is one sentence.

Names, units, shapes, rates, limits and the policy's answer are compared before anything is
connected; then the robot is read, without torque, while the policy answers to what it sees.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from policies import BundleError, Spec, load
from policies.policy import BundlePolicy, refuse_rewards
from real_robot.control.kinematics import forward
from real_robot.control.observing import action_order, goals, observer, offset, places
from real_robot.robot import Code, Limits, Reading, Robot, RobotSpec, Status
from real_robot.rows import row_type
from real_robot.safety.answers import call, reading_fault, spec_fault, stamp_fault
from real_robot.safety.limits import FURTHEST_RAD, faults, limits_from, tightest

READINGS = 50  # of the dry run
AGES_OVER = 0.2  # of them may be too old: the rest of this is not real time


@dataclass(frozen=True)
class Line:
    """What was checked, and found."""

    name: str
    found: str


def check(
    robot: Robot,
    bundle: str | Path | None,
    *,
    rate_hz: float | None = None,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    runtime: str = "auto",
    connect: bool = True,
) -> list[Line]:
    """Raises UserError with the first thing that is wrong. Nothing moves; no torque.

    rate_hz: of the control loop; default: the robot's. limits: the user's own, {limit: {joint: x}}.
    runtime: that runs the bundle, as `policies.load` takes it.
    """
    lines = list[Line]()

    def say(name: str, found: str) -> None:
        lines.append(Line(name, found))

    if fault := spec_fault(robot.spec):
        raise UserError(f"the adapter's spec cannot be used: {fault}")
    spec = robot.spec
    control_hz = control_rate(spec, rate_hz)
    merged = limits_of(spec, limits or {})
    say("limits", f"{len(spec.joints)} joints, all declared; stops at least as hard as motion")
    forward(spec)
    say("workspace", "declared, the model has its points" if spec.workspace else "none declared")
    policy: BundlePolicy | None = None
    if bundle is not None:
        try:
            policy = load(bundle, runtime=runtime)
            refuse_rewards(policy, "a robot")
        except BundleError as error:
            raise UserError(str(error)) from None
        _names(policy.spec, spec)
        count = len(policy.spec.observation_names)
        say("names", f"{', '.join(spec.joints)}; {count} measurements")
        _units(policy.spec, spec, merged)
        say("units", "actions lie in the robot's range, in rad and m")
        rate = _rate(policy.spec, control_hz)
        say("rates", f"policy {rate:g} Hz, control {control_hz:g} Hz")
        if policy.spec.chunk_size > 1:
            say("chunks", _offset(policy.spec))
        say("answer", _answer(policy))
    if connect:
        call("connect", robot.connect)
        try:
            found, reading = _dry_run(robot, policy, merged)
            say("readings", found)
            say("current", _current(robot.spec, merged, reading))
        finally:
            call("close", robot.close)
    return lines


def control_rate(spec: RobotSpec, rate_hz: float | None) -> float:
    """Of the loop, the robot's own where none is asked for. Raises UserError."""
    rate_hz = spec.rate_hz if rate_hz is None else rate_hz
    low, high = spec.rate_hz / 2, 2 * spec.rate_hz
    if not low <= rate_hz <= high:
        raise UserError(
            f"rate_hz is {rate_hz:g}, {spec.name} is made for {spec.rate_hz:g} and may be run at "
            f"{low:g} to {high:g}: choose one of these, or leave rate_hz away"
        )
    if 1 / rate_hz > spec.max_reading_age_s:
        raise UserError(
            f"rate_hz is {rate_hz:g}, a period of {1e3 / rate_hz:.1f} ms; readings of {spec.name} "
            f"may be {spec.max_reading_age_s * 1e3:g} ms old, so every tick's would be too old: "
            "raise rate_hz"
        )
    return rate_hz


def limits_of(spec: RobotSpec, own: Mapping[str, Mapping[str, float]]) -> Limits:
    """The tightest limits. Raises UserError where one is missing or impossible."""
    try:
        merged = tightest(spec.limits, limits_from(own, spec.joints, spec.limits))
    except ValueError as error:
        raise UserError(f"limits: {error}") from None
    if found := faults(spec.joints, merged, spec.units, spec.unusual):
        raise UserError(f"{spec.name}: {found[0]}")
    return merged


def _names(policy: Spec, robot: RobotSpec) -> None:
    order = action_order(policy, robot)
    observer(policy, robot)
    # joints are joined by name, so another order is no fault by itself; in which the numbers of
    # another joint are meant, the ranges below tell
    assert sorted(order) == list(range(len(order)))


def _units(policy: Spec, robot: RobotSpec, limits: Limits) -> None:
    if not policy.action_low or not policy.action_high:
        raise UserError(
            "the bundle does not say what its actions of -1 and 1 stand for: "
            "action_low and action_high, in rad or m, are missing"
        )
    for joint, unit, place in zip(
        robot.joints, robot.units, action_order(policy, robot), strict=True
    ):
        low, high = policy.action_low[place], policy.action_high[place]
        i = robot.joints.index(joint)
        least, most = limits.position_low[i], limits.position_high[i]
        furthest = max(abs(low), abs(high))
        if unit == "rad" and furthest > max(FURTHEST_RAD, abs(least), abs(most)):
            raise UserError(
                f"joint {joint}: the policy's actions reach {furthest:g}, the "
                f"robot's limit is {most:g} rad: are those degrees? Bundles are in rad"
            )
        room = 0.02 * (most - least)
        if low < least - room or high > most + room:
            raise UserError(
                f"joint {joint}: the policy's actions reach from {low:g} to {high:g} {unit}, the "
                f"robot's limits are {least:g} to {most:g}: the bundle is for another robot, or "
                "for other limits"
            )


def _rate(policy: Spec, control_hz: float) -> float:
    if policy.rate_hz is None:
        raise UserError("the bundle does not say how many actions a second it was trained for")
    if policy.rate_hz > control_hz:
        raise UserError(
            f"the policy acts at {policy.rate_hz:g} Hz, faster than the control loop at "
            f"{control_hz:g} Hz: raise rate_hz, or take a bundle for a slower rate"
        )
    return policy.rate_hz


def _offset(policy: Spec) -> str:
    if (own := offset(policy)) is None:
        return "not said when a chunk's first action is due: with its observation, unless offset=…"
    return f"a chunk's first action is due {own:g} steps after its observation"


def _answer(policy: Any) -> str:
    """The policy answers what its specification says, the same twice.

    Its golden answer was compared when it was loaded.
    """
    spec, golden = policy.spec, policy.bundle.golden
    if golden is None:
        raise UserError(
            "the bundle holds no golden answer, by which to see that it is run rightly here: it "
            "is an old one; write it again by offline-rl export where it was trained"
        )
    seen = {k: v[0, -1] for k, v in golden.observations.items()}
    observation = seen if spec.lone is None else seen[spec.lone.name]
    first, _ = policy.act(observation)
    second, _ = policy.act(observation)
    if first.shape != (spec.chunk_size, spec.action_dim):
        raise UserError(
            f"the policy answers {first.shape}, its specification says "
            f"({spec.chunk_size}, {spec.action_dim})"
        )
    if not np.isfinite(first).all() or np.abs(first).max() > 1 + 1e-5:
        raise UserError("the policy answers numbers outside [-1, 1] to an ordinary observation")
    if not np.array_equal(first, second):
        raise UserError("the policy answers differently to the same observation")
    begun = time.perf_counter()
    for _ in range(20):
        policy.act(observation)
    took = f"{(time.perf_counter() - begun) * 50:.2f} ms by {policy.network.name}"
    return f"{spec.chunk_size} x {spec.action_dim}, {took}; the golden answer comes out"


def _current(spec: RobotSpec, limits: Limits, reading: Reading) -> str:
    """Which joints' current is checked while the robot moves."""
    measured, limited = np.isfinite(reading.current_a), np.isfinite(limits.current_a)
    unchecked = {
        "not measured, so its limit is not checked": limited & ~measured,
        "measured, and no limit declared (.inf)": measured & ~limited,
        "neither measured nor limited": ~measured & ~limited,
    }
    parts = [
        f"{', '.join(joint for joint, it in zip(spec.joints, which, strict=True) if it)}: {why}"
        for why, which in unchecked.items()
        if which.any()
    ]
    return f"UNCHECKED: {'; '.join(parts)}" if parts else "measured and limited at every joint"


def _dry_run(robot: Robot, policy: Any, limits: Limits) -> tuple[str, Reading]:
    """Read for a while, without torque, and ask the policy what it would do."""
    spec = robot.spec
    late, took, seen = 0, 0.0, -1
    reading = _read(robot)
    for _ in range(READINGS):
        begun = time.monotonic_ns()
        reading = _read(robot)
        took = max(took, (time.monotonic_ns() - begun) * 1e-9)
        if reading.code is Code.LOST:
            raise UserError(f"{spec.name} is connected and does not answer")
        old = time.monotonic_ns() - reading.middle_ns > spec.max_reading_age_s * 1e9
        late += reading.code != Code.OK or old
        seen = reading.seq
        time.sleep(1 / spec.rate_hz)
    if late > AGES_OVER * READINGS or seen < 0:
        raise UserError(
            f"{spec.name} answers late: {late} of {READINGS} readings failed or were older than "
            f"{spec.max_reading_age_s * 1e3:.0f} ms"
        )
    for i, joint in enumerate(spec.joints):
        q, low, high = reading.q[i], limits.position_low[i], limits.position_high[i]
        if not low <= q <= high:
            raise UserError(
                f"joint {joint} stands at {q:.3f} {spec.units[i]}, its limits are {low:.3f} to "
                f"{high:.3f}: move it inside by hand, or calibrate"
            )
        # its own watchdog may have fired when an earlier run was killed: arming clears that
        if status := Status(int(reading.status[i])) & ~Status.WATCHDOG:
            raise UserError(f"joint {joint} reports {status.name}: see to it before it is armed")
    if policy is not None:
        row, known = _row(spec, reading), places(spec)
        for name in policy.spec.observation_names:
            field, place = known[name]
            if not np.isfinite(row[field].reshape(-1)[place]):
                raise UserError(
                    f"{spec.name} has no {name} to show, which the policy observes: is its tracker "
                    "running, and does it see that?"
                )
        chunk, _ = policy.act(observer(policy.spec, spec)(row))
        goals(policy.spec, spec)(np.asarray(chunk))
    return f"{READINGS} in time, the slowest in {took * 1e3:.1f} ms", reading


def _read(robot: Robot) -> Reading:
    reading: Reading = call("read", robot.read)
    fault = reading_fault(robot.spec, reading) or stamp_fault(reading, time.monotonic_ns())
    if fault:
        raise UserError(f"{robot.spec.name}: an answer of its adapter's read() is wrong: {fault}")
    return reading


def _row(spec: RobotSpec, reading: Reading) -> np.ndarray:
    """A reading as the observer takes it."""
    row = np.zeros((), row_type(spec))
    for name, (field, _) in places(spec).items():
        if field.startswith("channel."):
            channel = field.removeprefix("channel.")
            if channel not in reading.channels:
                raise UserError(f"{spec.name} does not measure {name}: is its tracker running?")
            row[field] = reading.channels[channel]
    row["q"], row["dq"], row["current_a"] = reading.q, reading.dq, reading.current_a
    return row

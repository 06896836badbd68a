"""`robot check`: check that a bundle may move a robot. Each refusal is one sentence.

Names, units, shapes, rates, limits and the policy's output are checked before the robot is
connected. The robot is then read, without torque, and the policy is called on its measurements.
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
from policies.policy import BundlePolicy, refuse_feedback
from real_robot.control.kinematics import forward
from real_robot.control.observing import action_order, goals, observer, offset, places
from real_robot.robot import Code, Limits, Reading, Robot, RobotSpec, Status
from real_robot.rows import row_type
from real_robot.safety.limits import FURTHEST_RAD, limit_problems, limits_from, tightest
from real_robot.safety.validation import call, reading_fault, spec_fault, stamp_fault

READINGS = 50  # number of readings of the dry run
# maximum fraction of late readings; it is generous because this process has no real-time priority
AGES_OVER = 0.2


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    name: str
    text: str


def check(
    robot: Robot,
    bundle: str | Path | None,
    *,
    rate_hz: float | None = None,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    runtime: str = "auto",
    connect: bool = True,
) -> list[Finding]:
    """Check robot and bundle. Raises UserError for the first problem.

    The robot does not move, and its torque stays as it is.

    Args:
        rate_hz: rate of the control loop; default: the robot's.
        limits: the user's limits, {limit: {joint: number}}.
        runtime: runtime of the bundle, as for `policies.load`.
        connect: True: also connect to the robot and read it.
    """
    findings = list[Finding]()

    def report(name: str, text: str) -> None:
        findings.append(Finding(name, text))

    if fault := spec_fault(robot.spec):
        raise UserError(f"the adapter's spec cannot be used: {fault}")
    spec = robot.spec
    control_hz = control_rate(spec, rate_hz)
    merged = limits_of(spec, limits or {})
    report(
        "limits",
        f"declared for all {len(spec.joints)} joints; stop limits at least the motion limits",
    )
    forward(spec)
    report(
        "workspace",
        "declared; the model has all its sites" if spec.workspace else "not declared",
    )
    policy: BundlePolicy | None = None
    if bundle is not None:
        try:
            policy = load(bundle, runtime=runtime)
            refuse_feedback(policy, "a robot")
        except BundleError as error:
            raise UserError(str(error)) from None
        _check_names(policy.spec, spec)
        count = len(policy.spec.observation_names)
        report(
            "names",
            f"the policy moves {', '.join(spec.joints)}; the robot has the {count} measurements "
            "that it observes",
        )
        _check_units(policy.spec, spec, merged)
        report("units", "the policy's action range is within the position limits, in rad and m")
        rate = _check_rate(policy.spec, control_hz)
        report("rates", f"policy at {rate:g} Hz, control at {control_hz:g} Hz")
        if policy.spec.chunk_size > 1:
            report("chunks", _describe_offset(policy.spec))
        report("output", _check_output(policy))
    if connect:
        call("connect", robot.connect)
        try:
            timing, reading = _dry_run(robot, policy, merged)
            report("readings", timing)
            report("current", _describe_current(robot.spec, merged, reading))
        finally:
            call("close", robot.close)
    return findings


def control_rate(spec: RobotSpec, rate_hz: float | None) -> float:
    """Return the rate of the control loop; default: the robot's. Raises UserError."""
    rate_hz = spec.rate_hz if rate_hz is None else rate_hz
    low, high = spec.rate_hz / 2, 2 * spec.rate_hz
    if not low <= rate_hz <= high:
        raise UserError(
            f"rate_hz is {rate_hz:g}, expected {low:g} to {high:g}, half to twice the "
            f"{spec.rate_hz:g} Hz of {spec.name}. Choose a rate in this range, or omit rate_hz"
        )
    if 1 / rate_hz > spec.max_reading_age_s:
        raise UserError(
            f"rate_hz is {rate_hz:g}, a period of {1e3 / rate_hz:.1f} ms, but readings of "
            f"{spec.name} may be at most {spec.max_reading_age_s * 1e3:g} ms old. Every reading "
            "would be too old: raise rate_hz"
        )
    return rate_hz


def limits_of(spec: RobotSpec, user_limits: Mapping[str, Mapping[str, float]]) -> Limits:
    """Return the robot's limits, tightened by the user's.

    Raises UserError if a limit is missing or invalid.
    """
    try:
        merged = tightest(spec.limits, limits_from(user_limits, spec.joints, spec.limits))
    except ValueError as error:
        raise UserError(f"limits: {error}") from None
    if problems := limit_problems(spec.joints, merged, spec.units, spec.unusual):
        raise UserError(f"{spec.name}: {problems[0]}")
    return merged


def _check_names(policy: Spec, robot: RobotSpec) -> None:
    """Raise UserError if the names or units of the policy do not match the robot's."""
    order = action_order(policy, robot)
    observer(policy, robot)
    # Joints are matched by name, so their order may differ from the robot's.
    assert sorted(order) == list(range(len(order)))


def _check_units(policy: Spec, robot: RobotSpec, limits: Limits) -> None:
    """Raise UserError if the range of an action exceeds the joint's position limits."""
    if not policy.action_low or not policy.action_high:
        raise UserError(
            "the bundle does not state which positions its actions -1 and 1 stand for: "
            "action_low and action_high, in rad or m, are missing in its Spec"
        )
    for joint, unit, place in zip(
        robot.joints, robot.units, action_order(policy, robot), strict=True
    ):
        low, high = policy.action_low[place], policy.action_high[place]
        i = robot.joints.index(joint)
        low_limit, high_limit = limits.position_low[i], limits.position_high[i]
        furthest = max(abs(low), abs(high))
        if unit == "rad" and furthest > max(FURTHEST_RAD, abs(low_limit), abs(high_limit)):
            raise UserError(
                f"joint {joint}: the policy's actions reach {furthest:g}, but the robot's limit is "
                f"{high_limit:g} rad. Are the actions in degrees? Use rad in bundles"
            )
        room = 0.02 * (high_limit - low_limit)
        if low < low_limit - room or high > high_limit + room:
            raise UserError(
                f"joint {joint}: the policy's actions reach from {low:g} to {high:g} {unit}, but "
                f"the robot's limits are {low_limit:g} to {high_limit:g}. Use a bundle for this "
                "robot and these limits"
            )


def _check_rate(policy: Spec, control_hz: float) -> float:
    """Return the policy's rate. Raises UserError if it is missing or above the control rate."""
    if policy.rate_hz is None:
        raise UserError(
            "the bundle does not state for how many actions per second it was trained: rate_hz is "
            "missing in its Spec"
        )
    if policy.rate_hz > control_hz:
        raise UserError(
            f"the policy acts at {policy.rate_hz:g} Hz, faster than the control loop at "
            f"{control_hz:g} Hz: raise rate_hz, or use a bundle with a lower rate"
        )
    return policy.rate_hz


def _describe_offset(policy: Spec) -> str:
    if (steps := offset(policy)) is None:
        return (
            "the bundle states no offset: a chunk's first action is due at the time of its "
            "observation; offset=… changes this"
        )
    unit = "step" if steps == 1 else "steps"
    return f"a chunk's first action is due {steps:g} {unit} after its observation"


def _check_output(policy: Any) -> str:
    """Check shape, range and repeatability of the policy's output. Return a line for the report.

    Loading the bundle has already compared its golden output.
    """
    spec, golden = policy.spec, policy.bundle.golden
    observations = {k: v[0, -1] for k, v in golden.observations.items()}
    observation = (
        observations if spec.single_vector is None else observations[spec.single_vector.name]
    )
    first, _ = policy.act(observation)
    second, _ = policy.act(observation)
    if first.shape != (spec.chunk_size, spec.action_dim):
        raise UserError(
            f"the policy returns shape {first.shape}, but its Spec states "
            f"({spec.chunk_size}, {spec.action_dim}): export the bundle again"
        )
    if not np.isfinite(first).all() or np.abs(first).max() > 1 + 1e-5:
        raise UserError(
            "the policy returns numbers outside [-1, 1] for the observation of its golden output: "
            "train or export it again"
        )
    if not np.array_equal(first, second):
        raise UserError(
            "the policy returns different actions for the same observation: use a deterministic "
            "policy"
        )
    start_s = time.perf_counter()
    for _ in range(20):
        policy.act(observation)
    latency = f"{(time.perf_counter() - start_s) * 50:.2f} ms ({policy.network.name})"
    chunk = f"chunk {spec.chunk_size} x {spec.action_dim}"
    return f"golden output reproduced: {chunk} in {latency}"


def _describe_current(spec: RobotSpec, limits: Limits, reading: Reading) -> str:
    """Return a sentence on the joints whose current is not checked while the robot moves."""
    measured, limited = np.isfinite(reading.current_a), np.isfinite(limits.current_a)
    unchecked = {
        "the robot does not measure it": limited & ~measured,
        "its limit is .inf": measured & ~limited,
        "the robot does not measure it, and its limit is .inf": ~measured & ~limited,
    }
    parts = [
        f"{', '.join(joint for joint, it in zip(spec.joints, which, strict=True) if it)} ({why})"
        for why, which in unchecked.items()
        if which.any()
    ]
    return f"NOT CHECKED for {'; '.join(parts)}" if parts else "measured and limited at every joint"


def _dry_run(robot: Robot, policy: Any, limits: Limits) -> tuple[str, Reading]:
    """Read the robot repeatedly, without torque, and call the policy once."""
    spec = robot.spec
    late, slowest_s, last_seq = 0, 0.0, -1
    reading = _read(robot)
    for _ in range(READINGS):
        start_ns = time.monotonic_ns()
        reading = _read(robot)
        slowest_s = max(slowest_s, (time.monotonic_ns() - start_ns) * 1e-9)
        if reading.code is Code.LOST:
            raise UserError(f"{spec.name} is connected but does not answer")
        old = time.monotonic_ns() - reading.middle_ns > spec.max_reading_age_s * 1e9
        late += reading.code != Code.OK or old
        last_seq = reading.seq
        time.sleep(1 / spec.rate_hz)
    if late > AGES_OVER * READINGS or last_seq < 0:
        raise UserError(
            f"{spec.name} answers too late: {late} of {READINGS} readings failed or were older "
            f"than {spec.max_reading_age_s * 1e3:.0f} ms. Check the connection, or raise "
            "max_reading_age_s in the robot's file"
        )
    for i, joint in enumerate(spec.joints):
        q, low, high = reading.q[i], limits.position_low[i], limits.position_high[i]
        if not low <= q <= high:
            raise UserError(
                f"joint {joint} is at {q:.3f} {spec.units[i]}, outside its limits of {low:.3f} to "
                f"{high:.3f}: move it inside by hand, or calibrate the robot"
            )
        # A servo's watchdog may have fired when an earlier run was killed. Arming clears it.
        if status := Status(int(reading.status[i])) & ~Status.WATCHDOG:
            raise UserError(f"joint {joint} reports {status.name}: clear it before arming")
    if policy is not None:
        row, fields = _row(spec, reading), places(spec)
        for name in policy.spec.observation_names:
            field, place = fields[name]
            if not np.isfinite(row[field].reshape(-1)[place]):
                raise UserError(
                    f"{spec.name} has no value for {name}, which the policy observes: check that "
                    "the tracker runs and detects the object"
                )
        chunk, _ = policy.act(observer(policy.spec, spec)(row))
        goals(policy.spec, spec)(np.asarray(chunk))
    on_time = f"{READINGS - late} of {READINGS} in time"
    return f"{on_time}, the slowest took {slowest_s * 1e3:.1f} ms", reading


def _read(robot: Robot) -> Reading:
    reading: Reading = call("read", robot.read)
    fault = reading_fault(robot.spec, reading) or stamp_fault(reading, time.monotonic_ns())
    if fault:
        raise UserError(
            f"{robot.spec.name}: the adapter's read() returned an invalid value: {fault}"
        )
    return reading


def _row(spec: RobotSpec, reading: Reading) -> np.ndarray:
    """Return a reading as a row, for the observer."""
    row = np.zeros((), row_type(spec))
    for name, (field, _) in places(spec).items():
        if field.startswith("channel."):
            channel = field.removeprefix("channel.")
            if channel not in reading.channels:
                raise UserError(f"{spec.name} does not measure {name}: check that the tracker runs")
            row[field] = reading.channels[channel]
    row["q"], row["dq"], row["current_a"] = reading.q, reading.dq, reading.current_a
    return row

"""Safety check of one control period: compute the next goal and the reasons to stop.

Each command advances the goal by exactly one period, whatever the jitter of the tick. After a
missed deadline the robot lags behind its plan. It never exceeds a limit to catch up.

`check` reads `before`, the motion state of the last tick, and writes `after`, the motion state of
this tick. It allocates no array, list or object that outlives the call, and uses no robot, clock or
file. `limiter` explains why no sequence of targets can exceed a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from real_robot.robot import Code, Reading, Status
from real_robot.safety.limiter import (
    FALLBACK_STOP,
    FREE,
    HALVINGS,
    HARD,
    POSITION,
    SOFT,
    Motion,
    continue_stop,
    step,
)
from real_robot.safety.limits import Envelope
from real_robot.safety.states import FAULTS, MOVING, Reason, State
from real_robot.safety.stopping import distance, duration_s

# A measured step larger than this multiple of the largest plausible step is an encoder jump.
JUMP_FACTOR = 4
GRIP_FULL = 0.9  # fraction of the grip current above which the squeeze is reduced
GRIP_GROWTH = 1.03  # factor by which the allowed squeeze grows per tick
MIN_SQUEEZE = 0.05  # minimum fraction of the grip's squeeze that stays allowed
# minimum fraction of the stop limits for a joint that would otherwise stop before the others
MIN_STOP_SHARE = 0.05

_HARD = sum(1 << reason for reason in (*FAULTS, Reason.ESTOP_PRESSED))
_POSITION_UNKNOWN = sum(
    1 << reason
    for reason in (
        Reason.CLOCK_JUMPED,
        Reason.SERVO_ERROR,
        Reason.ENCODER_LEAPT,
        Reason.ADAPTER_INVALID,
        Reason.BUS_LOST,
    )
)
_SERVO_PROBLEM = int(~Status.MISSING)  # a missing joint is counted as a failed reading instead
_NAN, _INFINITE = float("nan"), float("inf")


def check(
    e: Envelope,
    before: Motion,
    after: Motion,
    state: State,
    target: Sequence[float] | None,
    reading: Reading,
    now_ns: int,
    *,
    watchdog_ns: int | None = None,
    others: int = 0,
    relief: Sequence[float] | None = None,
) -> None:
    """Write the next goal to `after.q` and the reasons to stop to `after.reasons` (bits of Reason).

    Args:
        target: [J] rad or m; None: there is no target. Used in RUNNING and TAKEOVER only.
        reading: the newest reading.
        watchdog_ns: time of the watchdog's last heartbeat; None: there is no watchdog.
        others: reasons to stop that were found outside this check, such as missed deadlines.
        relief: [J] goals that a robot at rest moves to, so that its servos stop pushing.
    """
    count = len(e.joints)
    reasons = others
    moving = state in MOVING
    after.now_ns = now_ns
    if not 0 < now_ns - before.now_ns < e.rules.clock_step_periods * e.period_s * 1e9:
        reasons |= 1 << Reason.CLOCK_JUMPED
    relieves, rests = relief is not None, not moving and before.is_at_rest()
    reasons |= _check_reading(e, before, after, reading, now_ns, relieves=relieves, rests=rests)
    if watchdog_ns is not None and now_ns - watchdog_ns > e.rules.watchdog_age_s * 1e9:
        reasons |= 1 << Reason.WATCHDOG_SILENT
    if moving and target is None:
        plan = state is State.RUNNING
        reasons |= 1 << (Reason.PLAN_EXHAUSTED if plan else Reason.TELEOP_LOST)
    elif moving and not _finite(target, count):
        reasons |= 1 << Reason.TARGET_NOT_FINITE

    if moving and not reasons and target is not None:
        reasons = _follow(e, before, after, _limit_grips(e, after, target))
    if reasons or not moving:
        goals = None if moving or is_position_unknown(e, after, reasons) else relief
        if goals is None or _follow(e, before, after, goals) & 1 << Reason.WORKSPACE:
            stop_kind = HARD if reasons & _HARD or state in (State.FAULT, State.ESTOP) else SOFT
            _stop(e, before, after, stop_kind)
    after.reasons = reasons


def _limit_grips(e: Envelope, motion: Motion, target: Sequence[float]) -> Sequence[float]:
    """Limit how far each gripper's target lies beyond its measured position. Return the target.

    A position servo pushes with a force that grows with this distance.
    """
    for i, grip in enumerate(e.grips):
        if grip is not None:
            max_squeeze = motion.squeeze[i] * grip.squeeze
            if (target[i] - motion.measured[i]) * grip.closes > max_squeeze:
                target = [*target]
                target[i] = motion.measured[i] + grip.closes * max_squeeze
    return target


def is_position_unknown(e: Envelope, motion: Motion, reasons: int) -> bool:
    """Return True if the last good reading is too old, or a reason makes readings unreliable."""
    return bool(reasons & _POSITION_UNKNOWN) or motion.now_ns - motion.fresh_ns > e.max_age_ns


def _finite(target: Sequence[float] | None, count: int) -> bool:
    if target is None or len(target) != count:
        return False
    for x in target:  # noqa: SIM110 (any() would allocate a generator)
        if not isfinite(x):
            return False
    return True


def _check_reading(
    e: Envelope,
    before: Motion,
    after: Motion,
    reading: Reading,
    now_ns: int,
    *,
    relieves: bool,
    rests: bool,
) -> int:
    """Return the reasons to stop that the reading shows, and store its measurements in `after`.

    relieves: the goals move to the measured positions, so the joints need not follow them.
    rests: the goals are at rest and no motion is requested, so the joints need not move.
    """
    rules, reasons = e.rules, 0
    good = reading.code == Code.OK
    fresh = good and reading.seq > before.seq
    after.seq = reading.seq if fresh else before.seq
    after.fresh_ns = min(reading.middle_ns, now_ns) if fresh else before.fresh_ns
    after.middle_ns = reading.middle_ns if fresh else before.middle_ns
    if good:
        after.bus_faults = max(0.0, before.bus_faults - rules.bus_forgives)
    else:
        after.bus_faults = min(before.bus_faults + 1, rules.bus_faults)
    if reading.code == Code.LOST or after.bus_faults >= rules.bus_faults:
        reasons |= 1 << Reason.BUS_LOST
    if now_ns - after.fresh_ns > e.max_age_ns:
        reasons |= 1 << Reason.READING_STALE
    if not fresh:
        for name in Motion.MEASURED:
            getattr(after, name)[:] = getattr(before, name)
        for i in range(len(e.joints)):
            after.blame[i] = 0
        return reasons
    dt_s = max(0.0, (reading.middle_ns - before.middle_ns) * 1e-9) if before.middle_ns else 0.0
    weight = min(1.0, dt_s / rules.current_window_s)
    positions, speeds = reading.q.tolist(), reading.dq.tolist()
    currents, status = reading.current_a.tolist(), reading.status.tolist()
    for i in range(len(e.joints)):
        q, dq, current_a, max_error = positions[i], speeds[i], currents[i], e.tracking_error[i]
        blame = 0
        if status[i] & _SERVO_PROBLEM:
            blame |= 1 << Reason.SERVO_ERROR
        if not e.low[i] - max_error <= q <= e.high[i] + max_error:
            blame |= 1 << Reason.POSITION_MEASURED
        # quantization noise of the encoder is not motion
        fastest = rules.velocity_ratio * e.velocity[i] + 2 * e.resolution[i] / e.period_s
        last = before.measured[i] if before.middle_ns else q
        if has_jumped(last, q, dq, fastest, max(dt_s, e.period_s)):
            blame |= 1 << Reason.ENCODER_LEAPT
        elif not (abs(dq) <= fastest and abs(q - last) <= fastest * max(dt_s, e.period_s)):
            blame |= 1 << Reason.VELOCITY_MEASURED
        if not abs(before.q[i] - q) <= max_error:
            blame |= 1 << Reason.TRACKING_ERROR
        after.current_a[i] = before.current_a[i]
        if current_a == current_a:
            filtered = before.current_a[i] + weight * (abs(current_a) - before.current_a[i])
            after.current_a[i] = filtered
            if filtered > rules.current_extreme * e.current_a[i]:
                blame |= 1 << Reason.CURRENT_EXTREME
            elif filtered > e.current_a[i]:
                blame |= 1 << Reason.CURRENT_HIGH
        grip = e.grips[i]
        presses = grip is not None and (before.q[i] - q) * grip.closes > 0
        if grip is not None:
            share, full = before.squeeze[i] * GRIP_GROWTH, GRIP_FULL * grip.current_a
            # a servo's current is about proportional to the distance of goal and position
            if presses and abs(current_a) > full:
                share = min(share, abs(before.q[i] - q) / grip.squeeze * full / abs(current_a))
            after.squeeze[i] = min(1.0, max(MIN_SQUEEZE, share))
        stuck = _is_stuck(e, i, before, after, q, dq, current_a, rests=rests)
        if stuck and not relieves and not presses:  # an object may block a gripper that closes
            blame |= 1 << Reason.SENSOR_STUCK
        after.measured[i], after.measured_v[i], after.raw_current_a[i] = q, dq, current_a
        after.blame[i] = blame
        reasons |= blame
    return reasons


def has_jumped(before: float, q: float, dq: float, fastest: float, dt_s: float) -> bool:
    """Return True if the encoder jumped: the joint cannot have moved from `before` to `q`.

    A joint may be pushed beyond its velocity limit. Its measured velocity then agrees with the
    distance. After an encoder jump the two disagree, or no joint can be that fast.

    Args:
        dq: measured velocity.
        fastest: highest plausible velocity.
        dt_s: time between the two measurements.
    """
    moved, furthest = q - before, fastest * dt_s
    if abs(moved) <= furthest:
        return False
    return abs(moved) > JUMP_FACTOR * furthest or abs(moved - dq * dt_s) > furthest


def _is_stuck(
    e: Envelope,
    i: int,
    before: Motion,
    after: Motion,
    q: float,
    dq: float,
    current_a: float,
    *,
    rests: bool,
) -> bool:
    """Return True if joint i's goals have moved for a while and its measurements have not.

    The position of a healthy joint also stays constant if friction holds the joint, at a turning
    point, and against an obstacle. Against an obstacle the current follows the goal. At a turning
    point the measured velocity changes.

    These signs are missing if the adapter returns no current, a constant current, or a velocity
    that is derived from the position. The goals must then move further before the joint counts as
    stuck.

    If the goals are at rest, the observation starts again: an earlier motion must not prevent
    re-arming.
    """
    goal, digit, max_error = before.q[i], e.resolution[i], e.tracking_error[i]
    still = q == before.measured[i] and not rests
    after.still_low[i] = low = min(before.still_low[i], goal) if still else goal
    after.still_high[i] = high = max(before.still_high[i], goal) if still else goal
    has_reading = before.middle_ns > 0
    moves = dq not in (0.0, before.measured_v[i])
    varies = has_reading and abs(current_a - before.raw_current_a[i]) > 0
    after.has_velocity[i] = before.has_velocity[i] or int(has_reading and still and moves)
    after.has_current[i] = before.has_current[i] or int(varies)
    travel = high - low
    if travel <= digit:  # the joint moves, or its goals do not move either
        after.still_s[i], after.still_q[i], after.still_a[i] = 0.0, goal, current_a
        after.velocity_changed[i] = after.current_changed[i] = 0
        return False
    after.still_s[i] = before.still_s[i] + e.period_s
    after.still_q[i], after.still_a[i] = before.still_q[i], before.still_a[i]
    after.velocity_changed[i] = before.velocity_changed[i] or int(moves)
    after.current_changed[i] = before.current_changed[i] or int(
        current_a != before.raw_current_a[i]
    )
    if after.still_s[i] < e.rules.stuck_s:
        return False
    if current_a != current_a or not after.has_current[i]:
        return travel > max(8 * digit, max_error / 4)
    min_travel = max(4 * digit, max_error / 64)
    if not (after.velocity_changed[i] or after.current_changed[i]):
        return travel > min_travel
    if after.velocity_changed[i] or not after.has_velocity[i]:
        min_travel = max(16 * digit, max_error / 8)
    # Compare the current with the current before the goal moved. If the goal has moved back, so has
    # the current. So `travel` is now the net distance of the goal.
    travel = abs(goal - after.still_q[i])
    too_little = (
        abs(current_a - after.still_a[i]) * max_error < 2 * e.current_a[i] * travel < _INFINITE
    )
    return too_little and travel > min_travel


def _follow(e: Envelope, before: Motion, after: Motion, target: Sequence[float]) -> int:
    """Set each joint's goal as near to `target` as its limits permit. Return reasons to stop."""
    extreme = held_back_now = off_target = False
    resuming = before.stop != FREE
    for i in range(len(e.joints)):
        requested = float(target[i])
        clips = step(e, i, before, after, requested)
        if resuming and clips & FALLBACK_STOP:
            # This joint still brakes harder than the limits of motion permit. Motion cannot resume
            # yet, so all joints continue the stop.
            _stop(e, before, after, SOFT)
            return 0
        after.clips[i] = clips
        last = before.target[i] if before.target[i] == before.target[i] else before.q[i]
        speed = abs(after.target[i] - last) / e.period_s
        extreme = extreme or speed > e.rules.trip_ratio * e.velocity[i]
        gap, before_gap = abs(after.target[i] - after.q[i]), abs(before.target[i] - before.q[i])
        if abs(after.q[i] - requested) > e.rules.held_back * e.tracking_error[i]:
            off_target = True
            # After a large step of the target, the goal ramps to the target, as intended. A tick of
            # the ramp does not count if the goal gets nearer and the target does not jump.
            nearer = gap < before_gap and after.target_v[i] == after.target_v[i]
            held_back_now = held_back_now or not nearer or bool(clips & POSITION)
    after.stop = FREE
    after.clipped = before.clipped
    if held_back_now:
        after.clipped += 1
    elif not off_target:
        after.clipped = max(0.0, before.clipped - 0.5)
    reasons = 0
    if extreme:
        reasons |= 1 << Reason.REQUEST_EXTREME
    if after.clipped * e.period_s > e.rules.trip_after_s:
        reasons |= 1 << Reason.CLIPPED_TOO_LONG
    if e.points is not None and not (e.inside(after.q) and e.inside(_stop_position(e, after))):
        reasons |= 1 << Reason.WORKSPACE
    return reasons


def _stop(e: Envelope, before: Motion, after: Motion, stop_kind: int) -> None:
    """Advance all joints by one period along their fallback stops. `stop_kind`: SOFT or HARD."""
    after.stop = max(before.stop, stop_kind)
    after.clipped = 0
    for i in range(len(e.joints)):
        after.target[i], after.target_v[i], after.clips[i] = _NAN, _NAN, 0
        if after.stop > before.stop:
            after.stop_limit_a[i], after.stop_limit_j[i] = e.stop_acceleration[i], e.stop_jerk[i]
        else:
            after.stop_limit_a[i] = before.stop_limit_a[i]
            after.stop_limit_j[i] = before.stop_limit_j[i]
    if after.stop == SOFT and before.stop == FREE:
        _synchronize_stops(e, before, after)
    for i in range(len(e.joints)):
        continue_stop(e, i, before, after)


def _synchronize_stops(e: Envelope, before: Motion, after: Motion) -> None:
    """Prolong the shorter stops so that all joints come to rest together.

    A joint keeps its hardest stop if a softer stop would exceed a limit. All joints keep their
    hardest stops if the robot would otherwise come to rest outside its workspace.
    """
    longest = 0.0
    for i in range(len(e.joints)):
        took = duration_s(
            before.stop_v[i], before.stop_a[i], e.stop_acceleration[i], e.stop_jerk[i]
        )
        longest = max(longest, took)
    for i in range(len(e.joints)):
        soft, hard = MIN_STOP_SHARE, 1.0
        for _ in range(HALVINGS):
            share = (soft + hard) / 2
            limit_a = max(e.stop_acceleration[i] * share, abs(before.stop_a[i]))
            limit_j = e.stop_jerk[i] * share * share
            took = duration_s(before.stop_v[i], before.stop_a[i], limit_a, limit_j)
            if took > longest or not _stops_in_limits(e, i, before, limit_a, limit_j):
                soft = share
            else:
                hard = share
        after.stop_limit_a[i] = max(e.stop_acceleration[i] * hard, abs(before.stop_a[i]))
        after.stop_limit_j[i] = e.stop_jerk[i] * hard * hard
    if e.points is not None:
        for i in range(len(e.joints)):
            after.q[i] = before.q[i]
            after.stop_v[i], after.stop_a[i] = before.stop_v[i], before.stop_a[i]
        if not e.inside(_stop_position(e, after)):
            for i in range(len(e.joints)):
                after.stop_limit_a[i], after.stop_limit_j[i] = (
                    e.stop_acceleration[i],
                    e.stop_jerk[i],
                )


def _stops_in_limits(e: Envelope, i: int, before: Motion, limit_a: float, limit_j: float) -> bool:
    """Return True if joint i's stop keeps position and velocity limits and does not reverse."""
    q, v, a = before.q[i], before.stop_v[i], before.stop_a[i]
    rest_v = v + a * abs(a) / (2 * limit_j)
    if rest_v * v < 0 or abs(rest_v) > e.velocity[i]:
        return False
    return e.low[i] <= q + distance(v, a, limit_a, limit_j) <= e.high[i]


def _stop_position(e: Envelope, motion: Motion) -> list[float]:
    """Return the positions at which the fallback stops end, [J].

    The list is `e.scratch`, which the next call overwrites.
    """
    for i in range(len(e.joints)):
        e.scratch[i] = motion.q[i] + distance(
            motion.stop_v[i], motion.stop_a[i], motion.stop_limit_a[i], motion.stop_limit_j[i]
        )
    return e.scratch

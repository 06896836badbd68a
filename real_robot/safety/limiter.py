"""Limiter for one joint: turn the target into a goal that keeps the joint's limits.

The target is the position that the plan requests. The goal is the position that is sent. It is as
near to the target as the limits permit.

Let q be the goals, one per period P. Then v = (q - q') / P, a = (v - v') / P and
j = (a - a') / P, where a prime marks the previous tick.

A goal is accepted only if the joint can still stop after it. This is checked as follows. One
parabola passes through the last three goals. At the newest goal, the parabola has position q,
velocity v + a P / 2 and acceleration a. `stopping` computes the quickest stop from this state. The
stop must keep position and velocity inside their limits. It is then stored as the joint's fallback
stop.

If the next goal is not accepted, the joint follows its fallback stop for one tick. The goals on the
fallback stop keep every limit as well: their divided differences are means of the derivatives of
the stop (Peano), and the stop keeps the limits. So a goal that keeps all limits always exists, and
no sequence of targets can exceed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from real_robot.safety.limits import Envelope
from real_robot.safety.stopping import advance, distance, turn

# Bits that say why the goal differs from the target.
POSITION, VELOCITY, ACCELERATION, JERK = 1, 2, 4, 8  # the target exceeded this limit
BRAKING = 16  # the joint could not stop in time after the target
FALLBACK_STOP = 32  # the joint followed its fallback stop for this tick

FREE, SOFT, HARD = 0, 1, 2  # kind of stop; FREE: the robot does not stop
HALVINGS = 10  # number of bisection steps
SLACK = 1e-12  # rad; rounding error of a stop that ends exactly at a limit

_NAN = float("nan")


class Motion:
    """Motion state of the robot after a tick. Lists have one entry per joint, [J], in SI units."""

    LISTS = (
        *("q", "v", "a", "stop_v", "stop_a", "stop_limit_a", "stop_limit_j"),
        *("target", "target_v", "clips", "blame"),
    )
    MEASURED = (
        *("measured", "measured_v", "raw_current_a", "current_a"),
        *(
            "still_low",
            "still_high",
            "still_s",
            "still_q",
            "still_a",
            "velocity_changed",
            "current_changed",
        ),
        *("has_velocity", "has_current", "squeeze"),
    )
    NUMBERS = (
        *("now_ns", "stop", "reasons", "seq", "fresh_ns", "middle_ns"),
        *("clipped", "bus_faults"),
    )
    __slots__ = (*LISTS, *MEASURED, *NUMBERS)

    q: list[float]  # goal
    v: list[float]  # velocity and acceleration of the goals (divided differences)
    a: list[float]
    stop_v: list[float]  # velocity and acceleration of the fallback stop at q
    stop_a: list[float]
    stop_limit_a: list[float]  # acceleration and jerk limits of the fallback stop
    stop_limit_j: list[float]
    target: list[float]  # target, clipped to the position limits; NaN: none
    target_v: list[float]  # velocity of the target; NaN: the target jumped, or is the first one
    clips: list[int]  # why the goal differs from the target: bits, see above
    blame: list[int]  # reasons of this tick that this joint caused: bits of Reason
    measured: list[float]  # position, velocity and current of the last good reading
    measured_v: list[float]
    raw_current_a: list[float]
    current_a: list[float]  # low-pass filtered current
    # Detection of a stuck sensor. A "standstill" is the time in which the measured position has not
    # changed although the goal may have.
    still_low: list[float]  # lowest and highest goal during the standstill
    still_high: list[float]
    still_s: list[float]  # time since still_low and still_high first differed
    still_q: list[float]  # goal and current just before they first differed
    still_a: list[float]
    velocity_changed: list[int]  # 1 if the measured velocity has changed since then
    current_changed: list[int]  # 1 if the measured current has changed since then
    has_velocity: list[int]  # 1 once a velocity was measured during any standstill
    has_current: list[int]  # 1 once the measured current has changed at all
    squeeze: list[float]  # fraction of the grip's maximum squeeze that is allowed now

    def __init__(self, q: Sequence[float], now_ns: int) -> None:
        """Create the state of a robot that was just armed: at rest at `q`."""
        count = len(q)
        for name in (*self.LISTS, *self.MEASURED):
            setattr(self, name, [0.0] * count)
        self.q[:], self.measured[:], self.target[:] = q, q, [_NAN] * count
        self.still_low[:], self.still_high[:] = q, q
        self.target_v[:], self.squeeze[:] = self.target, [1.0] * count
        self.stop_limit_a[:] = self.stop_limit_j[:] = [1.0] * count
        self.clips, self.blame = [0] * count, [0] * count
        for flags in (
            self.velocity_changed,
            self.current_changed,
            self.has_velocity,
            self.has_current,
        ):
            flags[:] = [0] * count
        self.now_ns = self.fresh_ns = now_ns
        self.middle_ns = 0  # time of the last good reading; 0: none yet
        self.stop = SOFT
        self.reasons = 0  # this tick's reasons to stop: bits of Reason
        self.seq = -1
        # +1 for each tick with a target out of reach, -0.5 for each tick on the target; at least 0
        self.clipped = 0.0
        self.bus_faults = 0.0  # +1 for each failed reading, decreases with each good one

    def rest_at(self, i: int, q: float) -> None:
        """Set joint i's goal to `q`, at rest. The goal jumps: no limit applies."""
        self.q[i], self.target[i], self.target_v[i] = q, _NAN, _NAN
        self.v[i] = self.a[i] = self.stop_v[i] = self.stop_a[i] = 0.0

    def is_at_rest(self) -> bool:
        """Return True if the last three goals are equal and the fallback stop has ended."""
        return not (any(self.v) or any(self.a) or any(self.stop_v) or any(self.stop_a))


def step(e: Envelope, i: int, before: Motion, after: Motion, target: float) -> int:
    """Advance joint i by one period toward `target`.

    Return the bits that say why the goal differs from the target. A target within the limits
    becomes the goal unchanged, bit for bit.
    """
    p, limit_v, limit_a, limit_j = e.period_s, e.velocity[i], e.acceleration[i], e.jerk[i]
    q, v, a = before.q[i], before.v[i], before.a[i]
    clips = 0
    if not e.low[i] <= target <= e.high[i]:
        target, clips = min(max(target, e.low[i]), e.high[i]), POSITION
    next_v = (target - q) / p
    next_a = (next_v - v) / p
    if abs(next_v) > limit_v:
        clips |= VELOCITY
    if abs(next_a) > limit_a:
        clips |= ACCELERATION
    if abs(next_a - a) > limit_j * p:
        clips |= JERK
    target_v = (target - before.target[i]) / p
    if not -limit_v <= target_v <= limit_v:  # the target jumped, or is the first one
        target_v = _NAN
    after.target[i], after.target_v[i] = target, target_v
    follows = q == before.target[i] or _can_keep_following(next_v, target_v, v, limit_j * p * p)
    if follows and not clips & ~POSITION:
        stop_v = next_v + next_a * p / 2
        if _can_stop(e, i, target, stop_v, next_a):
            _set_goal(after, i, before, target, p, stop_v, next_a, limit_a, limit_j)
            return clips
        clips |= BRAKING
    stop_v, stop_a = before.stop_v[i], before.stop_a[i]
    # A stop may brake harder than the limits of motion permit. Motion resumes from the parabola
    # through the last goals.
    if before.stop != FREE:
        stop_v, stop_a = v + a * p / 2, a
    if before.stop == FREE or (abs(a) <= limit_a and _can_stop(e, i, q, stop_v, stop_a)):
        target_a = (target_v - before.target_v[i]) / p
        if target_v != target_v:
            target_v = target_a = 0.0
        elif not abs(target_a) <= 0.8 * limit_a:
            target_a = 0.0
        if _approach(e, i, before, after, stop_v, stop_a, target, target_v, target_a) or (
            target_a and _approach(e, i, before, after, stop_v, stop_a, target, target_v, 0.0)
        ):
            return clips
    limit_a, limit_j = before.stop_limit_a[i], before.stop_limit_j[i]
    out, stop_v, stop_a = advance(q, before.stop_v[i], before.stop_a[i], limit_a, limit_j, p)
    _set_goal(after, i, before, out, p, stop_v, stop_a, limit_a, limit_j)
    return clips | FALLBACK_STOP


def _can_keep_following(next_v: float, target_v: float, v: float, change: float) -> bool:
    """Return True if a joint that reaches its moving target in this period can keep following it.

    change: difference of velocity between two periods at full jerk.
    """
    return abs(next_v - target_v) <= change / 2 and abs(2 * next_v - v - target_v) <= change * 0.75


def continue_stop(e: Envelope, i: int, before: Motion, after: Motion) -> None:
    """Advance joint i by one period along its fallback stop, with the stop limits in `after`."""
    limit_a, limit_j = after.stop_limit_a[i], after.stop_limit_j[i]
    stop_v, stop_a = before.stop_v[i], before.stop_a[i]
    out, stop_v, stop_a = advance(before.q[i], stop_v, stop_a, limit_a, limit_j, e.period_s)
    _set_goal(after, i, before, out, e.period_s, stop_v, stop_a, limit_a, limit_j)


def _approach(
    e: Envelope,
    i: int,
    before: Motion,
    after: Motion,
    v: float,
    a: float,
    target: float,
    target_v: float,
    target_a: float,
) -> bool:
    """Move joint i, now at v and a, to a moving target as fast as its limits permit.

    Return False if this is not possible. The computation uses the frame of the target. It combines
    two trajectories of one period:

        x = stop + share * (push - stop)

    `stop` is the quickest stop of the joint. `push` moves at full jerk: forward if the stop would
    end short of the target, backward if it would end beyond the target. `share`, from 0 to 1, is
    the largest for which the joint can still stop without passing the target or a limit. Velocity
    and acceleration are combined in the same way.

    `stop` and `push` keep the limits of acceleration and jerk, so x keeps these limits too. The
    limit of acceleration is reduced by the acceleration of the target. Otherwise x could exceed the
    limit between two samples, where no sample shows it.
    """
    p, limit_j = e.period_s, e.jerk[i]
    v, a = v - target_v + target_a * p / 2, a - target_a
    limit_a = e.acceleration[i] - abs(target_a)
    if abs(a) > limit_a:
        if target_a:
            return False
        limit_a = abs(a)
    room = target - target_v * p - before.q[i]
    gap = room - distance(v, a, limit_a, limit_j)
    x, stop_v, stop_a = advance(0.0, v, a, limit_a, limit_j, p)
    start, target_v = target - room, target_v + target_a * p / 2
    share = 0.0
    # A smaller gap needs no push: one period of jerk closes it. The target itself is then within
    # the limits.
    if abs(gap) > min(limit_j * p, limit_a) * p * p / 4:
        sign = 1.0 if gap > 0 else -1.0
        dx, dv, da = _push(v, a, sign, limit_a, limit_j, p)
        dx, dv, da = dx - x, dv - stop_v, da - stop_a
        low_share, high_share, share = 0.0, 1.0, 1.0
        for _ in range(HALVINGS):
            y, w, b = x + share * dx, stop_v + share * dv, stop_a + share * da
            fits = sign * (room - y - distance(w, b, limit_a, limit_j)) >= 0
            if fits and _can_stop(e, i, start + y, w + target_v, b + target_a):
                low_share = share
                if share == 1:
                    break
            else:
                high_share = share
            share = (low_share + high_share) / 2
        share = low_share
        x, stop_v, stop_a = x + share * dx, stop_v + share * dv, stop_a + share * da
    stop_v, stop_a = stop_v + target_v, stop_a + target_a
    speed = (start + x - before.q[i]) / p
    if abs(stop_a) > e.acceleration[i] or abs(speed) > e.velocity[i]:
        return False
    if not share and not _can_stop(e, i, start + x, stop_v, stop_a):
        return False
    _set_goal(after, i, before, start + x, p, stop_v, stop_a, e.acceleration[i], limit_j)
    return True


def _push(
    v: float, a: float, sign: float, limit_a: float, limit_j: float, p: float
) -> tuple[float, float, float]:
    """Return x, v and a after one period: full jerk up to limit_a, then constant acceleration."""
    jerk = sign * limit_j
    t = min(p, (limit_a - sign * a) / limit_j)
    x = t * (v + t * (a / 2 + t * jerk / 6))
    v, a = v + t * (a + t * jerk / 2), a + t * jerk
    t = p - t
    return x + t * (v + t * a / 2), v + t * a, a


def _can_stop(e: Envelope, i: int, q: float, v: float, a: float) -> bool:
    """Return True if joint i can stop from q, v and a without exceeding a limit."""
    limit_v, limit_a, limit_j = e.velocity[i], e.acceleration[i], e.jerk[i]
    rest_v = v + a * abs(a) / (2 * limit_j)  # velocity once the acceleration is back at 0
    if not (-limit_v <= v <= limit_v and -limit_v <= rest_v <= limit_v):
        return False
    if e.low[i] + e.room[i] <= q <= e.high[i] - e.room[i]:
        return True
    end, turned = distance(v, a, limit_a, limit_j), turn(v, a, limit_j)
    return (
        q + min(0.0, end, turned) >= e.low[i] - SLACK
        and q + max(0.0, end, turned) <= e.high[i] + SLACK
    )


def _set_goal(
    after: Motion,
    i: int,
    before: Motion,
    q1: float,
    p: float,
    stop_v: float,
    stop_a: float,
    limit_a: float,
    limit_j: float,
) -> None:
    """Store joint i's next goal and the fallback stop that begins at this goal."""
    after.q[i] = q1
    after.v[i] = v1 = (q1 - before.q[i]) / p
    after.a[i] = (v1 - before.v[i]) / p
    after.stop_v[i], after.stop_a[i] = stop_v, stop_a
    after.stop_limit_a[i], after.stop_limit_j[i] = limit_a, limit_j

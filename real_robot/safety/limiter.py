"""Limiter for one joint: the next goal, as near to the target as the joint's limits permit.

Let q be the goals as sent, one per period P. Then v = (q - q') / P, a = (v - v') / P and
j = (a - a') / P, where a prime marks the previous tick.

A goal is accepted only if the joint can still stop after it. One parabola passes through the last
three goals: position q, velocity v + a P / 2, acceleration a. From there, the quickest stop of a
continuous joint (`stopping`) must keep position and velocity inside their limits. That stop is then
the joint's way out. Sampled at the following ticks, its differences are means of its derivatives (a
divided difference is a mean of the derivative, by Peano), so they keep every limit, too. If the
next goal is not accepted, the joint follows the last accepted way out for one tick. So a goal that
keeps all limits always exists, and no sequence of targets can exceed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from real_robot.safety.limits import Envelope
from real_robot.safety.stopping import advance, distance, turn

# bits that say why a goal was changed
POSITION, VELOCITY, ACCELERATION, JERK = 1, 2, 4, 8  # the target exceeded this limit
BRAKING, WAY_OUT = 16, 32  # the joint braked to keep another limit: partly, completely

FREE, SOFT, HARD = 0, 1, 2  # kind of stop; FREE: none
HALVINGS = 10  # number of steps of a bisection
SLACK = 1e-12  # rad; rounding error of a stop that ends exactly at a limit

_NAN = float("nan")


class Motion:
    """Motion state of the robot after a tick. Lists over joints, [J], in SI units."""

    LISTS = (
        *("q", "v", "a", "way_v", "way_a", "way_limit_a", "way_limit_j"),
        *("goal", "goal_v", "clips", "blame"),
    )
    MEASURED = (
        *("measured", "measured_v", "drawn_a", "current_a"),
        *("still_low", "still_high", "still_s", "still_q", "still_a", "turned", "alive"),
        *("has_velocity", "has_current", "squeeze"),
    )
    NUMBERS = (
        *("now_ns", "stop", "reasons", "seq", "fresh_ns", "middle_ns"),
        *("clipped", "bus_faults"),
    )
    __slots__ = (*LISTS, *MEASURED, *NUMBERS)

    q: list[float]  # the goal as sent
    v: list[float]
    a: list[float]
    way_v: list[float]  # velocity and acceleration of the way out at q
    way_a: list[float]
    way_limit_a: list[float]  # acceleration and jerk limits of the way out
    way_limit_j: list[float]
    goal: list[float]  # the target; NaN: none
    goal_v: list[float]  # velocity of the target; NaN: it jumped
    clips: list[int]  # why the goal differs from the target
    blame: list[int]  # reasons of this tick that this joint caused: bits of Reason
    measured: list[float]  # q, dq and current of the last good reading
    measured_v: list[float]
    drawn_a: list[float]
    current_a: list[float]  # low-passed
    still_low: list[float]  # lowest and highest goal since the measured q last changed
    still_high: list[float]
    still_s: list[float]  # for how long these two have differed
    still_q: list[float]  # goal and current before they differed
    still_a: list[float]
    turned: list[int]  # 1 if the measured velocity has changed since then
    alive: list[int]  # 1 if the measured current has changed since then
    has_velocity: list[int]  # 1 once a velocity was measured while q stood still
    has_current: list[int]  # 1 once the measured current has changed
    squeeze: list[float]  # share of the grip's squeeze that a gripper uses

    def __init__(self, q: Sequence[float], now_ns: int) -> None:
        """Start at rest at `q`, as after arming."""
        count = len(q)
        for name in (*self.LISTS, *self.MEASURED):
            setattr(self, name, [0.0] * count)
        self.q[:], self.measured[:], self.goal[:] = q, q, [_NAN] * count
        self.still_low[:], self.still_high[:] = q, q
        self.goal_v[:], self.squeeze[:] = self.goal, [1.0] * count
        self.way_limit_a[:] = self.way_limit_j[:] = [1.0] * count
        self.clips, self.blame = [0] * count, [0] * count
        for flags in (self.turned, self.alive, self.has_velocity, self.has_current):
            flags[:] = [0] * count
        self.now_ns = self.fresh_ns = now_ns
        self.middle_ns = 0  # time of the last good reading; 0: none yet
        self.stop = SOFT
        self.reasons = 0  # this tick's reasons to stop: bits of Reason
        self.seq = -1
        self.clipped = 0.0  # ticks with an unreachable goal, minus half of those on the goal
        self.bus_faults = 0.0  # leaky count of failed readings

    def rest_at(self, i: int, q: float) -> None:
        """Put joint i's goal at rest at `q`, wherever it is now."""
        self.q[i], self.goal[i], self.goal_v[i] = q, _NAN, _NAN
        self.v[i] = self.a[i] = self.way_v[i] = self.way_a[i] = 0.0

    def is_at_rest(self) -> bool:
        """Return True if the goal and the three goals before it are the same."""
        return not (any(self.v) or any(self.a) or any(self.way_v) or any(self.way_a))


def step(e: Envelope, i: int, before: Motion, after: Motion, goal: float) -> int:
    """Advance joint i by one period toward `goal`. Return the bits of the limits in its way.

    A goal within the limits is sent unchanged, bit for bit.
    """
    p, limit_v, limit_a, limit_j = e.period_s, e.velocity[i], e.acceleration[i], e.jerk[i]
    q, v, a = before.q[i], before.v[i], before.a[i]
    clips = 0
    if not e.low[i] <= goal <= e.high[i]:
        goal, clips = min(max(goal, e.low[i]), e.high[i]), POSITION
    speed = (goal - q) / p
    pull = (speed - v) / p
    if abs(speed) > limit_v:
        clips |= VELOCITY
    if abs(pull) > limit_a:
        clips |= ACCELERATION
    if abs(pull - a) > limit_j * p:
        clips |= JERK
    goal_v = (goal - before.goal[i]) / p
    if not -limit_v <= goal_v <= limit_v:  # the target jumped, or is the first one
        goal_v = _NAN
    after.goal[i], after.goal_v[i] = goal, goal_v
    follows = q == before.goal[i] or _can_keep_following(speed, goal_v, v, limit_j * p * p)
    if follows and not clips & ~POSITION:
        way_v = speed + pull * p / 2
        if _can_stop(e, i, goal, way_v, pull):
            _set_goal(after, i, before, goal, p, way_v, pull, limit_a, limit_j)
            return clips
        clips |= BRAKING
    way_v, way_a = before.way_v[i], before.way_a[i]
    if before.stop != FREE:  # a stop brakes harder than motion permits: begin at the parabola
        way_v, way_a = v + a * p / 2, a
    if before.stop == FREE or (abs(a) <= limit_a and _can_stop(e, i, q, way_v, way_a)):
        goal_a = (goal_v - before.goal_v[i]) / p
        if goal_v != goal_v:
            goal_v = goal_a = 0.0
        elif not abs(goal_a) <= 0.8 * limit_a:
            goal_a = 0.0
        if _approach(e, i, before, after, way_v, way_a, goal, goal_v, goal_a) or (
            goal_a and _approach(e, i, before, after, way_v, way_a, goal, goal_v, 0.0)
        ):
            return clips
    limit_a, limit_j = before.way_limit_a[i], before.way_limit_j[i]
    out, way_v, way_a = advance(q, before.way_v[i], before.way_a[i], limit_a, limit_j, p)
    _set_goal(after, i, before, out, p, way_v, way_a, limit_a, limit_j)
    return clips | WAY_OUT


def _can_keep_following(speed: float, goal_v: float, v: float, change: float) -> bool:
    """Return True if a joint that reaches its moving goal in this period can keep following it.

    change: the change of velocity by one period of full jerk.
    """
    return abs(speed - goal_v) <= change / 2 and abs(2 * speed - v - goal_v) <= change * 0.75


def step_out(e: Envelope, i: int, before: Motion, after: Motion) -> None:
    """Advance joint i by one period of its way out, with the limits in `after`."""
    limit_a, limit_j = after.way_limit_a[i], after.way_limit_j[i]
    way_v, way_a = before.way_v[i], before.way_a[i]
    out, way_v, way_a = advance(before.q[i], way_v, way_a, limit_a, limit_j, e.period_s)
    _set_goal(after, i, before, out, e.period_s, way_v, way_a, limit_a, limit_j)


def _approach(
    e: Envelope,
    i: int,
    before: Motion,
    after: Motion,
    v: float,
    a: float,
    goal: float,
    goal_v: float,
    goal_a: float,
) -> bool:
    """Move joint i, now at v and a, to a moving goal as fast as its limits permit.

    Returns False if this is not possible. In the frame of the goal: if the joint's stop would end
    short of the goal, the joint is pushed forward; if beyond it, backward. The push is as large as
    keeps the end of the stop at the goal. Stop and push are continuous trajectories that keep the
    limits of acceleration and jerk, so any mixture of them keeps these limits. The joint's
    acceleration must fit into what the goal's acceleration leaves of the limit. Otherwise both
    trajectories would exceed the limit within the period, where no sample shows it.
    """
    p, limit_j = e.period_s, e.jerk[i]
    v, a = v - goal_v + goal_a * p / 2, a - goal_a
    limit_a = e.acceleration[i] - abs(goal_a)
    if abs(a) > limit_a:
        if goal_a:
            return False
        limit_a = abs(a)
    room = goal - goal_v * p - before.q[i]
    gap = room - distance(v, a, limit_a, limit_j)
    x, way_v, way_a = advance(0.0, v, a, limit_a, limit_j, p)
    start, goal_v = goal - room, goal_v + goal_a * p / 2
    share = 0.0
    # a smaller gap is closed by one period's jerk: the goal is soon within the limits
    if abs(gap) > min(limit_j * p, limit_a) * p * p / 4:
        sign = 1.0 if gap > 0 else -1.0
        dx, dv, da = _push(v, a, sign, limit_a, limit_j, p)
        dx, dv, da = dx - x, dv - way_v, da - way_a
        low_share, high_share, share = 0.0, 1.0, 1.0
        for _ in range(HALVINGS):
            y, w, b = x + share * dx, way_v + share * dv, way_a + share * da
            fits = sign * (room - y - distance(w, b, limit_a, limit_j)) >= 0
            if fits and _can_stop(e, i, start + y, w + goal_v, b + goal_a):
                low_share = share
                if share == 1:
                    break
            else:
                high_share = share
            share = (low_share + high_share) / 2
        share = low_share
        x, way_v, way_a = x + share * dx, way_v + share * dv, way_a + share * da
    way_v, way_a = way_v + goal_v, way_a + goal_a
    speed = (start + x - before.q[i]) / p
    if abs(way_a) > e.acceleration[i] or abs(speed) > e.velocity[i]:
        return False
    if not share and not _can_stop(e, i, start + x, way_v, way_a):
        return False
    _set_goal(after, i, before, start + x, p, way_v, way_a, e.acceleration[i], limit_j)
    return True


def _push(
    v: float, a: float, sign: float, limit_a: float, limit_j: float, p: float
) -> tuple[float, float, float]:
    """Return x, v and a after a period of full jerk, then full acceleration."""
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
    way_v: float,
    way_a: float,
    limit_a: float,
    limit_j: float,
) -> None:
    """Store joint i's next goal and the way out from there."""
    after.q[i] = q1
    after.v[i] = v1 = (q1 - before.q[i]) / p
    after.a[i] = (v1 - before.v[i]) / p
    after.way_v[i], after.way_a[i] = way_v, way_a
    after.way_limit_a[i], after.way_limit_j[i] = limit_a, limit_j

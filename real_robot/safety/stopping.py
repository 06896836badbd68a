"""The quickest stop of one joint under a limit of acceleration and of jerk, in closed form.

The stop has three parts: the acceleration goes to a peak against the velocity at full jerk, stays
there where the peak is the limit, and returns to zero together with the velocity. It depends on the
present velocity and acceleration alone, so going along it a little and asking again gives the rest
of the same stop. Used: Biagiotti and Melchiorri, Trajectory Planning for Automatic Machines and
Robots, Springer 2008, section 3.4.
"""

from __future__ import annotations

from math import sqrt


def phases(v: float, a: float, limit_a: float, limit_j: float) -> tuple[float, float, float, float]:
    """(s, t1, t2, t3): the sign of jerk in the first part, and the three durations in s."""
    s = -1.0
    if v + a * abs(a) / (2 * limit_j) < 0:  # the velocity that remains once a is taken back
        s, v, a = 1.0, -v, -a
    square = limit_j * v + a * a / 2
    peak = sqrt(square) if square > 0 else 0.0
    t2 = 0.0
    if peak > limit_a:
        peak = limit_a
        t2 = (v + a * a / (2 * limit_j)) / limit_a - limit_a / limit_j
    return s, max(0.0, (a + peak) / limit_j), max(0.0, t2), peak / limit_j


def duration_s(v: float, a: float, limit_a: float, limit_j: float) -> float:
    """How long the stop takes."""
    _, t1, t2, t3 = phases(v, a, limit_a, limit_j)
    return t1 + t2 + t3


def advance(
    x: float, v: float, a: float, limit_a: float, limit_j: float, dt_s: float
) -> tuple[float, float, float]:
    """Position, velocity and acceleration after `dt_s` of the stop; exact."""
    s, t1, t2, t3 = phases(v, a, limit_a, limit_j)
    if dt_s >= t1 + t2 + t3:
        return x + distance(v, a, limit_a, limit_j), 0.0, 0.0
    jerk = s * limit_j
    t = t1 if t1 < dt_s else dt_s
    x += t * (v + t * (a / 2 + t * jerk / 6))
    v += t * (a + t * jerk / 2)
    a += t * jerk
    dt_s -= t
    if dt_s > 0:
        t = t2 if t2 < dt_s else dt_s
        x += t * (v + t * a / 2)
        v += t * a
        dt_s -= t
        if dt_s > 0:
            x += dt_s * (v + dt_s * (a / 2 - dt_s * jerk / 6))
            v += dt_s * (a - dt_s * jerk / 2)
            a -= dt_s * jerk
    return x, v, a


def distance(v: float, a: float, limit_a: float, limit_j: float) -> float:
    """Where the joint comes to rest, from where it is; signed."""
    s, t1, t2, t3 = phases(v, a, limit_a, limit_j)
    jerk = s * limit_j
    x = t1 * (v + t1 * (a / 2 + t1 * jerk / 6))
    v += t1 * (a + t1 * jerk / 2)
    a += t1 * jerk
    x += t2 * (v + t2 * a / 2)
    return x - jerk * t3 * t3 * t3 / 6  # backward from rest: v = -jerk t²/2


def turn(v: float, a: float, limit_j: float) -> float:
    """How far the joint still goes the wrong way where the stop must first turn it round; signed.

    0 where it does not: velocity and what remains of it have the same sign.
    """
    rest = v + a * abs(a) / (2 * limit_j)
    if v < 0 < rest:
        t = (a - sqrt(2 * limit_j * rest)) / limit_j
        return t * (v + t * (a / 2 - t * limit_j / 6))
    if rest < 0 < v:
        t = (-a - sqrt(-2 * limit_j * rest)) / limit_j
        return t * (v + t * (a / 2 + t * limit_j / 6))
    return 0.0

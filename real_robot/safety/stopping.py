"""Quickest stop of one joint under limits of acceleration and jerk, in closed form.

The stop has three parts. In the first, the joint brakes with increasing deceleration, at full jerk.
In the second, the deceleration is constant, at its limit; a short stop has no such part. In the
third, the deceleration decreases at full jerk and reaches zero together with the velocity.

The stop depends only on the present velocity and acceleration. If it is computed again at a later
point of the stop, the result is the remainder of the same stop. Source: Biagiotti and Melchiorri,
Trajectory Planning for Automatic Machines and Robots, Springer 2008, section 3.4.
"""

from __future__ import annotations

from math import sqrt


def phases(v: float, a: float, limit_a: float, limit_j: float) -> tuple[float, float, float, float]:
    """Return (s, t1, t2, t3): sign of the jerk in the first part, and the three durations in s."""
    s = -1.0
    if v + a * abs(a) / (2 * limit_j) < 0:  # velocity once the acceleration is back at 0
        s, v, a = 1.0, -v, -a
    square = limit_j * v + a * a / 2
    peak = sqrt(square) if square > 0 else 0.0
    t2 = 0.0
    if peak > limit_a:
        peak = limit_a
        t2 = (v + a * a / (2 * limit_j)) / limit_a - limit_a / limit_j
    return s, max(0.0, (a + peak) / limit_j), max(0.0, t2), peak / limit_j


def duration_s(v: float, a: float, limit_a: float, limit_j: float) -> float:
    """Return the duration of the stop in s."""
    _, t1, t2, t3 = phases(v, a, limit_a, limit_j)
    return t1 + t2 + t3


def advance(
    x: float, v: float, a: float, limit_a: float, limit_j: float, dt_s: float
) -> tuple[float, float, float]:
    """Return position, velocity and acceleration after `dt_s` of the stop. The result is exact."""
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
    """Return the signed distance from the joint's position to where it comes to rest."""
    s, t1, t2, t3 = phases(v, a, limit_a, limit_j)
    jerk = s * limit_j
    x = t1 * (v + t1 * (a / 2 + t1 * jerk / 6))
    v += t1 * (a + t1 * jerk / 2)
    a += t1 * jerk
    x += t2 * (v + t2 * a / 2)
    return x - jerk * t3 * t3 * t3 / 6  # backward from rest: v = -jerk t²/2


def turn(v: float, a: float, limit_j: float) -> float:
    """Return the signed distance that the joint still moves before it reverses its direction.

    Return 0 if the direction does not reverse. This is the case if v has the same sign as the
    velocity at the time when a is back at 0.
    """
    rest_v = v + a * abs(a) / (2 * limit_j)
    if v < 0 < rest_v:
        t = (a - sqrt(2 * limit_j * rest_v)) / limit_j
        return t * (v + t * (a / 2 - t * limit_j / 6))
    if rest_v < 0 < v:
        t = (-a - sqrt(-2 * limit_j * rest_v)) / limit_j
        return t * (v + t * (a / 2 + t * limit_j / 6))
    return 0.0

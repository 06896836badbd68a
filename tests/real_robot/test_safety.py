"""Safety check: no sequence of targets, readings and delays exceeds a limit."""

import ast
import copy
import gc
import math
import random
import tracemalloc
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robots_in_memory import Clock, MemoryRobot, limits, spec, workspace

from real_robot.control.kinematics import forward
from real_robot.robot import Code, Limits, Reading, Status
from real_robot.safety.check import check, has_jumped
from real_robot.safety.guard import Guard
from real_robot.safety.limiter import ACCELERATION, FREE, JERK, POSITION, VELOCITY, Motion
from real_robot.safety.limits import (
    Envelope,
    Rules,
    envelope,
    limit_problems,
    limits_from,
    tightest,
)
from real_robot.safety.states import MOVING, Reason, Refused, State
from real_robot.safety.stopping import advance, distance, duration_s, turn

ROOT = Path(__file__).resolve().parents[2]


class Unruled(Rules):
    """Rules without ranges, which no user can set."""

    def __post_init__(self) -> None:
        """Accept any number."""


NOTHING_TRIPS = Unruled(trip_after_s=1e9, trip_ratio=1e9)


def reading(q, seq: int, now_ns: int, **changes) -> Reading:
    values = {"code": Code.OK, "dq": np.zeros(len(q)), "current_a": np.full(len(q), 0.1)}
    values |= {"status": np.zeros(len(q), int), "middle_ns": now_ns} | changes
    return Reading(seq=seq, request_ns=now_ns, end_ns=now_ns, q=np.array(q), **values)


class Run:
    """Check tick by tick, with a robot that follows exactly."""

    def __init__(self, e: Envelope, q0=None) -> None:
        self.e, self.now, self.seq = e, 10**9, 0
        start = list(q0) if q0 is not None else [0.0] * len(e.joints)
        self.motion, self.other = Motion(start, self.now), Motion(start, self.now)
        self.q, self.stops, self.reasons = [list(start)], [0], [0]

    def tick(self, target, state=State.RUNNING, periods: float = 1.0, found=None, **others):
        self.now += int(periods * self.e.period_s * 1e9)
        self.seq += 1
        found = found or reading(self.motion.q, self.seq, self.now)
        check(self.e, self.motion, self.other, state, target, found, self.now, **others)
        self.motion, self.other = self.other, self.motion
        self.q.append(list(self.motion.q))
        self.stops.append(self.motion.stop)
        self.reasons.append(self.motion.reasons)
        return self.motion


def assert_within(run: Run) -> None:
    """Compare the differences of the goals with the limits in force, in numpy.

    The first difference divides by one period, the third by three: so does rounding.
    """
    e, period = run.e, run.e.period_s
    q = np.array([run.q[0]] * 3 + run.q)
    v = np.diff(q, axis=0) / period
    a = np.diff(v, axis=0) / period
    j = np.diff(a, axis=0) / period
    stopping = np.array(run.stops)[:, None] != FREE
    rounding = 4e-15 * np.abs(q).max() + 1e-15
    assert (q >= np.array(e.low) - 1e-11).all()
    assert (q <= np.array(e.high) + 1e-11).all()
    assert (np.abs(v) <= np.array(e.velocity) * (1 + 1e-9) + rounding / period).all()
    most = np.where(stopping, e.stop_acceleration, e.acceleration)
    assert (np.abs(a[1:]) <= most * (1 + 1e-9) + 4 * rounding / period**2).all()
    most = np.where(stopping, e.stop_jerk, e.jerk)
    assert (np.abs(j) <= most * (1 + 1e-9) + 8 * rounding / period**3).all()


@st.composite
def envelopes(draw) -> Envelope:
    """Draw a robot: slow or fast, soft or stiff, wide or narrow limits, 20 Hz to 1 kHz."""

    def log(low: float, high: float) -> float:
        return math.exp(draw(st.floats(math.log(low), math.log(high))))

    room = log(0.01, 6.0)
    middle = draw(st.floats(-2, 2))
    acceleration, jerk = log(0.5, 100.0), log(5.0, 20_000.0)
    chosen = limits(
        position_low=middle - room / 2,
        position_high=middle + room / 2,
        velocity=log(0.05, 10.0),
        acceleration=acceleration,
        jerk=jerk,
        stop_acceleration=acceleration * log(1, 5),
        stop_jerk=jerk * log(1, 5),
        tracking_error=1e3,
        current_a=math.inf,
    )
    rate_hz = draw(st.sampled_from([20.0, 50.0, 200.0, 500.0, 1000.0]))
    return envelope(spec(), chosen, rate_hz, NOTHING_TRIPS)


def wild(rng: random.Random, e: Envelope, style: str, k: int, last: list[float]) -> list[float]:
    """Draw targets of one style; some exceed the limits, some are NaN."""
    found = []
    for i in range(len(e.joints)):
        low, high = e.low[i], e.high[i]
        room = high - low
        if style == "noise":
            x = rng.uniform(low - room, high + room)
        elif style == "nyquist":
            x = (low, high)[k % 2]
        elif style == "walk":
            x = last[i] + rng.gauss(0, 1) * e.velocity[i] * e.period_s
        elif style == "steps":
            x = last[i] if rng.random() < 0.97 else rng.uniform(low - room, high + room)
        elif style == "wave":  # at half of the limits: sent unchanged, with an acceleration
            w = min(1.0, e.jerk[i] / e.acceleration[i], 0.2 / e.period_s)
            most = min(e.velocity[i] / w, e.acceleration[i] / w**2, e.jerk[i] / w**3, room)
            x = (low + high) / 2 + 0.5 * min(most, room) * math.sin(w * k * e.period_s)
        elif style == "ramp":  # at full speed to the limit
            x = last[i] + 0.999 * e.velocity[i] * e.period_s
        else:
            x = last[i] + rng.choice((-1, 1)) * rng.random() ** 4 * room / 10
        found.append(x)
    return found


STYLES = ["noise", "nyquist", "walk", "steps", "ramp", "twitch", "wave"]


@settings(max_examples=120, deadline=None)
@given(
    envelopes(), st.integers(0, 10**6), st.lists(st.sampled_from(STYLES), min_size=1, max_size=3)
)
def test_no_targets_readings_and_delays_exceed_a_limit(e: Envelope, seed: int, styles):
    rng = random.Random(seed)
    run = Run(e, [rng.uniform(low, high) for low, high in zip(e.low, e.high, strict=True)])
    target, state = list(run.motion.q), State.RUNNING
    for k in range(120 * len(styles)):
        target = wild(rng, e, styles[k // 120], k, target)
        if (
            rng.random() < 0.02
        ):  # arbitrary changes of state are more than the state machine permits
            state = rng.choice(list(State)[3:])
        elif rng.random() < 0.1:
            state = State.RUNNING
        asked = target
        if rng.random() < 0.01:
            asked = rng.choice([None, [math.nan, 0.0], [math.inf, 0.0], [0.0], []])
        found = None
        if rng.random() < 0.05:
            q = [rng.choice([math.nan, 1e9, 0.0, run.motion.q[0]]) for _ in e.joints]
            code = rng.choice(list(Code))
            found = reading(q, rng.choice([run.seq + 1, 0]), run.now, code=code)
        run.tick(asked, state, rng.choice([1, 1, 1, 0.5, 2, 3.7, 1000, -1]), found)
        assert all(map(math.isfinite, run.motion.q))
    assert_within(run)
    for _ in range(100_000):  # from any motion it comes to rest inside its limits
        if run.tick(None, State.SOFT_STOP).is_at_rest():
            break
    assert run.motion.is_at_rest()
    assert_within(run)


@pytest.mark.parametrize("seed", [855, 1268, 1921])
def test_an_accelerating_goal_exceeds_no_limit_within_a_period(seed: int):
    """The acceleration can change completely within a period, and the goal accelerates, too."""
    rng = random.Random(seed)
    acceleration = rng.choice([0.5, 6.0, 60.0])
    jerk = acceleration * 20.0 * rng.choice([2, 10, 100])
    of_stops = {"stop_acceleration": acceleration, "stop_jerk": jerk, "tracking_error": 1e3}
    own = {"velocity": acceleration / 20.0 * rng.choice([3, 10, 30]), "acceleration": acceleration}
    room = {"position_low": -5.0, "position_high": 5.0, "jerk": jerk}
    e = envelope(spec(), limits(**room, **own, **of_stops), 20.0, NOTHING_TRIPS)
    run = Run(e)
    goal, speed, push = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for _ in range(120):
        for i in range(2):
            if rng.random() < 0.1:
                push[i] = rng.choice([-0.8, -0.5, 0.5, 0.8]) * acceleration
            if rng.random() < 0.03:
                speed[i] = rng.uniform(-1, 1) * e.velocity[i]
            speed[i] = min(max(speed[i] + push[i] * 0.05, -e.velocity[i]), e.velocity[i])
            goal[i] += speed[i] * 0.05
            if rng.random() < 0.02:
                goal[i] = run.motion.q[i] + rng.uniform(-0.2, 0.2)
        run.tick(list(goal))
    assert_within(run)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-5, 5),
    st.floats(-1, 1),
    st.floats(0.1, 100),
    st.floats(1, 1e4),
    st.floats(0.01, 1),
)
def test_the_closed_form_of_a_stop_equals_integration(v, part, limit_a, limit_j, share):
    """The reference is a numerical integration; and two partial stops equal one stop."""
    a = part * limit_a
    took = duration_s(v, a, limit_a, limit_j)
    x, w, b, lowest, highest = 0.0, v, a, 0.0, 0.0
    for _ in range(400):
        y, u, c = advance(x, w, b, limit_a, limit_j, took / 400)
        assert abs(c) <= limit_a * (1 + 1e-9)
        assert abs(c - b) <= limit_j * took / 400 * (1 + 1e-6) + 1e-9
        x, w, b = y, u, c
        lowest, highest = min(lowest, x), max(highest, x)
    scale = max(1.0, abs(v) * took, limit_a * took**2)
    end = distance(v, a, limit_a, limit_j)
    assert x == pytest.approx(end, abs=1e-9 * scale)
    assert abs(w) <= 1e-6 * max(1.0, limit_a * took)
    turned = turn(v, a, limit_j)
    assert lowest >= min(0.0, end, turned) - 1e-9 * scale
    assert highest <= max(0.0, end, turned) + 1e-9 * scale
    halfway = advance(0.0, v, a, limit_a, limit_j, share * took)
    rest = halfway[0] + distance(*halfway[1:], limit_a, limit_j)
    assert rest == pytest.approx(end, abs=1e-7 * scale)


def test_a_stop_without_a_jerk_limit_equals_the_textbook_formula():
    assert distance(2.0, 0.0, 10.0, 1e12) == pytest.approx(2.0**2 / (2 * 10))
    assert duration_s(2.0, 0.0, 10.0, 1e12) == pytest.approx(2.0 / 10)


def test_a_target_within_the_limits_is_sent_unchanged():
    run = Run(envelope(spec(), limits(), 200.0))
    for k in range(400):
        t = k / 200
        target = [0.3 * t**3 / (1 + t**3), -0.2 * (t - math.sin(2 * t) / 2)]
        assert run.tick(target).q == target, k
        assert run.motion.clips == [0, 0]
        assert run.motion.reasons == 0


@pytest.mark.parametrize("rate_hz", [50.0, 200.0, 500.0])
def test_a_step_of_a_radian_becomes_a_ramp_that_arrives(rate_hz: float):
    """The ramp takes at least the minimum time, and not much more."""
    run = Run(envelope(spec(), limits(), rate_hz, NOTHING_TRIPS))
    while abs(run.motion.q[0] - 1.0) > 1e-3 or abs(run.motion.v[0]) > 1e-2:
        run.tick([1.0, 0.0])
    fastest = 1.0 / 2.0 + 2.0 / 15.0 + 15.0 / 400.0  # d / v + v / a + a / j
    took = (len(run.q) - 1) / rate_hz
    assert 0.98 * fastest - 1 / rate_hz < took < 1.4 * fastest
    assert max(q[0] for q in run.q) < 1.01
    assert run.tick([1.0, 0.0]).q[1] == 0.0
    assert_within(run)


@pytest.mark.parametrize(
    ("target", "bit"),
    [
        ([3.0, 0.0], POSITION),
        ([2.0 / 200 * 1.1, 0.0], VELOCITY),
        ([16.0 / 200**2, 0.0], ACCELERATION),
        ([401.0 / 200**3, 0.0], JERK),
    ],
)
def test_the_limits_that_held_a_target_back_are_reported(target, bit: int):
    run = Run(envelope(spec(), limits(), 200.0, NOTHING_TRIPS))
    assert run.tick(target).clips[0] & bit
    assert run.motion.clips[1] == 0


def test_targets_beyond_a_limit_stop_the_robot_after_a_while():
    e = envelope(spec(), limits(), 200.0, Unruled(trip_ratio=1e9))
    run = Run(e, [2.0, 0.0])
    ticks = next(k for k in range(1, 1000) if run.tick([2.5, 0.0]).reasons)
    assert run.motion.reasons == 1 << Reason.CLIPPED_TOO_LONG
    assert ticks / 200 == pytest.approx(0.4, abs=0.02)


def test_a_long_way_at_the_velocity_limit_is_not_a_fault():
    """The ramp takes two seconds."""
    run = Run(envelope(spec(), limits(), 200.0, Unruled(trip_ratio=1e9)), [-1.9, 0.0])
    while abs(run.motion.q[0] - 1.9) > 1e-9:
        assert run.tick([1.9, 0.0]).reasons == 0
    assert len(run.q) / 200 > 1.9


def test_an_oscillation_from_tick_to_tick_stops_the_robot_within_half_a_second():
    run = Run(envelope(spec(), limits(), 200.0, Unruled(trip_ratio=1e9)))
    ticks = next(k for k in range(1, 1000) if run.tick([0.3 * (-1) ** k, 0.0]).reasons)
    assert ticks / 200 <= 0.5
    assert_within(run)


def test_a_target_far_beyond_the_limits_stops_the_robot_immediately():
    run = Run(envelope(spec(), limits(), 200.0))
    assert run.tick([1.9, 0.0]).reasons == 0  # 190 times
    run = Run(envelope(spec(), limits(velocity=1.0), 200.0))
    assert run.tick([1.9, 0.0]).reasons == 1 << Reason.REQUEST_EXTREME  # 380 times
    assert abs(run.motion.q[0]) < 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_target_that_is_not_finite_is_never_sent_and_stops_the_robot(bad: float):
    run = Run(envelope(spec(), limits(), 200.0))
    for k in range(60):
        run.tick([0.01 * k, 0.0])
    assert run.tick([0.6, bad]).reasons == 1 << Reason.TARGET_NOT_FINITE
    while not run.tick(None, State.SOFT_STOP).is_at_rest():
        pass
    assert_within(run)
    assert all(map(math.isfinite, run.motion.q))


def moving_run(**changes: float) -> Run:
    """Return a run with constant velocities of 1 rad/s and -0.5 rad/s."""
    run = Run(envelope(spec(), limits(**changes), 200.0, NOTHING_TRIPS))
    for k in range(150):
        run.tick([k / 200, -k / 400])
    assert run.motion.v == pytest.approx([1.0, -0.5], abs=1e-6)
    return run


@pytest.mark.parametrize("state", [State.SOFT_STOP, State.FAULT])
@pytest.mark.parametrize("ticks", range(5, 20, 3))
def test_a_stop_during_acceleration_keeps_every_limit(ticks: int, state: State):
    """The target is sent unchanged, at almost the limits of acceleration and jerk."""
    run = Run(envelope(spec(), limits(jerk=150.0, stop_jerk=150.0), 200.0))
    for k in range(ticks):
        t = k / 200
        run.tick([24 * t**3, 0.0])
        assert run.motion.q[0] == 24 * t**3
    while not run.tick(None, state).is_at_rest():
        pass
    assert_within(run)


def test_a_soft_stop_brings_all_joints_to_rest_together_and_along_their_path():
    run = moving_run()
    start = np.array(run.motion.q)
    last = [0.0, 0.0]
    while not run.tick(None, State.SOFT_STOP).is_at_rest():
        last = [len(run.q) if v else t for v, t in zip(run.motion.v, last, strict=True)]
    assert abs(last[0] - last[1]) <= 2
    way = np.array(run.motion.q) - start
    assert way[1] / way[0] == pytest.approx(-0.5, rel=0.05)
    assert_within(run)


def test_a_fault_stops_as_hard_as_declared():
    """The time is v / a + a / j, and one tick for each difference."""
    run = moving_run()
    ticks = 0
    while not run.tick(None, State.FAULT).is_at_rest():
        ticks += 1
    assert ticks / 200 <= 1.0 / 25 + 25 / 1000 + 3 / 200
    assert_within(run)


def test_joints_that_cannot_stop_softly_in_their_limits_stop_hard():
    """The slower joint is close to its limit; a longer stop would exceed it."""
    e = envelope(spec(), limits(), 200.0, NOTHING_TRIPS)
    run = Run(e, [0.0, 1.6])
    for k in range(200):
        run.tick([2.0 * k / 200, 1.6 + 0.4 * k / 200])
    while not run.tick(None, State.SOFT_STOP).is_at_rest():
        pass
    assert_within(run)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": np.array([0, 4])}, Reason.SERVO_ERROR),
        ({"status": np.array([2, 0])}, Reason.SERVO_ERROR),
        ({"code": Code.LOST}, Reason.BUS_LOST),
        ({"q": [0.75 + 2 * math.pi, -0.37]}, Reason.ENCODER_LEAPT),
        ({"dq": np.array([9.0, 0.0])}, Reason.VELOCITY_MEASURED),
        ({"q": [0.75, math.nan]}, Reason.VELOCITY_MEASURED),
        ({"q": [0.5, -0.37]}, Reason.TRACKING_ERROR),
    ],
)
def test_an_impossible_reading_stops_the_robot_in_the_same_tick(changes, reason: Reason):
    run = moving_run()
    q = changes.pop("q", [0.745, -0.3725])
    found = reading(q, run.seq + 1, run.now, **changes)
    assert run.tick([0.75, -0.375], found=found).reasons >> reason & 1
    assert abs(run.motion.a[0]) > 0


def test_current_over_its_limit_stops_and_1_5_times_the_limit_is_a_fault():
    run = moving_run()
    for drawn, reason in ((1.3, Reason.CURRENT_HIGH), (4.0, Reason.CURRENT_EXTREME)):
        start = run.now
        while not run.motion.reasons >> reason & 1:
            found = reading(run.motion.q, run.seq + 1, run.now, current_a=np.array([drawn, 0.1]))
            run.tick(None, State.HOLD, found=found)
            assert run.now - start < 0.15e9
        assert run.now - start > 0.005e9  # a single sample is not a mean


def test_a_reading_that_stays_the_same_is_stale_by_number_and_by_value():
    run = moving_run()
    old = reading(run.motion.q, run.seq, run.now)
    start = run.now
    while not run.motion.reasons:
        run.tick([run.motion.q[0] + 0.005, run.motion.q[1]], found=old)
    assert run.motion.reasons == 1 << Reason.READING_STALE
    assert run.now - start <= 0.03e9 + 5e6 + 1

    run = moving_run()
    q = list(run.motion.q)
    while not run.motion.reasons:
        found = reading(q, run.seq + 1, run.now)
        run.tick([run.motion.q[0] + 0.005, run.motion.q[1]], found=found)
    assert run.motion.reasons == 1 << Reason.SENSOR_STUCK


@pytest.mark.parametrize("periods", [-1, 0, 6, 400])
def test_a_jump_of_the_clock_stops_the_robot(periods: int):
    run = moving_run()
    assert run.tick([0.75, -0.375], periods=periods).reasons >> Reason.CLOCK_JUMPED & 1


def test_a_silent_watchdog_stops_the_robot():
    run = moving_run()
    assert run.tick([0.75, -0.375], watchdog_ns=run.now - 70_000_000).reasons == 0
    run.tick([0.755, -0.3775], watchdog_ns=run.now - 90_000_000)
    assert run.motion.reasons == 1 << Reason.WATCHDOG_SILENT


def test_the_check_changes_only_its_output():
    run = moving_run()
    before, target = copy.deepcopy(run.motion), [0.8, 0.1]
    outcomes = []
    for junk in (run.other, Motion([5.0, 5.0], 3)):
        found = reading(run.motion.q, run.seq + 1, run.now)
        check(run.e, run.motion, junk, State.RUNNING, target, found, run.now + 5_000_000)
        outcomes.append([repr(getattr(junk, name)) for name in Motion.__slots__])
    assert outcomes[0] == outcomes[1]
    for name in Motion.__slots__:
        assert repr(getattr(before, name)) == repr(getattr(run.motion, name)), name
    assert target == [0.8, 0.1]


def test_the_check_leaves_no_objects():
    run = Run(envelope(spec(), limits(), 200.0, NOTHING_TRIPS))
    rng = random.Random(0)
    targets = [[rng.uniform(-2, 2), rng.uniform(-2, 2)] for _ in range(64)]
    states = [rng.choice((State.RUNNING, State.RUNNING, State.SOFT_STOP)) for _ in range(64)]
    q = np.zeros(2)
    found = [reading(q, k, 10**9) for k in range(400)]

    def ticks(first: int) -> None:
        a, b = run.motion, run.other
        for k in range(first, first + 100):
            now = 10**9 + 5_000_000 * (k + 1)
            check(run.e, a, b, states[k % 64], targets[k % 64], found[k], now)
            a, b = b, a

    ticks(0)
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        ticks(100)
        before, objects = tracemalloc.get_traced_memory()[0], gc.get_count()[0]
        ticks(200)
        assert tracemalloc.get_traced_memory()[0] - before < 1000  # only floats differ
        assert abs(gc.get_count()[0] - objects) <= 1
    finally:
        tracemalloc.stop()
        gc.enable()


# limits


def test_the_tightest_limits_are_in_force_except_for_stops():
    bundle = limits_from({"velocity": {"a": 1.0}, "position_low": {"b": -1.0}}, ("a", "b"))
    user = limits_from({"velocity": {"a": 5.0}, "stop_jerk": {"a": 1.0}}, ("a", "b"))
    merged = tightest(limits(), bundle, user)
    assert merged.velocity.tolist() == [1.0, 2.0]
    assert merged.position_low.tolist() == [-2.0, -1.0]
    assert merged.stop_jerk.tolist() == [1000.0, 1000.0]
    assert limit_problems(("a", "b"), merged) == []


@pytest.mark.parametrize("name", [f.name for f in fields(Limits)][2:])
def test_a_limit_near_zero_is_refused(name: str):
    tiny = limits(**{name: 5e-324})
    sentence = f"joint shoulder: {name} is 4.94066e-324, expected at least 1e-06"
    assert any(fault.startswith(sentence) for fault in limit_problems(("shoulder", "elbow"), tiny))
    with pytest.raises(ValueError, match=r"a limit is 4\.94066e-324, expected at least"):
        envelope(spec(), tiny, 200.0)


def test_the_smallest_accepted_limits_cause_no_division_by_zero():
    smallest = dict.fromkeys([f.name for f in fields(Limits)][2:], 1e-6)
    run = Run(envelope(spec(), limits(**smallest), 200.0, NOTHING_TRIPS))
    rng = random.Random(0)
    for _ in range(400):
        run.tick([rng.uniform(-2, 2), 0.0], rng.choice(list(State)[3:]))
    assert_within(run)


def test_a_missing_or_impossible_limit_is_named_with_its_joint():
    nothing = Limits(**{name: np.array([np.nan]) for name in vars(limits())})
    assert len(limit_problems(("wrist",), nothing)) == 9
    assert "joint wrist has no limit position_low" in limit_problems(("wrist",), nothing)[0]
    for name, value in (("velocity", 0.0), ("jerk", math.inf), ("position_low", 3.0)):
        assert name in limit_problems(("a", "b"), limits(**{name: value}))[0]
    assert "at least as hard" in limit_problems(("a", "b"), limits(stop_jerk=10.0))[0]
    with pytest.raises(ValueError, match="no limit 'speed'"):
        limits_from({"speed": {"a": 1.0}}, ("a",))


# workspace


def test_the_robot_stays_in_its_workspace_although_no_joint_limit_is_reached(tmp_path):
    """The tool is at 0.5 m with stretched links; the box ends at 0.45 m."""
    robot = spec(workspace=workspace(tmp_path))
    points = forward(robot)
    e = envelope(robot, limits(), 200.0, NOTHING_TRIPS, points)
    run = Run(e, [0.0, 1.5])
    while not run.motion.reasons:
        run.tick([0.0, 0.0])
    assert run.motion.reasons == 1 << Reason.WORKSPACE
    while not run.tick(None, State.SOFT_STOP).is_at_rest():
        pass
    tool = [0.3 * math.cos(a) + 0.2 * math.cos(a + b) for a, b in run.q]
    assert max(tool) <= 0.45
    assert tool[-1] > 0.40
    assert_within(run)


def test_joints_that_would_leave_the_workspace_together_stop_hard():
    """The slower joint can stop within 8 mrad; a synchronous stop would take more."""

    def stopped(high: float) -> Run:
        run = Run(envelope(spec(), limits(), 200.0, NOTHING_TRIPS))
        for k in range(200):
            run.tick([k / 200, 0.3 * k / 200])
        box = {"box_low_m": (-9.0, -9.0, -9.0), "box_high_m": (9.0, high, 9.0)}
        run.e = replace(run.e, points=lambda q: [q[0], q[1], 0.0], **box)
        while not run.tick(None, State.SOFT_STOP).is_at_rest():
            pass
        return run

    here = 0.3 * 199 / 200
    assert stopped(9.0).motion.q[1] > here + 0.008
    run = stopped(here + 0.008)
    assert max(q[1] for q in run.q) <= here + 0.008
    assert_within(run)


# the guard


def test_only_the_guard_commands_a_robot():
    """No other file of the package calls `.command(`, and the guard does not expose its adapter."""
    callers = set()
    for file in (ROOT / "real_robot").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found = node.func.attr
                if found == "command" and "robots" not in file.relative_to(ROOT).parts:
                    callers.add(file.name)
    assert callers == {"guard.py"}
    clock = Clock()
    robot = MemoryRobot(clock, spec())
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0))
    public = [getattr(guard, name) for name in dir(guard) if not name.startswith("_")]
    assert not [value for value in public if value is robot]


def armed(**changes: float) -> tuple[Guard, MemoryRobot, Clock]:
    clock = Clock()
    robot = MemoryRobot(clock, spec(**changes))
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0))
    guard.connect(clock.now)
    guard.run_check(clock.now)
    guard.arm(clock.now)
    return guard, robot, clock


def go(guard: Guard, clock: Clock, target, ticks: int = 1, **others) -> None:
    for _ in range(ticks):
        clock.now += 5_000_000
        guard.tick(target, guard.read(), clock.now, **others)


def _outside(robot: MemoryRobot) -> None:
    robot.q[1] = 2.5


def _ill(robot: MemoryRobot) -> None:
    robot.status[1] = Status.OVERLOAD


def _stretched(robot: MemoryRobot) -> None:
    robot.q[:] = 0.0  # the tool is outside the workspace


@pytest.mark.parametrize("when", ["checked", "armed"])
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (_outside, r"elbow is at 2\.500 rad"),
        (_ill, "elbow reports OVERLOAD"),
        (_stretched, "outside its workspace"),
    ],
)
def test_a_robot_with_a_problem_is_neither_checked_nor_armed(
    tmp_path, when: str, fault, sentence: str
):
    clock = Clock()
    robot = MemoryRobot(clock, spec(workspace=workspace(tmp_path)), np.array([0.0, 1.4]))
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0, points=forward(robot.spec)))
    guard.connect(clock.now)
    if when == "armed":
        guard.run_check(clock.now)
    fault(robot)
    with pytest.raises(Refused, match=sentence):
        guard.arm(clock.now) if when == "armed" else guard.run_check(clock.now)
    assert "arm" not in robot.calls


def test_a_servo_without_torque_may_be_armed():
    """A servo that rebooted while the robot held is switched on by arming."""
    guard, robot, clock = armed()
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    go(guard, clock, None, 20)
    guard.re_arm("re-arm", clock.now)
    robot.status[0] = Status.TORQUE_OFF | Status.WATCHDOG
    guard.run_check(clock.now)
    guard.arm(clock.now)
    assert guard.state is State.HOLD


def test_a_robot_is_not_re_armed_before_it_stands():
    guard, robot, clock = armed()
    guard.start(clock.now)
    for k in range(150):
        go(guard, clock, [k / 200, 0.0])
    robot.status[0] = Status.OVERLOAD
    go(guard, clock, None)
    robot.status[0] = 0
    go(guard, clock, None)
    assert guard.state is State.FAULT
    assert not guard.motion.is_at_rest()
    with pytest.raises(Refused, match="still moves"):
        guard.re_arm("re-arm", clock.now)
    go(guard, clock, None, 100)
    guard.re_arm("re-arm", clock.now)
    assert guard.state is State.CONNECTED
    assert robot.goal == pytest.approx(guard.motion.q, abs=1e-4)  # it was commanded until the end


def test_a_robot_that_holds_since_a_fault_or_an_earlier_run_can_be_released():
    guard, robot, clock = armed()
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    go(guard, clock, None, 20)
    guard.re_arm("re-arm", clock.now)
    assert robot.torque
    guard.limp(clock.now)
    assert not robot.torque
    assert guard.state is State.CONNECTED


def test_an_arm_that_sank_after_an_emergency_stop_is_armed_where_it_is():
    guard, robot, clock = armed()
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    guard.limp(clock.now)
    robot.torque = False
    for step in np.linspace(0, 0.5, 100):  # further than the tracking error
        robot.q[0] = step
        go(guard, clock, None)
    assert guard.motion.reasons == 1 << Reason.TRACKING_ERROR
    guard.re_arm("re-arm", clock.now)
    guard.run_check(clock.now)
    guard.arm(clock.now)
    go(guard, clock, None, 5)
    assert (guard.state, guard.machine.latched) == (State.HOLD, None)


def test_an_arm_that_sank_out_of_its_limits_is_moved_inside_before_it_is_armed():
    guard, robot, clock = armed(position_high=0.2)
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    guard.limp(clock.now)
    for step in np.linspace(0, 0.5, 100):
        robot.q[0] = step
        go(guard, clock, None)
    guard.re_arm("re-arm", clock.now)
    with pytest.raises(Refused, match="move it inside by hand"):
        guard.run_check(clock.now)


@pytest.mark.parametrize("mended", [Status.TORQUE_OFF, Status.WATCHDOG])
def test_a_servo_that_rebooted_is_re_armed_and_one_that_is_hot_is_not(mended: Status):
    guard, robot, clock = armed()
    robot.status[0] = mended | Status.OVER_TEMPERATURE
    go(guard, clock, None, 20)
    assert guard.machine.latched is Reason.SERVO_ERROR
    with pytest.raises(Refused, match=f"^still present: {Reason.SERVO_ERROR.text}"):
        guard.re_arm("re-arm", clock.now)
    robot.status[0] = mended
    go(guard, clock, None, 20)
    guard.re_arm("re-arm", clock.now)
    guard.run_check(clock.now)
    guard.arm(clock.now)
    assert guard.state is State.HOLD


def test_a_blocked_arm_that_holds_after_an_emergency_stop_is_not_re_armed():
    """It pushes against an obstacle; the message says so, not that a key is pressed."""
    guard, robot, clock = armed()
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    robot.blocked[0] = True
    for _ in range(30):  # before it is at rest, when the goals would move back
        robot.q[0] += 0.01
        go(guard, clock, None)
    with pytest.raises(Refused, match=f"^still present: {Reason.TRACKING_ERROR.text}"):
        guard.re_arm("re-arm", clock.now)


def test_nothing_is_sent_before_arming_and_a_goal_on_every_tick_after():
    clock = Clock()
    robot = MemoryRobot(clock, spec())
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0))
    guard.connect(clock.now)
    go(guard, clock, [0.1, 0.1], 10)
    assert robot.arrived == []
    guard.run_check(clock.now)
    guard.arm(clock.now)
    go(guard, clock, [0.1, 0.1], 10)
    assert len(robot.arrived) == 10
    assert not np.any([q for _, q in robot.arrived])  # holds, does not follow


@pytest.mark.parametrize("state", [State.HOLD, State.RUNNING])
def test_an_emergency_stop_is_latched_until_an_operator_re_arms(state: State):
    guard, robot, clock = armed()
    if state in MOVING:
        guard.start(clock.now)
    go(guard, clock, [0.0, 0.0], 5)
    go(guard, clock, [0.0, 0.0], 1, others=1 << Reason.ESTOP_PRESSED)
    assert guard.state is State.ESTOP
    with pytest.raises(Refused, match="still present"):
        guard.re_arm("re-arm", clock.now)
    go(guard, clock, [0.0, 0.0], 200)
    assert guard.state is State.ESTOP
    guard.re_arm("re-arm", clock.now)
    assert guard.state is State.CONNECTED
    assert "disarm" not in robot.calls  # it kept holding
    assert robot.torque


def stuck_joint() -> tuple[Guard, MemoryRobot, Clock]:
    """Return a robot in FAULT because joint 0 did not move with its goals."""
    guard, robot, clock = armed()
    guard.start(clock.now)
    robot.blocked[0] = True
    for k in range(1, 200):
        go(guard, clock, [0.5 * k / 200, 0.0])
        if guard.state is State.FAULT:
            break
    assert guard.machine.latched is Reason.SENSOR_STUCK
    return guard, robot, clock


def test_a_stuck_sensor_is_re_armed_once_the_goals_are_at_rest():
    """No goal moves at rest, so nothing shows a stuck sensor: it must not block re-arming.

    The joint comes free with a jerk, which looks like a leap of its encoder: its goal jumps to the
    measured position, where both stay.
    """
    guard, robot, clock = stuck_joint()
    robot.q[0] = guard.motion.q[0] + 0.1
    robot.lag_s = 1e9  # friction holds it there
    go(guard, clock, None, 400)
    assert guard.unconfirmed
    assert guard.motion.reasons == 0
    guard.re_arm("re-arm", clock.now)
    assert guard.state is State.CONNECTED


def test_an_emergency_stop_ends_the_motion_of_goals_after_a_fault():
    guard, _, clock = stuck_joint()
    moving = []
    for _ in range(400):
        go(guard, clock, None)
        if guard.state is State.FAULT and guard.motion.q[0] < max(moving, default=0.0) - 0.01:
            break  # the goals return to the measured position
        moving.append(guard.motion.q[0])
    go(guard, clock, None, others=1 << Reason.ESTOP_PRESSED)
    assert (guard.state, guard.machine.latched) == (State.ESTOP, Reason.ESTOP_PRESSED)
    speeds = []
    for _ in range(20):
        last = guard.motion.q[0]
        go(guard, clock, None)
        speeds.append(abs(guard.motion.q[0] - last))
    assert min(speeds) == 0.0  # it came to rest before the goals went on


def test_a_lost_bus_is_a_fault_and_its_return_does_not_re_arm():
    """The robot was moving: goals after the return of the line would not match its position."""
    guard, robot, clock = armed()
    guard.start(clock.now)
    for k in range(60):
        go(guard, clock, [0.5 * k / 200, 0.0])
    robot.silent, robot.code = True, Code.LOST
    go(guard, clock, [0.15, 0.0])
    assert guard.state is State.FAULT
    robot.silent, robot.code = False, Code.OK
    count = len(robot.arrived)
    go(guard, clock, [0.15, 0.0], 100)
    assert guard.state is State.FAULT
    assert len(robot.arrived) == count  # nothing is sent to a lost robot


def test_closing_holds_and_reconnecting_keeps_the_latch():
    guard, robot, clock = armed()
    guard.start(clock.now)
    go(guard, clock, None)
    go(guard, clock, None, 20)
    assert guard.machine.latched is Reason.PLAN_EXHAUSTED
    guard.close(clock.now)
    guard.connect(clock.now)
    guard.run_check(clock.now)
    guard.arm(clock.now)
    with pytest.raises(Refused, match="re-arm first"):
        guard.start(clock.now)
    assert "disarm" not in robot.calls


def test_a_new_plan_is_accepted_before_standstill_within_all_limits():
    guard, robot, clock = armed()
    guard.start(clock.now)
    start = len(robot.arrived)
    for k in range(150):
        go(guard, clock, [k / 200, 0.0])
    go(guard, clock, None, 4)
    assert guard.state is State.SOFT_STOP
    assert guard.motion.v[0] > 0.3
    for k in range(150, 300):
        go(guard, clock, [k / 200, 0.0])
    assert guard.state is State.RUNNING
    assert guard.motion.q[0] == pytest.approx(299 / 200, abs=1e-9)
    a = np.diff([q[0] for _, q in robot.arrived[start:]], 2) * 200**2
    assert np.abs(a).max() <= 25 * (1 + 1e-6)


def test_a_sent_command_that_differs_from_the_goal_is_a_fault():
    guard, robot, clock = armed()
    robot.spec.resolution[:] = 0.01  # it rounds more than declared
    guard.envelope.resolution[:] = [1e-4, 1e-4]
    guard.start(clock.now)
    go(guard, clock, [0.0002, 0.0])
    go(guard, clock, [0.0005, 0.0], 5)
    assert guard.machine.latched is Reason.SENT_DIFFERS


# velocity, rad/s, and current, A, of a joint with constant position, as functions of time, s
STANDING = {
    "stuck": (lambda t: 0.048, lambda t: 0.1, True),
    "blind, and pushed on by its servo": (lambda t: 0.0, lambda t: 0.1 + 0.1 * t, True),
    "turning": (lambda t: t - 0.06, lambda t: 0.1 + 0.1 * t, False),
    # goals at 0.1 rad/s, and 10.6 A/rad, the stiffness of an XM430 at its default gain
    "held by friction": (lambda t: 0.0, lambda t: 0.1 + 0.1 * 10.6 * t, False),
}


@pytest.mark.parametrize("case", STANDING)
def test_a_reversing_or_sticking_joint_is_not_a_stuck_sensor(case: str):
    velocity, current, stuck = STANDING[case]
    assert stood_still(velocity, current, lives=True) == stuck


def test_without_velocity_or_current_a_small_motion_is_not_a_stuck_sensor():
    """A difference of positions is 0 at a turning point, and a current may be constant."""
    assert not stood_still(lambda t: 0.0, lambda t: 0.1 + 0.1 * t, lives=False)
    assert not stood_still(lambda t: 0.0, lambda t: 0.1, lives=False)


def stood_still(velocity, current, *, lives: bool) -> bool:
    """Return True for SENSOR_STUCK after goals move by 0.015 rad in 0.15 s without motion.

    lives: before, velocity and current were measured while the position stood still.
    """
    desk = replace(spec(100.0, tracking_error=0.35, current_a=0.8), resolution=np.full(2, 0.0015))
    run = Run(envelope(desk, desk.limits, 100.0))
    seen = 0
    for k in range(-5, 16):
        t = max(0.0, k * 0.01)
        dq = velocity(t) if k >= 0 else 0.024 * (k % 2) * lives
        drawn = current(t) if k >= 0 else 0.1 - 0.003 * (k % 2) * lives
        found = reading(
            [0.0, 0.0],
            run.seq + 1,
            run.now + 10**7,
            dq=np.array([dq, 0.0]),
            current_a=np.array([drawn, 0.1]),
        )
        seen |= run.tick([0.1 * t, 0.0], found=found).reasons
    assert run.motion.q[0] == pytest.approx(0.015, abs=0.001)
    assert not seen & ~(1 << Reason.SENSOR_STUCK)
    return bool(seen)


def test_an_encoder_leapt_if_the_measured_velocity_does_not_explain_the_step():
    """2 rad/s in 5 ms are at most 0.01 rad; no velocity explains more than four times that."""
    assert not has_jumped(0.0, 0.0099, 0.0, 2.0, 0.005)
    assert has_jumped(0.0, 0.03, 0.0, 2.0, 0.005)
    assert not has_jumped(0.0, 0.03, 6.0, 2.0, 0.005)  # pushed
    assert has_jumped(0.0, 0.03, -6.0, 2.0, 0.005)
    assert has_jumped(0.0, 0.05, 10.0, 2.0, 0.005)

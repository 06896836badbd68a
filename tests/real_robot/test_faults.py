"""Faults at random times of a run on a simulated clock, checked by the received goals."""

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from robots_in_memory import HORIZON, RATE_HZ, Bench, Clock, MemoryRobot, spec, swing, workspace

from benchmarks.robot.logic import Bench as Desk
from benchmarks.robot.soak import soak
from offline_rl.utils.errors import UserError
from real_robot.control.loop import Request
from real_robot.control.schedule import Chunk
from real_robot.robot import Code, Reading, Status
from real_robot.safety.guard import Guard
from real_robot.safety.limits import Rules, envelope
from real_robot.safety.states import Reason, Refused, State

PERIOD_S = 1 / RATE_HZ
REPEATS = range(4)
JAMMED_S = 1e4  # seconds; at this lag joints stand while encoders still change
FASTEST_STOP_S = 2.0 / 15 + 15 / 400 + 3 * PERIOD_S  # v / a + a / j, and three ticks


def make_bench(folder: Path, seed: int, act=swing, **options) -> Bench:
    """Return a bench that has run for a random time."""
    bench = Bench(folder, act, **options)
    bench.run(random.Random(seed).randrange(60, 400))
    assert bench.guard.state is State.RUNNING
    return bench


def stopped(bench: Bench, reason: Reason, state: State = State.HOLD) -> bool:
    machine = bench.guard.machine
    return machine.state is state and machine.latched is reason and bench.guard.motion.is_at_rest()


def pushed(bench: Bench) -> None:
    """Push the joint by 0.05 rad in 1/8 s."""
    for _ in range(25):
        bench.robot.q += 0.002
        bench.run(1)


def changed_policy(change):
    """Return a swinging policy whose chunks `change` modifies once `hit` is set."""

    def act(t: float) -> np.ndarray:
        chunk = swing(t)
        return change(chunk) if act.hit else chunk

    act.hit = False
    return act


def test_a_run_without_faults_follows_the_plan_and_never_stops(tmp_path):
    bench = Bench(tmp_path)
    rows = bench.run(2000)
    assert bench.guard.state is State.RUNNING
    assert bench.loop.missed == 0
    wave = np.array([[0.4 * np.sin(1.5 * r["wake_ns"] * 1e-9 - 1.5)] for r in rows[-400:]])
    sent = np.array([r["sent"][:1] for r in rows[-400:]])
    # the chunk's time is that of the observation: inference adds no lag
    assert np.abs(sent - wave).max() < 2e-3
    assert bench.loop.schedule.counts.late_actions > 0
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_one_action_is_never_sent(tmp_path, seed: int, bad: float):
    place = random.Random(seed).randrange(2, HORIZON)

    def change(chunk):
        chunk[place, seed % 2] = bad
        return chunk

    act = changed_policy(change)
    bench = make_bench(tmp_path, seed, act)
    act.hit = True
    bench.until(lambda: stopped(bench, Reason.TARGET_NOT_FINITE))
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_actions_outside_the_position_limits_are_clamped_and_trip(tmp_path, seed: int):
    act = changed_policy(lambda chunk: chunk + np.array([3.0, -3.0]))
    bench = make_bench(tmp_path, seed, act)
    act.hit = True
    bench.until(lambda: stopped(bench, Reason.CLIPPED_TOO_LONG))
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_step_of_a_radian_becomes_a_ramp(tmp_path, seed: int):
    act = changed_policy(lambda chunk: chunk + np.array([1.0, 0.0]))
    bench = make_bench(tmp_path, seed, act, rules=Rules(trip_after_s=2.0))
    act.hit = True
    bench.run(400)
    assert bench.guard.state is State.RUNNING
    assert bench.guard.motion.q[0] > 0.55  # it has reached the shifted wave
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_oscillation_between_actions_is_limited_and_stops_the_robot(tmp_path, seed: int):
    shake = 0.8 * (-1.0) ** np.arange(HORIZON)
    act = changed_policy(lambda chunk: chunk + shake[:, None])
    bench = make_bench(tmp_path, seed, act)
    act.hit = True
    took = bench.until(lambda: bench.guard.state is not State.RUNNING)
    assert took * PERIOD_S < 0.5 + 0.1 + 0.03  # the next chunk takes one interval and one latency
    bench.until(bench.guard.motion.is_at_rest)
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
@pytest.mark.parametrize(
    ("current_a", "exact", "key", "reason", "state"),
    [
        (0.1, False, False, Reason.TRACKING_ERROR, State.HOLD),
        (0.1, True, False, Reason.SENSOR_STUCK, State.FAULT),
        (1.2, False, False, Reason.CURRENT_HIGH, State.HOLD),
        (5.0, False, False, Reason.CURRENT_EXTREME, State.FAULT),
        (0.1, False, True, Reason.ESTOP_PRESSED, State.ESTOP),
        (0.1, True, True, Reason.ESTOP_PRESSED, State.ESTOP),
    ],
)
def test_a_robot_at_rest_after_a_contact_stops_pushing(
    tmp_path, seed: int, current_a: float, exact: bool, key: bool, reason: Reason, state: State
):
    """The joints are blocked. Once at rest, the goals move back to the measured positions.

    exact: all readings are bitwise equal.
    """
    bench = make_bench(tmp_path, seed)
    bench.robot.blocked[:] = exact
    bench.robot.lag_s, bench.robot.current[:] = JAMMED_S, current_a
    apart, late = [0.0], bench.inputs.calls + 20
    bench.inputs.requests |= {call: Request(estop=key) for call in range(late, late + 2000)}

    def rests() -> bool:
        apart.append(np.abs(bench.robot.goal - bench.robot.q).max())
        return stopped(bench, reason, state) and bench.guard.at_rest

    bench.until(rests)
    assert max(apart) > 0.01
    assert apart[-1] < 2e-4
    goal = bench.robot.goal.copy()
    pushed(bench)  # it has moved back, once, and holds
    bench.run(100)
    np.testing.assert_array_equal(bench.robot.goal, goal)
    assert bench.guard.machine.latched is reason
    bench.inputs.requests.clear()
    bench.robot.lag_s, bench.robot.current[:], bench.robot.blocked[:] = 0.02, 0.1, False
    bench.run(100)
    bench.inputs.requests[bench.inputs.calls + 1] = Request(typed="re-arm")
    bench.run(1)
    assert bench.guard.machine.latched is None
    bench.assert_within_limits()


def test_an_emergency_stop_while_goals_move_back_stops_them_first(tmp_path):
    bench = make_bench(tmp_path, 0)
    bench.robot.lag_s = JAMMED_S
    bench.until(lambda: stopped(bench, Reason.TRACKING_ERROR))
    bench.run(5)
    assert not bench.guard.at_rest
    bench.inputs.standing = Request(estop=True)
    bench.until(lambda: stopped(bench, Reason.ESTOP_PRESSED, State.ESTOP))
    assert np.abs(bench.robot.goal - bench.robot.q).max() > 0.01
    bench.until(lambda: bench.guard.at_rest, 200)
    assert np.abs(bench.robot.goal - bench.robot.q).max() < 2e-4
    bench.assert_within_limits()


@pytest.mark.parametrize("blind", ["another stop", "no reading"])
def test_goals_do_not_change_without_contact_or_readings(tmp_path, blind: str):
    bench = make_bench(tmp_path, 0)
    if blind == "no reading":
        bench.robot.lag_s = JAMMED_S
        bench.run(20)
        bench.inputs.standing = Request(estop=True)
        bench.run(1)
        bench.robot.code = Code.TIMEOUT
        bench.until(lambda: stopped(bench, Reason.ESTOP_PRESSED, State.ESTOP))
    else:
        bench.inputs.dead, bench.inputs.waiting = True, []
        bench.until(lambda: stopped(bench, Reason.PLAN_EXHAUSTED))
        bench.robot.lag_s = JAMMED_S
        pushed(bench)
        assert bench.guard.state is State.HOLD
    goal, sent = bench.robot.goal.copy(), len(bench.robot.arrived)
    assert bench.guard.at_rest
    assert np.abs(goal - bench.robot.q).max() > 0.01
    bench.run(100)
    bench.robot.code = Code.OK  # a minute later the robot may have been moved
    bench.run(100)
    np.testing.assert_array_equal(bench.robot.goal, goal)
    assert blind != "no reading" or len(bench.robot.arrived) == sent


def test_re_arming_is_refused_while_goals_move_back(tmp_path):
    bench = make_bench(tmp_path, 0)
    bench.robot.lag_s = JAMMED_S
    bench.until(lambda: stopped(bench, Reason.TRACKING_ERROR))
    bench.run(5)
    bench.inputs.requests[bench.inputs.calls + 1] = Request(typed="re-arm")
    bench.run(1)
    assert "still moves" in str(bench.loop.refused)
    assert not bench.guard.at_rest
    bench.inputs.requests[bench.inputs.calls + 1] = Request(limp=True)
    bench.run(1)
    assert bench.guard.state is State.CONNECTED
    assert bench.guard.at_rest


@pytest.mark.parametrize("seed", REPEATS)
def test_after_the_end_of_inference_the_plan_ends_and_the_robot_holds(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.inputs.dead, bench.inputs.waiting = True, []
    took = bench.until(lambda: stopped(bench, Reason.PLAN_EXHAUSTED)) * PERIOD_S
    plan_s = (HORIZON + 1) * 0.05
    assert 0.2 < took <= plan_s + FASTEST_STOP_S
    bench.assert_within_limits()
    bench.inputs.dead = False
    bench.run(100)
    assert bench.guard.state is State.HOLD  # it does not resume by itself


@pytest.mark.parametrize("seed", REPEATS)
def test_inference_ten_times_too_slow_stops_the_robot(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.inputs.every_ns *= 10
    bench.inputs.latency_ns *= 10
    bench.until(lambda: stopped(bench, Reason.PLAN_EXHAUSTED))
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_chunks_repeated_or_out_of_order_are_dropped(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    old = bench.loop.schedule.chunk
    assert old is not None
    for seq, shift in ((old.seq, 0), (old.seq - 1, 0), (old.seq + 50, -(10**9))):
        before = bench.loop.schedule.counts.disordered_chunks
        wrong = Chunk(seq, old.observed_ns + shift, old.completed_ns, np.full((HORIZON, 2), 1.5))
        bench.inputs.waiting.insert(0, wrong)
        newer = [c for c in bench.inputs.waiting[1:] if c.completed_ns <= bench.clock.now]
        bench.inputs.waiting = [wrong, *(c for c in bench.inputs.waiting[1:] if c not in newer)]
        bench.inputs.dead = True
        bench.run(1)
        bench.inputs.dead = False
        assert bench.loop.schedule.counts.disordered_chunks == before + 1
    bench.run(100)
    assert bench.guard.state is State.RUNNING
    assert abs(bench.guard.motion.q[0]) < 0.45


@pytest.mark.parametrize("seed", REPEATS)
def test_a_frozen_reading_is_stale(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.robot.frozen = True
    took = bench.until(lambda: bench.guard.state is not State.RUNNING)
    assert took * PERIOD_S <= 0.03 + 2 * PERIOD_S
    bench.until(lambda: stopped(bench, Reason.READING_STALE))
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_lost_packet_is_tolerated_and_a_lost_servo_is_not(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    rng = random.Random(seed)
    for _ in range(300):
        bench.robot.code = Code.CORRUPT if rng.random() < 0.02 else Code.OK
        bench.run(1)
        if bench.robot.code != Code.OK:  # two in a row have 2 % of 2 %
            bench.robot.code = Code.OK
            bench.run(1)
    assert bench.guard.state is State.RUNNING
    bench.robot.code = Code.TIMEOUT
    assert bench.until(lambda: bench.guard.state is State.FAULT) <= 2
    assert bench.guard.machine.latched is Reason.BUS_LOST


@pytest.mark.parametrize("seed", REPEATS)
@pytest.mark.parametrize("status", [Status.TORQUE_OFF, Status.OVER_TEMPERATURE, Status.OVERLOAD])
def test_a_joint_that_reports_an_error_is_a_fault_immediately(tmp_path, seed: int, status: Status):
    bench = make_bench(tmp_path, seed)
    bench.robot.status[seed % 2] = status
    assert bench.until(lambda: bench.guard.state is State.FAULT) == 1
    bench.until(lambda: stopped(bench, Reason.SERVO_ERROR, State.FAULT))
    bench.assert_within_limits()
    assert "disarm" not in bench.robot.calls


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("seed", REPEATS)
def test_the_goal_of_a_joint_follows_an_encoder_leap_immediately(tmp_path, seed: int, holds: bool):
    """The servo compares goal and encoder: any other goal would move it by the leap."""
    bench, joint = make_bench(tmp_path, seed), seed % 2
    if holds:
        bench.inputs.requests[bench.inputs.calls + 1] = Request(finish=True)
        bench.run(200)
        assert bench.guard.state is State.HOLD
    bench.robot.offset[joint] = 200 * 2 * np.pi / 4096
    bench.robot.encoder_leapt()
    rows = bench.run(1)
    assert bench.guard.state is State.FAULT
    assert bench.guard.cause is Reason.ENCODER_LEAPT
    assert rows[-1]["culprits"] == 1 << joint
    shown = bench.robot.q + bench.robot.offset
    assert bench.robot.goal[joint] == pytest.approx(shown[joint], abs=1e-3)
    bench.run(100)
    shown = bench.robot.q + bench.robot.offset
    assert bench.robot.goal[joint] == pytest.approx(shown[joint], abs=1e-3)


def test_a_joint_whose_encoder_leapt_beyond_its_limits_is_held_by_its_adapter(tmp_path):
    bench = make_bench(tmp_path, 0)
    bench.robot.offset[1] = np.pi
    sent = len(bench.robot.arrived)
    bench.run(20)
    assert bench.guard.cause is Reason.ENCODER_LEAPT
    assert [call for call in bench.robot.calls if call.startswith("hold")] == [
        f"hold {Reason.ENCODER_LEAPT.text}"
    ]
    assert len(bench.robot.arrived) == sent  # no goal inside the limits would hold it
    bench.assert_within_limits()


def test_a_single_wrong_value_is_a_fault_and_no_goal_follows_it(tmp_path):
    bench = make_bench(tmp_path, 0)
    read, wrong = bench.robot.read, [True]

    def once() -> Reading:
        reading = read()
        return replace(reading, q=reading.q + np.array([0.0, 0.5])) if wrong.pop() else read()

    bench.robot.read = lambda: once() if wrong else read()
    before = bench.robot.goal.copy()
    bench.run(1)
    assert bench.guard.cause is Reason.ENCODER_LEAPT
    np.testing.assert_allclose(bench.robot.goal, before, atol=0.02)
    bench.run(50)
    np.testing.assert_allclose(bench.robot.goal, bench.robot.q, atol=2e-3)


def test_after_a_leap_the_operator_confirms_each_joint_before_the_robot_is_armed(tmp_path):
    bench = make_bench(tmp_path, 0)
    trusted = bench.robot.q.copy()
    bench.robot.offset[:] = 0.3
    bench.robot.encoder_leapt()
    bench.run(100)

    def say(**request) -> str | None:
        bench.loop.refused = None
        bench.inputs.requests[bench.inputs.calls + 1] = Request(**request)
        bench.run(1)
        return bench.loop.refused

    assert say(typed="re-arm") is None
    assert bench.guard.state is State.CONNECTED
    refused = say(arm=True)
    for joint, q in zip(("shoulder", "elbow"), trusted, strict=True):
        assert f"joint {joint} was last trusted at {q:.2f}"[:-1] in refused
    assert "type confirm=shoulder" in refused
    assert "needs no confirmation" in say(confirm="wrist")
    assert "type confirm=elbow" in say(confirm="shoulder")
    assert "type confirm=elbow" in say(arm=True)
    assert say(confirm="elbow") is None
    assert say(arm=True) is None
    assert bench.guard.state is State.HOLD


def test_an_unarmed_robot_detects_encoder_leaps_but_not_pushes(tmp_path):
    bench = make_bench(tmp_path, 0)
    bench.inputs.standing = Request(estop=True)
    bench.until(lambda: stopped(bench, Reason.ESTOP_PRESSED, State.ESTOP))
    bench.inputs.standing = Request()
    bench.run(100)
    bench.inputs.requests[bench.inputs.calls + 1] = Request(typed="re-arm")
    bench.run(2)
    assert bench.guard.state is State.CONNECTED
    for _ in range(20):  # at 8 rad/s
        bench.robot.q[0] += 0.04
        bench.robot.goal[0] = bench.robot.q[0]
        bench.run(1)
    assert not bench.guard.unconfirmed
    bench.robot.offset[1] = 0.3
    bench.run(1)
    assert list(bench.guard.unconfirmed) == ["elbow"]


@pytest.mark.parametrize("seed", REPEATS)
def test_a_stuck_sensor_is_a_fault_that_names_its_joint(tmp_path, seed: int):
    bench, joint = make_bench(tmp_path, seed), seed % 2
    goal = bench.guard.motion.q[joint]
    last_reading, read = bench.robot.read(), bench.robot.read

    def stuck() -> Reading:
        reading = read()
        for name in ("q", "dq", "current_a"):
            getattr(reading, name)[joint] = getattr(last_reading, name)[joint]
        return reading

    bench.robot.read = stuck
    took = bench.until(lambda: bench.guard.state is not State.RUNNING)
    assert bench.guard.cause is Reason.SENSOR_STUCK
    assert bench.guard.culprits == 1 << joint
    assert took * PERIOD_S < 0.2 or abs(bench.guard.motion.q[joint] - goal) < 0.01
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_blocked_arm_stops_before_its_goals_run_away(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed, tracking_error=0.05)
    bench.robot.blocked[0] = True
    bench.until(lambda: bench.guard.state is not State.RUNNING)
    assert abs(bench.guard.motion.q[0] - bench.robot.q[0]) <= 0.05 + 2 * 0.6 * PERIOD_S
    bench.assert_within_limits()
    bench.until(lambda: stopped(bench, Reason.SENSOR_STUCK, State.FAULT))
    assert bench.guard.culprits == 1


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_jump_of_the_wall_clock_has_no_effect(tmp_path, jump_s: int):
    bench = make_bench(tmp_path, 0)
    wall = bench.clock.wall_ns
    bench.clock.wall_ns = lambda: wall() + jump_s * 10**9
    bench.run(200)
    assert bench.guard.state is State.RUNNING


@pytest.mark.parametrize("seed", REPEATS)
def test_a_clock_that_jumps_stops_the_robot(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.clock.now += 2 * 10**9
    bench.until(lambda: bench.guard.state is not State.RUNNING, 4)
    bench.until(lambda: bench.guard.state is State.HOLD)
    assert bench.guard.machine.latched in (Reason.CLOCK_JUMPED, Reason.DEADLINES_MISSED)
    bench.assert_within_limits()


@pytest.mark.parametrize("moves", [True, False])
def test_a_suspended_computer_is_a_fault(tmp_path, moves: bool):
    """CLOCK_MONOTONIC stands still in a suspension: no deadline is missed, nothing looks old."""
    bench = Bench(tmp_path)
    if not moves:
        bench.inputs.requests = {}
    bench.run(100)
    bench.clock.suspended += 50_000_000  # the two clocks are not read at the same time
    bench.run(10)
    assert bench.guard.cause is None
    bench.clock.suspended += 10 * 10**9
    bench.run(1)
    assert bench.guard.cause is Reason.SUSPENDED
    bench.run(100)
    assert bench.guard.state is State.FAULT
    assert bench.guard.motion.is_at_rest()
    bench.assert_within_limits()
    bench.inputs.requests[bench.inputs.calls + 1] = Request(typed="re-arm")
    bench.run(1)
    assert bench.guard.state is State.CONNECTED


def test_occasional_missed_deadlines_are_tolerated_and_counted(tmp_path):
    bench = make_bench(tmp_path, 1)
    for k in range(20, 400, 40):  # 2.5 percent
        bench.clock.lateness[bench.clock.sleeps + k] = int(0.7 * PERIOD_S * 1e9)
    rows = bench.run(400)
    assert bench.guard.state is State.RUNNING
    assert bench.loop.missed == 10
    ticks = np.array([int(r["tick"]) for r in rows])
    assert (np.diff(ticks) == 2).sum() == 10  # the deadlines continue: nothing is caught up
    apart = np.diff([int(r["wake_ns"]) for r in rows])
    assert apart.min() >= 0.5 * PERIOD_S * 1e9


@pytest.mark.parametrize(("lateness", "share"), [(3.2, 1), (0.8, 8)])
def test_three_misses_in_a_row_or_a_twentieth_of_a_second_stop(tmp_path, lateness, share):
    bench = make_bench(tmp_path, 2)
    for k in range(0, 4000, share):
        bench.clock.lateness[bench.clock.sleeps + k] = int(lateness * PERIOD_S * 1e9)
    took = bench.until(lambda: bench.guard.state is not State.RUNNING)
    assert took * PERIOD_S <= 1.0
    bench.clock.lateness.clear()
    bench.until(lambda: stopped(bench, Reason.DEADLINES_MISSED))
    bench.assert_within_limits()


@pytest.mark.parametrize("periods", [2.9, 3.4, 4.0, 4.4, 4.6, 5.3, 7.49])
def test_after_a_stall_no_two_commands_are_closer_than_half_a_period(tmp_path, periods: float):
    bench = make_bench(tmp_path, 3)
    sleeps = bench.clock.sleeps
    bench.clock.lateness[sleeps + 5] = int(periods * PERIOD_S * 1e9)
    for k in range(20, 40):  # late at every deadline
        bench.clock.lateness[sleeps + k] = int(0.8 * PERIOD_S * 1e9)
    rows = bench.run(60)
    apart = np.diff([time_ns for time_ns, _ in bench.robot.arrived])
    assert apart.min() >= 0.5 * PERIOD_S * 1e9
    assert (np.diff([int(r["tick"]) for r in rows]) >= 1).all()
    off = [int(r["wake_ns"]) - int(r["deadline_ns"]) for r in rows]
    assert np.abs(off).max() <= 0.5 * PERIOD_S * 1e9 + 1


@pytest.mark.parametrize("seed", REPEATS)
def test_a_silent_watchdog_or_recorder_stops_the_robot(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    if seed % 2:
        bench.inputs.watched = False
    else:
        bench.inputs.recorder_dead = True
    assert bench.until(lambda: bench.guard.state is State.SOFT_STOP) == 1
    bench.until(lambda: bench.guard.state is State.HOLD)
    bench.assert_within_limits()


def test_a_hanging_console_stops_a_moving_robot_until_it_returns(tmp_path):
    bench = make_bench(tmp_path, 0)
    bench.inputs.console_dead = True
    assert bench.until(lambda: bench.guard.state is State.SOFT_STOP) == 1
    bench.until(lambda: stopped(bench, Reason.CONSOLE_LOST))
    bench.inputs.console_dead = False
    bench.inputs.standing = Request(typed="re-arm")
    bench.run(1)
    bench.inputs.standing = Request(start=True)
    bench.until(lambda: bench.guard.state is State.RUNNING)
    bench.assert_within_limits()


def test_a_hanging_console_does_not_matter_while_nothing_moves(tmp_path):
    bench = Bench(tmp_path)
    bench.inputs.console_dead, bench.inputs.requests = True, {}
    bench.run(50)
    assert bench.guard.machine.latched is None


@pytest.mark.parametrize("seed", REPEATS)
def test_the_emergency_stop_acts_in_the_same_tick(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.inputs.standing = Request(estop=True)
    assert bench.until(lambda: bench.guard.state is State.ESTOP) == 1
    took = bench.until(bench.guard.motion.is_at_rest) if not bench.guard.motion.is_at_rest() else 0
    assert took * PERIOD_S <= 2.0 / 25 + 25 / 1000 + 3 * PERIOD_S
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_takeover_starts_at_the_measured_position_and_ends_holding(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.inputs.standing = Request(take=True)
    bench.run(1)
    assert bench.guard.state is State.TAKEOVER
    aim = bench.robot.q + np.array([0.1, -0.1])
    for _ in range(200):
        bench.inputs.standing = Request(target=aim, target_ns=bench.clock.now)
        rows = bench.run(1)
    assert rows[-1]["intervention"] == 1
    assert bench.robot.q == pytest.approx(aim, abs=2e-3)
    bench.inputs.standing = Request(release=True)
    bench.until(lambda: bench.guard.state is State.HOLD)
    assert bench.guard.machine.latched is None
    bench.assert_within_limits()


def test_a_takeover_target_is_approached_from_the_measured_position(tmp_path):
    """The motion takes 0.2 s at constant speed: half the way in half the time."""
    bench = make_bench(tmp_path, 0)
    bench.inputs.standing = Request(take=True)
    (row,) = bench.run(1)
    here = row["q"].copy()
    aim = here + np.array([0.2, -0.2])
    targets = []
    for _ in range(50):
        bench.inputs.standing = Request(target=aim, target_ns=bench.clock.now)
        targets.append(bench.run(1)[0]["target"].copy())
    share = ((np.array(targets) - here) / (aim - here)).mean(1)
    expected = np.minimum(1, PERIOD_S * np.arange(1, 51) / 0.2)
    np.testing.assert_allclose(share, expected, atol=0.03)


@pytest.mark.parametrize("seed", REPEATS)
def test_a_takeover_device_that_falls_silent_stops_the_robot(tmp_path, seed: int):
    bench = make_bench(tmp_path, seed)
    bench.inputs.standing = Request(take=True)
    bench.run(1)
    bench.inputs.standing = Request(target=[0.0, 0.0], target_ns=bench.clock.now)
    took = bench.until(lambda: bench.guard.state is not State.TAKEOVER)
    assert took * PERIOD_S <= 0.1 + 2 * PERIOD_S
    bench.inputs.standing = Request()
    bench.until(lambda: stopped(bench, Reason.TELEOP_LOST))
    bench.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_plan_that_leaves_the_workspace_is_not_followed(tmp_path, seed: int):
    """The box ends at x = 0.45 m; with stretched links the tool would be at 0.5 m."""
    act = changed_policy(lambda chunk: np.zeros_like(chunk))

    def shifted(t: float) -> np.ndarray:
        chunk = act(t)
        return chunk if act.hit else chunk + np.array([0.0, 1.4])

    rules = Rules(trip_after_s=10.0)
    start = np.array([0.0, 1.4])
    bench = Bench(tmp_path, shifted, workspace=workspace(tmp_path), rules=rules, q0=start)
    bench.run(100 + 37 * seed)
    act.hit = True
    bench.until(lambda: stopped(bench, Reason.WORKSPACE))
    bench.assert_within_limits()
    q = np.array([q for _, q in bench.robot.arrived])
    tool = 0.3 * np.cos(q[:, 0]) + 0.2 * np.cos(q.sum(1))
    assert tool.max() <= 0.45


def test_a_short_soak_of_random_faults_leaves_no_state_stuck(tmp_path):
    """This runs 14,000 ticks; benchmarks/robot/soak.py runs a million."""
    outcome = soak(14_000, seed=3, folder=tmp_path, joints=2)
    assert outcome.violations == 0
    assert outcome.faults > 70
    assert outcome.stuck == []
    assert set(outcome.reasons) >= {"READING_STALE", "TARGET_NOT_FINITE", "ESTOP_PRESSED"}


WRONG_READINGS = {
    "none": (lambda r: None, "it is None, expected a Reading"),
    "a list": (lambda r: replace(r, q=r.q.tolist()), "q is a list, expected an array of 2 floats"),
    "too long": (lambda r: replace(r, dq=np.zeros(3)), "dq is an array of shape"),
    "whole numbers": (lambda r: replace(r, q=r.q.astype(int)), "expected an array of 2 floats"),
    "not a number": (
        lambda r: replace(r, q=r.q * np.nan),
        "expected finite numbers because code is OK",
    ),
    "wall clock": (lambda r: replace(r, middle_ns=r.middle_ns + 10**18), "1e[+]09 s ahead"),
    "seconds": (lambda r: replace(r, middle_ns=1.5), "middle_ns is a float, expected an integer"),
    "channel": (lambda r: replace(r, channels={"puck": 1.0}), "channel 'puck' is not declared"),
    "no channels": (lambda r: replace(r, channels=None), "channels is None, expected a mapping"),
    "exception": (lambda r: r.q[7], "IndexError: index 7 is out of bounds"),
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG_READINGS.values(), ids=WRONG_READINGS)
def test_an_invalid_reading_is_a_fault_with_a_message(tmp_path, wrong, sentence: str):
    bench = make_bench(tmp_path, 0)
    read = bench.robot.read
    bench.robot.read = lambda: wrong(read())
    bench.run(1)
    assert bench.guard.state is State.FAULT
    assert bench.guard.cause is Reason.ADAPTER_INVALID
    assert re.search(sentence, bench.loop.refused)
    bench.run(100)
    assert bench.guard.motion.is_at_rest()
    bench.assert_within_limits()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda s: None, "it is None, expected a Sent"),
        (lambda s: replace(s, q=s.q.tolist()), "q is a list"),
        (lambda s: replace(s, code=0), "code is 0, expected a Code"),
        (lambda s: s.q[7], "IndexError"),
    ],
)
def test_an_invalid_return_value_of_command_is_a_fault(tmp_path, wrong, sentence: str):
    bench = make_bench(tmp_path, 0)
    command = bench.robot.command
    bench.robot.command = lambda goal: wrong(command(goal))
    bench.run(1)
    assert bench.guard.cause is Reason.ADAPTER_INVALID
    assert sentence in bench.loop.refused


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda r: replace(r, q=r.q * 0),
            r"joint shoulder is at 0\.700, but arm\(\) returned 0\.000",
        ),
        (lambda r: replace(r, q=r.q * np.nan), "expected finite numbers because code is OK"),
        (lambda r: replace(r, code=Code.TIMEOUT), r"its reading failed \(timeout\)"),
        (lambda r: None, "it is None"),
        (lambda r: r.q[7], "IndexError"),
    ],
)
def test_the_reading_from_arming_must_match_the_next_reading(tmp_path, wrong, sentence: str):
    """The returned reading becomes the first goal: zeros would be a jump of 0.7 rad."""
    clock = Clock()
    robot = MemoryRobot(clock, spec(), np.array([0.7, 0.2]))
    arm = robot.arm
    robot.arm = lambda: wrong(arm())
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, RATE_HZ))
    guard.connect(clock.now)
    guard.run_check(clock.now)
    with pytest.raises((Refused, UserError), match=sentence):
        guard.arm(clock.now)
    assert guard.state is State.CHECKED
    assert robot.arrived == []


def test_a_servo_that_arming_left_without_torque_is_named(tmp_path):
    clock = Clock()
    robot = MemoryRobot(clock, spec())
    arm = robot.arm

    def one_missed_it() -> Reading:
        reading = arm()
        robot.status[1] = Status.TORQUE_OFF
        return reading

    robot.arm = one_missed_it
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, RATE_HZ))
    guard.connect(clock.now)
    guard.run_check(clock.now)
    with pytest.raises(Refused, match="joint elbow reports TORQUE_OFF"):
        guard.arm(clock.now)


@pytest.mark.parametrize("measures_current", [True, False])
def test_a_pushed_arm_yields_and_does_not_snap_back(tmp_path, measures_current: bool):
    """A push of 5 N m for 0.05 s on the waist, whose servo has 4.1 N m and a limit of 2 rad/s.

    Without measured current it stays in HOLD and returns. With current the push is CURRENT_EXTREME,
    and it stays where it was pushed.
    """
    desk = Desk(tmp_path, 3)
    desk.inputs.requests.append(Request(finish=True))
    desk.run(120)
    assert desk.guard.state is State.HOLD
    if not measures_current:
        desk.robot._current_a[:] = np.nan
    physics, start = desk.line.physics, float(desk.line.physics.q[0])
    desk.event("push", index=0, torque=5.0)
    desk.run(5)
    desk.event("push", index=0, torque=0.0)
    assert physics.q[0] - start > 0.06
    speeds = []
    for _ in range(150):
        desk.tick()
        speeds.append(-float(physics.dq[0]))
    assert max(speeds) < 2.0
    if measures_current:
        assert desk.guard.state is State.FAULT
        assert desk.guard.cause is Reason.CURRENT_EXTREME
    else:
        assert desk.guard.cause is None
        assert physics.q[0] == pytest.approx(start, abs=0.01)
        goals = np.array([what["1"] for _, _, what in desk.arrived if "1" in what][-145:])
        assert len(np.unique(goals[-20:])) == 1
        assert np.abs(np.diff(goals)).max() * 2 * np.pi / 4096 / 0.01 < 2.0 + 0.16  # per tick


def test_an_arm_with_gravity_sag_does_not_sink(tmp_path):
    """A constant error of any size is not a push: a pushed joint moves."""
    bench = Bench(tmp_path)
    bench.inputs.requests = {}
    read, weight = bench.robot.read, np.array([0.0, -0.1])  # half of the tracking error
    bench.robot.read = lambda: (r := read(), replace(r, q=r.q + weight))[1]
    bench.guard.motion.measured[1] -= 0.1
    bench.run(400)
    assert bench.guard.state is State.HOLD
    assert bench.guard.motion.q == [0.0, 0.0]


def test_a_robot_that_was_moved_by_hand_stays_there_after_arming(tmp_path):
    bench = Bench(tmp_path)
    bench.inputs.requests = {}
    bench.run(100)
    bench.inputs.requests[bench.inputs.calls + 1] = Request(limp=True)
    bench.run(1)
    for _ in range(50):
        bench.robot.q += 0.004
        bench.run(1)
    bench.inputs.requests[bench.inputs.calls + 1] = Request(arm=True)
    bench.run(1)
    assert bench.guard.state is State.HOLD
    here = bench.robot.q.copy()
    bench.run(300)
    np.testing.assert_allclose(bench.robot.q, here, atol=1e-3)


def test_an_encoder_leap_between_arming_and_the_first_tick_is_detected(tmp_path):
    bench = Bench(tmp_path)
    bench.robot.offset[1] = 0.15  # less than tracking_error
    bench.robot.encoder_leapt()
    bench.run(20)
    assert bench.guard.cause is Reason.ENCODER_LEAPT
    # the servo moved it for one period until the leap was read: 1 - exp(-5 ms / 20 ms)
    np.testing.assert_allclose(bench.robot.q, [0.0, -0.15 * 0.2212], atol=2e-3)


def test_goals_follow_a_leap_only_if_a_second_reading_confirms_it(tmp_path):
    bench = make_bench(tmp_path, 0)
    read, answers = bench.robot.read, [0]

    def once_wrong_and_then_silent() -> Reading:
        reading, answers[0] = read(), answers[0] + 1
        wrong = reading.q + np.array([0.0, 0.5])
        return replace(reading, q=wrong) if answers[0] == 1 else replace(reading, code=Code.TIMEOUT)

    bench.robot.read = once_wrong_and_then_silent
    bench.run(50)
    assert bench.guard.cause is Reason.ENCODER_LEAPT
    assert f"hold {Reason.ENCODER_LEAPT.text}" in bench.robot.calls
    np.testing.assert_allclose(bench.robot.goal, bench.robot.q, atol=2e-3)


def test_arming_compares_two_readings_also_if_the_adapter_reuses_its_arrays():
    clock = Clock()
    robot = MemoryRobot(clock, spec(RATE_HZ))
    read, q = robot.read, np.zeros(2)

    def reused(wrong: float = 0.0) -> Reading:
        reading = read()
        q[:] = reading.q + wrong
        return replace(reading, q=q)

    robot.read, robot.arm = reused, lambda: reused(1.5)
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, RATE_HZ))
    guard.connect(clock.now)
    guard.run_check(clock.now)
    with pytest.raises(Refused, match=r"shoulder is at 0\.000"):
        guard.arm(clock.now)

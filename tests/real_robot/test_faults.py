"""What goes wrong, at random moments of a run on a simulated clock; judged by what arrived."""

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
JAMMED_S = 1e4  # a lag by which joints stand, and encoders still tremble
FASTEST_STOP_S = 2.0 / 15 + 15 / 400 + 3 * PERIOD_S  # v / a + a / j, and three ticks to see it


def bench(folder: Path, seed: int, act=swing, **options) -> Bench:
    """Has run for a random while."""
    made = Bench(folder, act, **options)
    made.run(random.Random(seed).randrange(60, 400))
    assert made.guard.state is State.RUNNING
    return made


def stopped(made: Bench, reason: Reason, state: State = State.HOLD) -> bool:
    machine = made.guard.machine
    return machine.state is state and machine.latched is reason and made.guard.motion.stands()


def pushed(made: Bench) -> None:
    """By hand, 0.05 rad in an eighth of a second."""
    for _ in range(25):
        made.robot.q += 0.002
        made.run(1)


def changed_policy(change):
    """A policy that swings until `hit` is set on it, and then answers what `change` makes of it."""

    def act(t: float) -> np.ndarray:
        chunk = swing(t)
        return change(chunk) if act.hit else chunk

    act.hit = False
    return act


def test_a_run_without_faults_follows_the_plan_and_never_stops(tmp_path):
    made = Bench(tmp_path)
    rows = made.run(2000)
    assert made.guard.state is State.RUNNING
    assert made.loop.missed == 0
    wave = np.array([[0.4 * np.sin(1.5 * r["wake_ns"] * 1e-9 - 1.5)] for r in rows[-400:]])
    sent = np.array([r["sent"][:1] for r in rows[-400:]])
    # the chunk's own time is the observation's: no lag of inference is left
    assert np.abs(sent - wave).max() < 2e-3
    assert made.loop.schedule.counts.late_actions > 0
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_one_action_is_never_sent(tmp_path, seed: int, bad: float):
    place = random.Random(seed).randrange(2, HORIZON)

    def change(chunk):
        chunk[place, seed % 2] = bad
        return chunk

    act = changed_policy(change)
    made = bench(tmp_path, seed, act)
    act.hit = True
    made.until(lambda: stopped(made, Reason.TARGET_NOT_FINITE))
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_actions_outside_the_position_limits_are_clamped_and_trip(tmp_path, seed: int):
    act = changed_policy(lambda chunk: chunk + np.array([3.0, -3.0]))
    made = bench(tmp_path, seed, act)
    act.hit = True
    made.until(lambda: stopped(made, Reason.CLIPPED_TOO_LONG))
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_step_of_a_radian_becomes_a_ramp(tmp_path, seed: int):
    act = changed_policy(lambda chunk: chunk + np.array([1.0, 0.0]))
    made = bench(tmp_path, seed, act, rules=Rules(trip_after_s=2.0))
    act.hit = True
    made.run(400)
    assert made.guard.state is State.RUNNING
    assert made.guard.motion.q[0] > 0.55  # it has arrived on the shifted wave
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_oscillation_from_action_to_action_is_held_and_trips(tmp_path, seed: int):
    shake = 0.8 * (-1.0) ** np.arange(HORIZON)
    act = changed_policy(lambda chunk: chunk + shake[:, None])
    made = bench(tmp_path, seed, act)
    act.hit = True
    took = made.until(lambda: made.guard.state is not State.RUNNING)
    assert took * PERIOD_S < 0.5 + 0.1 + 0.03  # the next chunk takes its interval and its latency
    made.until(made.guard.motion.stands)
    made.assert_within_limits()


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
def test_a_robot_that_stands_after_a_contact_presses_on_nothing(
    tmp_path, seed: int, current_a: float, exact: bool, key: bool, reason: Reason, state: State
):
    """Its joints have met something; its goals, which go on to their standstill, come back.

    exact: every reading is the same to the last digit.
    """
    made = bench(tmp_path, seed)
    made.robot.blocked[:] = exact
    made.robot.lag_s, made.robot.current[:] = JAMMED_S, current_a
    apart, late = [0.0], made.inputs.calls + 20
    made.inputs.requests |= {call: Request(estop=key) for call in range(late, late + 2000)}

    def rests() -> bool:
        apart.append(np.abs(made.robot.goal - made.robot.q).max())
        return stopped(made, reason, state) and made.guard.rests

    made.until(rests)
    assert max(apart) > 0.01
    assert apart[-1] < 2e-4
    goal = made.robot.goal.copy()
    pushed(made)  # it has yielded, once, and holds
    made.run(100)
    np.testing.assert_array_equal(made.robot.goal, goal)
    assert made.guard.machine.latched is reason
    made.inputs.requests.clear()
    made.robot.lag_s, made.robot.current[:], made.robot.blocked[:] = 0.02, 0.1, False
    made.run(100)
    made.inputs.requests[made.inputs.calls + 1] = Request(typed="re-arm")
    made.run(1)
    assert made.guard.machine.latched is None
    made.assert_within_limits()


def test_the_emergency_stop_while_goals_come_back_stops_them_first(tmp_path):
    made = bench(tmp_path, 0)
    made.robot.lag_s = JAMMED_S
    made.until(lambda: stopped(made, Reason.TRACKING_ERROR))
    made.run(5)
    assert not made.guard.rests
    made.inputs.standing = Request(estop=True)
    made.until(lambda: stopped(made, Reason.ESTOP_PRESSED, State.ESTOP))
    assert np.abs(made.robot.goal - made.robot.q).max() > 0.01
    made.until(lambda: made.guard.rests, 200)
    assert np.abs(made.robot.goal - made.robot.q).max() < 2e-4
    made.assert_within_limits()


@pytest.mark.parametrize("blind", ["another stop", "no reading"])
def test_goals_stay_where_nothing_was_met_and_where_nobody_sees_the_robot(tmp_path, blind: str):
    made = bench(tmp_path, 0)
    if blind == "no reading":
        made.robot.lag_s = JAMMED_S
        made.run(20)
        made.inputs.standing = Request(estop=True)
        made.run(1)
        made.robot.code = Code.TIMEOUT
        made.until(lambda: stopped(made, Reason.ESTOP_PRESSED, State.ESTOP))
    else:
        made.inputs.dead, made.inputs.waiting = True, []
        made.until(lambda: stopped(made, Reason.PLAN_EXHAUSTED))
        made.robot.lag_s = JAMMED_S
        pushed(made)
        assert made.guard.state is State.HOLD
    goal, sent = made.robot.goal.copy(), len(made.robot.arrived)
    assert made.guard.rests
    assert np.abs(goal - made.robot.q).max() > 0.01
    made.run(100)
    made.robot.code = Code.OK  # a minute later somebody may have moved it
    made.run(100)
    np.testing.assert_array_equal(made.robot.goal, goal)
    assert blind != "no reading" or len(made.robot.arrived) == sent


def test_while_goals_come_back_nothing_is_re_armed_and_a_limp_arm_is_at_rest(tmp_path):
    made = bench(tmp_path, 0)
    made.robot.lag_s = JAMMED_S
    made.until(lambda: stopped(made, Reason.TRACKING_ERROR))
    made.run(5)
    made.inputs.requests[made.inputs.calls + 1] = Request(typed="re-arm")
    made.run(1)
    assert "still moves" in str(made.loop.refused)
    assert not made.guard.rests
    made.inputs.requests[made.inputs.calls + 1] = Request(limp=True)
    made.run(1)
    assert made.guard.state is State.CONNECTED
    assert made.guard.rests


@pytest.mark.parametrize("seed", REPEATS)
def test_inference_that_dies_lets_the_plan_end_and_the_robot_hold(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.inputs.dead, made.inputs.waiting = True, []
    took = made.until(lambda: stopped(made, Reason.PLAN_EXHAUSTED)) * PERIOD_S
    plan_s = (HORIZON + 1) * 0.05
    assert 0.2 < took <= plan_s + FASTEST_STOP_S
    made.assert_within_limits()
    made.inputs.dead = False
    made.run(100)
    assert made.guard.state is State.HOLD  # it does not go on by itself


@pytest.mark.parametrize("seed", REPEATS)
def test_inference_ten_times_too_slow_stops_the_robot(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.inputs.every_ns *= 10
    made.inputs.latency_ns *= 10
    made.until(lambda: stopped(made, Reason.PLAN_EXHAUSTED))
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_chunks_repeated_or_out_of_order_are_dropped(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    old = made.loop.schedule.chunk
    assert old is not None
    for seq, shift in ((old.seq, 0), (old.seq - 1, 0), (old.seq + 50, -(10**9))):
        before = made.loop.schedule.counts.disordered_chunks
        wrong = Chunk(seq, old.observed_ns + shift, old.answered_ns, np.full((HORIZON, 2), 1.5))
        made.inputs.waiting.insert(0, wrong)
        newer = [c for c in made.inputs.waiting[1:] if c.answered_ns <= made.clock.now]
        made.inputs.waiting = [wrong, *(c for c in made.inputs.waiting[1:] if c not in newer)]
        made.inputs.dead = True
        made.run(1)
        made.inputs.dead = False
        assert made.loop.schedule.counts.disordered_chunks == before + 1
    made.run(100)
    assert made.guard.state is State.RUNNING
    assert abs(made.guard.motion.q[0]) < 0.45


@pytest.mark.parametrize("seed", REPEATS)
def test_a_frozen_reading_is_stale(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.robot.frozen = True
    took = made.until(lambda: made.guard.state is not State.RUNNING)
    assert took * PERIOD_S <= 0.03 + 2 * PERIOD_S
    made.until(lambda: stopped(made, Reason.READING_STALE))
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_lost_packet_is_borne_and_a_lost_servo_is_not(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    rng = random.Random(seed)
    for _ in range(300):
        made.robot.code = Code.CORRUPT if rng.random() < 0.02 else Code.OK
        made.run(1)
        if made.robot.code != Code.OK:  # two in a row are two percent of two percent
            made.robot.code = Code.OK
            made.run(1)
    assert made.guard.state is State.RUNNING
    made.robot.code = Code.TIMEOUT
    assert made.until(lambda: made.guard.state is State.FAULT) <= 2
    assert made.guard.machine.latched is Reason.BUS_LOST


@pytest.mark.parametrize("seed", REPEATS)
@pytest.mark.parametrize("status", [Status.TORQUE_OFF, Status.OVER_TEMPERATURE, Status.OVERLOAD])
def test_a_joint_that_reports_an_error_is_a_fault_at_once(tmp_path, seed: int, status: Status):
    made = bench(tmp_path, seed)
    made.robot.status[seed % 2] = status
    assert made.until(lambda: made.guard.state is State.FAULT) == 1
    made.until(lambda: stopped(made, Reason.SERVO_ERROR, State.FAULT))
    made.assert_within_limits()
    assert "disarm" not in made.robot.calls


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("seed", REPEATS)
def test_the_goal_of_a_joint_whose_encoder_leapt_goes_with_it_at_once(
    tmp_path, seed: int, holds: bool
):
    """Its servo compares goal and encoder, so that any other goal would drive it by the leap."""
    made, joint = bench(tmp_path, seed), seed % 2
    if holds:
        made.inputs.requests[made.inputs.calls + 1] = Request(finish=True)
        made.run(200)
        assert made.guard.state is State.HOLD
    made.robot.offset[joint] = 200 * 2 * np.pi / 4096
    made.robot.encoder_leapt()
    rows = made.run(1)
    assert made.guard.state is State.FAULT
    assert made.guard.cause is Reason.ENCODER_LEAPT
    assert rows[-1]["culprits"] == 1 << joint
    shown = made.robot.q + made.robot.offset
    assert made.robot.goal[joint] == pytest.approx(shown[joint], abs=1e-3)
    made.run(100)
    shown = made.robot.q + made.robot.offset
    assert made.robot.goal[joint] == pytest.approx(shown[joint], abs=1e-3)


def test_a_joint_whose_encoder_leapt_beyond_its_limits_is_held_by_its_adapter(tmp_path):
    made = bench(tmp_path, 0)
    made.robot.offset[1] = np.pi
    sent = len(made.robot.arrived)
    made.run(20)
    assert made.guard.cause is Reason.ENCODER_LEAPT
    assert [call for call in made.robot.calls if call.startswith("hold")] == [
        f"hold {Reason.ENCODER_LEAPT.text}"
    ]
    assert len(made.robot.arrived) == sent  # no goal within the limits would hold it
    made.assert_within_limits()


def test_a_single_wrong_number_is_a_fault_and_no_goal_follows_it(tmp_path):
    made = bench(tmp_path, 0)
    read, wrong = made.robot.read, [True]

    def once() -> Reading:
        reading = read()
        return replace(reading, q=reading.q + np.array([0.0, 0.5])) if wrong.pop() else read()

    made.robot.read = lambda: once() if wrong else read()
    before = made.robot.goal.copy()
    made.run(1)
    assert made.guard.cause is Reason.ENCODER_LEAPT
    np.testing.assert_allclose(made.robot.goal, before, atol=0.02)
    made.run(50)
    np.testing.assert_allclose(made.robot.goal, made.robot.q, atol=2e-3)


def test_after_a_leap_the_operator_confirms_each_joint_before_the_robot_is_armed(tmp_path):
    made = bench(tmp_path, 0)
    trusted = made.robot.q.copy()
    made.robot.offset[:] = 0.3
    made.robot.encoder_leapt()
    made.run(100)

    def say(**request) -> str | None:
        made.loop.refused = None
        made.inputs.requests[made.inputs.calls + 1] = Request(**request)
        made.run(1)
        return made.loop.refused

    assert say(typed="re-arm") is None
    assert made.guard.state is State.CONNECTED
    refused = say(arm=True)
    for joint, q in zip(("shoulder", "elbow"), trusted, strict=True):
        assert f"joint {joint} was last trusted at {q:.2f}"[:-1] in refused
    assert "type confirm=shoulder" in refused
    assert "needs no confirmation" in say(confirm="wrist")
    assert "type confirm=elbow" in say(confirm="shoulder")
    assert "type confirm=elbow" in say(arm=True)
    assert say(confirm="elbow") is None
    assert say(arm=True) is None
    assert made.guard.state is State.HOLD


def test_an_encoder_that_leaps_while_nothing_is_armed_is_noticed_and_a_hand_is_not(tmp_path):
    made = bench(tmp_path, 0)
    made.inputs.standing = Request(estop=True)
    made.until(lambda: stopped(made, Reason.ESTOP_PRESSED, State.ESTOP))
    made.inputs.standing = Request()
    made.run(100)
    made.inputs.requests[made.inputs.calls + 1] = Request(typed="re-arm")
    made.run(2)
    assert made.guard.state is State.CONNECTED
    for _ in range(20):  # at 8 rad/s
        made.robot.q[0] += 0.04
        made.robot.goal[0] = made.robot.q[0]
        made.run(1)
    assert not made.guard.unconfirmed
    made.robot.offset[1] = 0.3
    made.run(1)
    assert list(made.guard.unconfirmed) == ["elbow"]


@pytest.mark.parametrize("seed", REPEATS)
def test_one_sensor_that_is_stuck_is_a_fault_that_names_its_joint(tmp_path, seed: int):
    made, joint = bench(tmp_path, seed), seed % 2
    goal = made.guard.motion.q[joint]
    kept, read = made.robot.read(), made.robot.read

    def stuck() -> Reading:
        reading = read()
        for name in ("q", "dq", "current_a"):
            getattr(reading, name)[joint] = getattr(kept, name)[joint]
        return reading

    made.robot.read = stuck
    took = made.until(lambda: made.guard.state is not State.RUNNING)
    assert made.guard.cause is Reason.SENSOR_STUCK
    assert made.guard.culprits == 1 << joint
    assert took * PERIOD_S < 0.2 or abs(made.guard.motion.q[joint] - goal) < 0.01
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_blocked_arm_stops_before_it_winds_up(tmp_path, seed: int):
    made = bench(tmp_path, seed, tracking_error=0.05)
    made.robot.blocked[0] = True
    made.until(lambda: made.guard.state is not State.RUNNING)
    assert abs(made.guard.motion.q[0] - made.robot.q[0]) <= 0.05 + 2 * 0.6 * PERIOD_S
    made.assert_within_limits()
    made.until(lambda: stopped(made, Reason.SENSOR_STUCK, State.FAULT))
    assert made.guard.culprits == 1


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_jump_of_the_wall_clock_is_nothing(tmp_path, jump_s: int):
    made = bench(tmp_path, 0)
    wall = made.clock.wall_ns
    made.clock.wall_ns = lambda: wall() + jump_s * 10**9
    made.run(200)
    assert made.guard.state is State.RUNNING


@pytest.mark.parametrize("seed", REPEATS)
def test_a_clock_that_jumps_stops_the_robot(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.clock.now += 2 * 10**9
    made.until(lambda: made.guard.state is not State.RUNNING, 4)
    made.until(lambda: made.guard.state is State.HOLD)
    assert made.guard.machine.latched in (Reason.CLOCK_JUMPED, Reason.DEADLINES_MISSED)
    made.assert_within_limits()


@pytest.mark.parametrize("moves", [True, False])
def test_a_suspended_computer_is_a_fault_though_its_clock_stood_still(tmp_path, moves: bool):
    """CLOCK_MONOTONIC does not count a suspension: no deadline is missed, nothing seems too old."""
    made = Bench(tmp_path)
    if not moves:
        made.inputs.requests = {}
    made.run(100)
    made.clock.suspended += 50_000_000  # two clocks that were read apart
    made.run(10)
    assert made.guard.cause is None
    made.clock.suspended += 10 * 10**9
    made.run(1)
    assert made.guard.cause is Reason.SUSPENDED
    made.run(100)
    assert made.guard.state is State.FAULT
    assert made.guard.motion.stands()
    made.assert_within_limits()
    made.inputs.requests[made.inputs.calls + 1] = Request(typed="re-arm")
    made.run(1)
    assert made.guard.state is State.CONNECTED


def test_a_missed_deadline_now_and_then_is_borne_and_counted(tmp_path):
    made = bench(tmp_path, 1)
    for k in range(20, 400, 40):  # 2.5 percent
        made.clock.lateness[made.clock.sleeps + k] = int(0.7 * PERIOD_S * 1e9)
    rows = made.run(400)
    assert made.guard.state is State.RUNNING
    assert made.loop.missed == 10
    ticks = np.array([int(r["tick"]) for r in rows])
    assert (np.diff(ticks) == 2).sum() == 10  # the grid goes on: nothing is caught up
    apart = np.diff([int(r["wake_ns"]) for r in rows])
    assert apart.min() >= 0.5 * PERIOD_S * 1e9


@pytest.mark.parametrize(("lateness", "share"), [(3.2, 1), (0.8, 8)])
def test_three_misses_in_a_row_or_a_twentieth_of_a_second_stop(tmp_path, lateness, share):
    made = bench(tmp_path, 2)
    for k in range(0, 4000, share):
        made.clock.lateness[made.clock.sleeps + k] = int(lateness * PERIOD_S * 1e9)
    took = made.until(lambda: made.guard.state is not State.RUNNING)
    assert took * PERIOD_S <= 1.0
    made.clock.lateness.clear()
    made.until(lambda: stopped(made, Reason.DEADLINES_MISSED))
    made.assert_within_limits()


@pytest.mark.parametrize("periods", [2.9, 3.4, 4.0, 4.4, 4.6, 5.3, 7.49])
def test_after_a_stall_no_two_commands_are_closer_than_half_a_period(tmp_path, periods: float):
    made = bench(tmp_path, 3)
    sleeps = made.clock.sleeps
    made.clock.lateness[sleeps + 5] = int(periods * PERIOD_S * 1e9)
    for k in range(20, 40):  # and one that is late at every deadline
        made.clock.lateness[sleeps + k] = int(0.8 * PERIOD_S * 1e9)
    rows = made.run(60)
    apart = np.diff([time_ns for time_ns, _ in made.robot.arrived])
    assert apart.min() >= 0.5 * PERIOD_S * 1e9
    assert (np.diff([int(r["tick"]) for r in rows]) >= 1).all()
    off = [int(r["wake_ns"]) - int(r["deadline_ns"]) for r in rows]
    assert np.abs(off).max() <= 0.5 * PERIOD_S * 1e9 + 1


@pytest.mark.parametrize("seed", REPEATS)
def test_a_silent_watchdog_or_recorder_stops_the_robot(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    if seed % 2:
        made.inputs.watched = False
    else:
        made.inputs.recorder_dead = True
    assert made.until(lambda: made.guard.state is State.SOFT_STOP) == 1
    made.until(lambda: made.guard.state is State.HOLD)
    made.assert_within_limits()


def test_a_console_that_hangs_stops_what_moves_and_is_no_hindrance_once_it_is_back(tmp_path):
    made = bench(tmp_path, 0)
    made.inputs.console_dead = True
    assert made.until(lambda: made.guard.state is State.SOFT_STOP) == 1
    made.until(lambda: stopped(made, Reason.CONSOLE_LOST))
    made.inputs.console_dead = False
    made.inputs.standing = Request(typed="re-arm")
    made.run(1)
    made.inputs.standing = Request(start=True)
    made.until(lambda: made.guard.state is State.RUNNING)
    made.assert_within_limits()


def test_a_console_that_hangs_is_no_reason_while_nothing_moves(tmp_path):
    made = Bench(tmp_path)
    made.inputs.console_dead, made.inputs.requests = True, {}
    made.run(50)
    assert made.guard.machine.latched is None


@pytest.mark.parametrize("seed", REPEATS)
def test_the_emergency_stop_acts_in_the_same_tick(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.inputs.standing = Request(estop=True)
    assert made.until(lambda: made.guard.state is State.ESTOP) == 1
    took = made.until(made.guard.motion.stands) if not made.guard.motion.stands() else 0
    assert took * PERIOD_S <= 2.0 / 25 + 25 / 1000 + 3 * PERIOD_S
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_person_takes_over_from_where_the_robot_is_and_it_ends_held(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.inputs.standing = Request(take=True)
    made.run(1)
    assert made.guard.state is State.TAKEOVER
    aim = made.robot.q + np.array([0.1, -0.1])
    for _ in range(200):
        made.inputs.standing = Request(target=aim, target_ns=made.clock.now)
        rows = made.run(1)
    assert rows[-1]["intervention"] == 1
    assert made.robot.q == pytest.approx(aim, abs=2e-3)
    made.inputs.standing = Request(release=True)
    made.until(lambda: made.guard.state is State.HOLD)
    assert made.guard.machine.latched is None
    made.assert_within_limits()


def test_a_persons_target_is_approached_from_where_the_robot_is(tmp_path):
    """Within 0.2 s, evenly: half of the way after half of that."""
    made = bench(tmp_path, 0)
    made.inputs.standing = Request(take=True)
    (row,) = made.run(1)
    here = row["q"].copy()
    aim = here + np.array([0.2, -0.2])
    targets = []
    for _ in range(50):
        made.inputs.standing = Request(target=aim, target_ns=made.clock.now)
        targets.append(made.run(1)[0]["target"].copy())
    share = ((np.array(targets) - here) / (aim - here)).mean(1)
    expected = np.minimum(1, PERIOD_S * np.arange(1, 51) / 0.2)
    np.testing.assert_allclose(share, expected, atol=0.03)


@pytest.mark.parametrize("seed", REPEATS)
def test_a_takeover_device_that_falls_silent_stops_the_robot(tmp_path, seed: int):
    made = bench(tmp_path, seed)
    made.inputs.standing = Request(take=True)
    made.run(1)
    made.inputs.standing = Request(target=[0.0, 0.0], target_ns=made.clock.now)
    took = made.until(lambda: made.guard.state is not State.TAKEOVER)
    assert took * PERIOD_S <= 0.1 + 2 * PERIOD_S
    made.inputs.standing = Request()
    made.until(lambda: stopped(made, Reason.TELEOP_LOST))
    made.assert_within_limits()


@pytest.mark.parametrize("seed", REPEATS)
def test_a_plan_out_of_the_workspace_is_not_followed(tmp_path, seed: int):
    """The box ends at x = 0.45 m; straight ahead the tool would be at 0.5 m."""
    act = changed_policy(lambda chunk: np.zeros_like(chunk))

    def far(t: float) -> np.ndarray:
        chunk = act(t)
        return chunk if act.hit else chunk + np.array([0.0, 1.4])

    rules = Rules(trip_after_s=10.0)
    start = np.array([0.0, 1.4])
    made = Bench(tmp_path, far, workspace=workspace(tmp_path), rules=rules, q0=start)
    made.run(100 + 37 * seed)
    act.hit = True
    made.until(lambda: stopped(made, Reason.WORKSPACE))
    made.assert_within_limits()
    q = np.array([q for _, q in made.robot.arrived])
    tool = 0.3 * np.cos(q[:, 0]) + 0.2 * np.cos(q.sum(1))
    assert tool.max() <= 0.45


def test_a_short_soak_of_random_faults_leaves_no_state_stuck(tmp_path):
    """Fourteen thousand ticks; the million is benchmarks/robot/soak.py's."""
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
def test_a_reading_that_is_none_is_a_fault_with_a_sentence(tmp_path, wrong, sentence: str):
    made = bench(tmp_path, 0)
    read = made.robot.read
    made.robot.read = lambda: wrong(read())
    made.run(1)
    assert made.guard.state is State.FAULT
    assert made.guard.cause is Reason.ADAPTER_INVALID
    assert re.search(sentence, made.loop.refused)
    made.run(100)
    assert made.guard.motion.stands()
    made.assert_within_limits()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda s: None, "it is None, expected a Sent"),
        (lambda s: replace(s, q=s.q.tolist()), "q is a list"),
        (lambda s: replace(s, code=0), "code is 0, expected a Code"),
        (lambda s: s.q[7], "IndexError"),
    ],
)
def test_an_answer_to_a_command_that_is_none_is_a_fault(tmp_path, wrong, sentence: str):
    made = bench(tmp_path, 0)
    command = made.robot.command
    made.robot.command = lambda goal: wrong(command(goal))
    made.run(1)
    assert made.guard.cause is Reason.ADAPTER_INVALID
    assert sentence in made.loop.refused


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
def test_what_arming_answers_is_compared_with_where_the_robot_is(tmp_path, wrong, sentence: str):
    """Its first goal is that answer: zeros would be a leap of 0.7 rad in one period."""
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
def test_an_arm_that_is_pushed_by_hand_gives_way_and_does_not_snap_back(
    tmp_path, measures_current: bool
):
    """5 N m for 0.05 s push a waist whose servo has 4.1 N m; its limit is 2 rad/s.

    Without a current it holds all the while and returns; with one the push is CURRENT_EXTREME, and
    it stays where it was pushed.
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
        assert np.abs(np.diff(goals)).max() * 2 * np.pi / 4096 / 0.01 < 2.0 + 0.16  # a tick


def test_an_arm_whose_weight_hangs_below_its_goals_does_not_sink(tmp_path):
    """A steady error, however large, is not a push: only a joint that moves was pushed."""
    made = Bench(tmp_path)
    made.inputs.requests = {}
    read, weight = made.robot.read, np.array([0.0, -0.1])  # half of the tracking error
    made.robot.read = lambda: (r := read(), replace(r, q=r.q + weight))[1]
    made.guard.motion.measured[1] -= 0.1
    made.run(400)
    assert made.guard.state is State.HOLD
    assert made.guard.motion.q == [0.0, 0.0]


def test_a_robot_that_was_moved_by_hand_stays_there_when_it_is_armed_again(tmp_path):
    made = Bench(tmp_path)
    made.inputs.requests = {}
    made.run(100)
    made.inputs.requests[made.inputs.calls + 1] = Request(limp=True)
    made.run(1)
    for _ in range(50):
        made.robot.q += 0.004
        made.run(1)
    made.inputs.requests[made.inputs.calls + 1] = Request(arm=True)
    made.run(1)
    assert made.guard.state is State.HOLD
    here = made.robot.q.copy()
    made.run(300)
    np.testing.assert_allclose(made.robot.q, here, atol=1e-3)


def test_an_encoder_that_leaps_between_arming_and_the_first_tick_is_noticed(tmp_path):
    made = Bench(tmp_path)
    made.robot.offset[1] = 0.15  # less than tracking_error
    made.robot.encoder_leapt()
    made.run(20)
    assert made.guard.cause is Reason.ENCODER_LEAPT
    # its servo has driven it for the one period until the leap was read: 1 - exp(-5 ms / 20 ms)
    np.testing.assert_allclose(made.robot.q, [0.0, -0.15 * 0.2212], atol=2e-3)


def test_no_goal_follows_a_leap_that_no_second_reading_confirms(tmp_path):
    made = bench(tmp_path, 0)
    read, answers = made.robot.read, [0]

    def once_wrong_and_then_silent() -> Reading:
        reading, answers[0] = read(), answers[0] + 1
        wrong = reading.q + np.array([0.0, 0.5])
        return replace(reading, q=wrong) if answers[0] == 1 else replace(reading, code=Code.TIMEOUT)

    made.robot.read = once_wrong_and_then_silent
    made.run(50)
    assert made.guard.cause is Reason.ENCODER_LEAPT
    assert f"hold {Reason.ENCODER_LEAPT.text}" in made.robot.calls
    np.testing.assert_allclose(made.robot.goal, made.robot.q, atol=2e-3)


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

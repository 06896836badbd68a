"""Schedule: due times, late actions, and the spline between actions."""

import numpy as np
import pytest

from real_robot.control.schedule import Chunk, Schedule, Timing

SECOND = 1_000_000_000


def chunk(actions, observed_s: float, seq: int = 0, answered_s: float = 0.0) -> Chunk:
    actions = np.asarray(actions, float).reshape(len(actions), -1)
    return Chunk(seq, round(observed_s * SECOND), round(answered_s * SECOND), actions)


def at(schedule: Schedule, seconds: float):
    goal = schedule.target(round(seconds * SECOND))
    return None if goal is None else list(goal)


def test_actions_are_due_from_the_observation_not_from_when_inference_ended():
    """10 Hz, observation at 1.0 s, chunk at 1.23 s: 1.0, 1.1 and 1.2 are late."""
    schedule = Schedule(Timing(10, 8), 1)
    assert schedule.offer(chunk(range(8), 1.0), round(1.23 * SECOND), [2.3], [0.0])
    assert schedule.counts.late_actions == 3
    for i in range(3, 8):
        assert at(schedule, 1.0 + i / 10) == pytest.approx([i])


def test_the_spline_passes_through_the_actions_and_through_the_commanded_state():
    schedule = Schedule(Timing(10, 5), 2)
    actions = np.array([[0, 0], [1, -1], [3, -1], [2, -4], [2, 0]], float)
    schedule.offer(chunk(actions, 0.0), SECOND // 20, [0.4, 0.3], [7.0, -2.0])
    assert at(schedule, 0.05) == pytest.approx([0.4, 0.3])
    early = (np.array(at(schedule, 0.05 + 1e-6)) - [0.4, 0.3]) / 1e-6
    assert early == pytest.approx([7.0, -2.0], abs=1e-2)
    for i in range(1, 5):
        assert at(schedule, i / 10) == pytest.approx(actions[i])


def test_between_monotone_actions_the_spline_is_monotone_and_nowhere_beyond_them():
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = np.cumsum(rng.exponential(1, 8) ** 3)
        schedule = Schedule(Timing(10, 8), 1)
        schedule.offer(chunk(actions, 0.0), 1, [actions[0] - 1], [0.0])
        found = [at(schedule, t)[0] for t in np.linspace(1e-8, 0.7, 500)]
        assert (np.diff(found) >= -1e-12).all()
        assert max(found) <= actions[-1] + 1e-12


def test_the_spline_has_no_jump_in_position_or_velocity():
    rng = np.random.default_rng(1)
    schedule = Schedule(Timing(10, 8), 1)
    schedule.offer(chunk(rng.normal(size=8), 0.0), 1, [0.0], [1.0])
    times = np.arange(1e-6, 0.699, 1e-5)
    velocity = np.diff([at(schedule, t)[0] for t in times]) / 1e-5
    assert np.abs(np.diff(velocity)).max() < 0.2  # about 20 /s; a kink would have that size


def test_a_new_plan_begins_on_the_old_one_at_its_velocity():
    schedule = Schedule(Timing(10, 6), 1)
    rng = np.random.default_rng(2)
    schedule.offer(chunk(rng.normal(size=6), 0.0), 1, [0.0], [0.0])
    t, h = 0.23, 1e-6
    before = [at(schedule, t - h)[0], at(schedule, t)[0]]
    schedule.offer(chunk(rng.normal(size=6), 0.1, seq=1), round(t * SECOND), [9.0], [9.0])
    assert at(schedule, t)[0] == pytest.approx(before[1])
    speed = (at(schedule, t + h)[0] - at(schedule, t)[0]) / h
    assert speed == pytest.approx((before[1] - before[0]) / h, abs=1e-2)


def test_a_plan_holds_its_last_action_for_one_step_and_then_ends():
    schedule = Schedule(Timing(10, 3), 1)
    schedule.offer(chunk([1, 2, 3], 0.0), 1, [0.0], [0.0])
    assert at(schedule, 0.29) == [3.0]
    assert at(schedule, 0.301) is None


def test_a_completely_late_chunk_is_dropped_and_the_old_one_continues():
    schedule = Schedule(Timing(10, 4), 1)
    schedule.offer(chunk([0, 1, 2, 3], 0.0), 1, [0.0], [0.0])
    assert not schedule.offer(chunk([9, 9, 9, 9], 0.0, seq=1), 2 * SECOND, [0.0], [0.0])
    assert schedule.counts.late_chunks == 1
    assert at(schedule, 0.2) == pytest.approx([2.0])


@pytest.mark.parametrize(("seq", "observed_s"), [(3, 5.0), (4, 5.0), (9, 0.5)])
def test_chunks_out_of_order_or_repeated_are_dropped(seq: int, observed_s: float):
    schedule = Schedule(Timing(10, 4), 1)
    assert schedule.offer(chunk([1, 1, 1, 1], 1.0, seq=4), SECOND, [0.0], [0.0])
    assert not schedule.offer(chunk([9, 9, 9, 9], observed_s, seq=seq), SECOND, [0.0], [0.0])
    assert schedule.counts.disordered_chunks == 1
    assert at(schedule, 1.2) == pytest.approx([1.0])


def test_a_single_action_is_reached_one_step_after_it_arrives():
    schedule = Schedule(Timing(20, 1), 1)
    assert schedule.offer(chunk([1.0], 0.0), SECOND // 50, [0.0], [0.0])
    assert at(schedule, 0.02) == pytest.approx([0.0])
    assert at(schedule, 0.02 + 0.05) == pytest.approx([1.0])
    assert schedule.counts.late_actions == 0


@pytest.mark.parametrize("actions", [[1.0], np.ones(200)])
def test_a_chunk_from_an_old_observation_is_dropped(actions):
    """Inference hung for 10 s: its chunk is based on an old state of the robot."""
    schedule = Schedule(Timing(10, len(actions), max_age_s=0.5), 1)
    assert not schedule.offer(chunk(actions, 0.0), 10 * SECOND, [0.0], [0.0])
    assert schedule.counts.late_chunks == 1
    assert at(schedule, 10.0) is None
    assert schedule.offer(chunk(actions, 9.9, seq=1), 10 * SECOND, [0.0], [0.0])


def test_a_robot_with_latency_gets_its_commands_earlier():
    schedule = Schedule(Timing(10, 4, command_latency_s=0.03), 1)
    schedule.offer(chunk([0, 1, 2, 3], 0.0), 1, [0.0], [0.0])
    assert at(schedule, 0.2 - 0.03) == pytest.approx([2.0])


def test_with_latency_an_action_that_cannot_be_reached_is_late():
    """Due at 0.1 s, commanded at 0.02 s: with a latency of 0.08 s it starts when it is due."""
    for latency_s, late in ((0.0, 1), (0.08, 2)):
        schedule = Schedule(Timing(10, 4, command_latency_s=latency_s), 1)
        schedule.offer(chunk([0, 1, 2, 3], 0.0), SECOND // 50, [0.0], [0.0])
        assert schedule.counts.late_actions == late

"""Playback of a recording: it starts at the beginning and is passed on in chunks."""

import numpy as np
import pytest
from robots_in_memory import RATE_HZ, Bench

from real_robot.control.loop import Request
from real_robot.control.playback import CHUNK_SIZE, Playback
from real_robot.control.schedule import Schedule, Timing
from real_robot.safety.states import State

HZ = 20.0


@pytest.mark.parametrize("waits", [2, 400])
def test_a_recording_is_played_from_its_beginning_whenever_it_is_started(tmp_path, waits: int):
    """Also if started 2 s later. The way to the first goal is at 1/4 of the velocity limit."""
    bench = Bench(tmp_path)
    times = np.arange(100) / HZ
    goals = np.stack([0.5 + 0.2 * np.sin(2 * times), 0.1 * times], 1)
    bench.loop.schedule = Schedule(Timing(HZ, CHUNK_SIZE), 2)
    played = Playback(goals, HZ, bench.guard.envelope.velocity, lambda: bench.guard.motion.q)
    bench.inputs.chunk = lambda: played.chunk(bench.clock.now_ns(), bench.loop.starting)
    bench.inputs.has_plan_ended = lambda: played.has_ended
    bench.inputs.requests = {waits: Request(start=True)}
    rows = bench.run(waits + round((0.5 / 0.5 + 5) * RATE_HZ) + 200)
    start_tick = next(k for k, row in enumerate(rows) if row["state"] == State.RUNNING)
    assert start_tick == pytest.approx(waits, abs=2)
    sent = np.array([row["sent"] for row in rows[start_tick:]])
    steps = round(0.5 / (0.25 * 2) * HZ) + 1  # to the first goal, and on it
    per = round(RATE_HZ / HZ)
    np.testing.assert_allclose(sent[steps * per :: per][:100], goals, atol=0.02)
    assert np.abs(np.diff(sent[: steps * per], axis=0)).max() * RATE_HZ < 0.5 * 2
    assert bench.guard.state is State.HOLD
    assert bench.guard.machine.latched is None  # it has finished without a fault
    bench.assert_within_limits()


def test_a_recording_of_any_length_is_played_in_chunks_that_overlap():
    goals = np.random.default_rng(0).normal(size=(5_001, 1)).cumsum(0)
    played = Playback(goals, 25.0, [1.0], lambda: goals[0].tolist())
    schedule = Schedule(Timing(25.0, CHUNK_SIZE), 1)
    assert played.chunk(10**9, False) is None
    chunk = played.chunk(10**9, True)
    assert chunk is not None
    actions_out = list(chunk.actions)
    now = 10**9
    while len(actions_out) < len(goals) + 1:
        schedule.offer(chunk, now, [0.0], [0.0])
        now += round(1e9 * CHUNK_SIZE / 2 / 25)
        assert played.chunk(now - 2 * 10**7, False) is None
        chunk = played.chunk(now, False)
        assert chunk is not None
        assert len(chunk.actions) <= CHUNK_SIZE
        at = round((chunk.observed_ns - 10**9) * 25e-9)
        np.testing.assert_array_equal(chunk.actions[: len(actions_out) - at], actions_out[at:])
        actions_out += list(chunk.actions[len(actions_out) - at :])
    np.testing.assert_array_equal(actions_out[1:], goals)  # the way to the first goal has no length
    assert played.chunk(now + 10**12, False) is None
    assert schedule.counts.disordered_chunks == schedule.counts.late_chunks == 0


def test_a_second_start_begins_again_from_the_present_position():
    here = [0.0]
    goals = np.array([[0.1], [0.2], [0.3]])
    played = Playback(goals, 10.0, [4.0], lambda: here)
    first = played.chunk(10**9, True)
    here[0] = 0.3
    again = played.chunk(5 * 10**9, True)
    assert first is not None
    assert again is not None
    assert (again.actions[0, 0], again.actions[-1, 0]) == (0.3, 0.3)
    assert (again.seq, again.observed_ns) == (first.seq + 1, 5 * 10**9)

"""Playing a recording back: from its beginning, whenever it is started, a window at a time."""

import numpy as np
import pytest
from robots_in_memory import RATE_HZ, Bench

from real_robot.control.loop import Request
from real_robot.control.playback import WINDOW, Playback
from real_robot.control.schedule import Schedule, Timing
from real_robot.safety.states import State

HZ = 20.0


@pytest.mark.parametrize("waits", [2, 400])
def test_a_recording_is_played_from_its_beginning_whenever_it_is_started(tmp_path, waits: int):
    """Two seconds later as well; from a quarter of the limit of velocity, on the way to it."""
    made = Bench(tmp_path)
    times = np.arange(100) / HZ
    goals = np.stack([0.5 + 0.2 * np.sin(2 * times), 0.1 * times], 1)
    made.loop.schedule = Schedule(Timing(HZ, WINDOW), 2)
    played = Playback(goals, HZ, made.guard.envelope.velocity, lambda: made.guard.motion.q)
    made.inputs.chunk = lambda: played.chunk(made.clock.now_ns(), made.loop.starting)
    made.inputs.plan_handed_out = lambda: played.handed_out
    made.inputs.requests = {waits: Request(start=True)}
    rows = made.run(waits + round((0.5 / 0.5 + 5) * RATE_HZ) + 200)
    begun = next(k for k, row in enumerate(rows) if row["state"] == State.RUNNING)
    assert begun == pytest.approx(waits, abs=2)
    sent = np.array([row["sent"] for row in rows[begun:]])
    steps = round(0.5 / (0.25 * 2) * HZ) + 1  # to the first goal, and on it
    per = round(RATE_HZ / HZ)
    np.testing.assert_allclose(sent[steps * per :: per][:100], goals, atol=0.02)
    assert np.abs(np.diff(sent[: steps * per], axis=0)).max() * RATE_HZ < 0.5 * 2
    assert made.guard.state is State.HOLD
    assert made.guard.machine.latched is None  # it is finished: nothing went wrong
    made.assert_within_limits()


def test_a_recording_of_any_length_is_handed_out_in_windows_that_overlap():
    goals = np.random.default_rng(0).normal(size=(5_001, 1)).cumsum(0)
    played = Playback(goals, 25.0, [1.0], lambda: goals[0].tolist())
    schedule = Schedule(Timing(25.0, WINDOW), 1)
    assert played.chunk(10**9, False) is None
    chunk = played.chunk(10**9, True)
    assert chunk is not None
    found = list(chunk.actions)
    now = 10**9
    while len(found) < len(goals) + 1:
        schedule.offer(chunk, now, [0.0], [0.0])
        now += round(1e9 * WINDOW / 2 / 25)
        assert played.chunk(now - 2 * 10**7, False) is None
        chunk = played.chunk(now, False)
        assert chunk is not None
        assert len(chunk.actions) <= WINDOW
        at = round((chunk.observed_ns - 10**9) * 25e-9)
        np.testing.assert_array_equal(chunk.actions[: len(found) - at], found[at:])
        found += list(chunk.actions[len(found) - at :])
    np.testing.assert_array_equal(found[1:], goals)  # after the way, which is of no length
    assert played.chunk(now + 10**12, False) is None
    assert schedule.counts.disordered_chunks == schedule.counts.late_chunks == 0


def test_what_is_started_again_begins_again_from_where_the_robot_is():
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

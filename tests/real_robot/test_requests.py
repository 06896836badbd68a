"""Requests of an operator to a running loop, on a simulated clock."""

import numpy as np
import pytest
from robots_in_memory import Bench

from real_robot.control.loop import Request
from real_robot.safety.states import Reason, State


def send(bench: Bench, **request) -> None:
    """Send a request in the next tick only."""
    bench.loop.refused = None
    bench.inputs.requests[bench.inputs.calls + 1] = Request(**request)
    bench.run(1)


def running_out(folder) -> Bench:
    """Return a bench whose plan has just ended; the next one is on its way."""
    bench = Bench(folder)
    bench.run(200)
    bench.inputs.dead, bench.inputs.waiting = True, []
    bench.until(lambda: bench.guard.state is State.SOFT_STOP)
    assert bench.guard.machine.pending is Reason.PLAN_EXHAUSTED
    bench.inputs.dead, bench.inputs.latency_ns, bench.inputs.next_ns = False, 0, 0
    return bench


def test_a_late_plan_resumes_motion_unless_the_operator_typed_finish(tmp_path):
    bench = running_out(tmp_path)
    bench.run(2)
    assert bench.guard.state is State.RUNNING
    bench = running_out(tmp_path)
    bench.inputs.dead = True
    send(bench, finish=True)
    bench.inputs.dead = False
    bench.run(100)
    assert bench.guard.state is State.HOLD
    assert bench.guard.machine.latched is None


def test_finishing_before_the_first_plan_cancels_the_start(tmp_path):
    bench = Bench(tmp_path)
    bench.inputs.dead, bench.inputs.requests = True, {}
    send(bench, start=True)
    assert bench.loop.starting
    send(bench, finish=True)
    assert bench.loop.refused is None
    bench.inputs.dead, bench.inputs.next_ns = False, 0
    bench.run(50)
    assert bench.guard.state is State.HOLD


def test_a_start_expires_if_no_plan_comes_within_two_seconds(tmp_path):
    """Otherwise the robot could move minutes later, when the plan comes."""
    bench = Bench(tmp_path)
    bench.inputs.dead, bench.inputs.requests = True, {}
    send(bench, start=True)
    requested_ns = bench.clock.now
    send(bench, start=True)
    assert bench.loop.refused == "start was already requested: motion begins with the first plan"
    bench.loop.refused = None
    bench.until(lambda: not bench.loop.starting)
    assert 2.0 < (bench.clock.now - requested_ns) * 1e-9 < 2.02
    assert bench.loop.refused == ("no plan came within 2 s: inference is silent; type start again")
    bench.inputs.dead, bench.inputs.latency_ns, bench.inputs.next_ns = False, 0, 0
    bench.run(100)
    assert bench.guard.state is State.HOLD
    send(bench, start=True)
    bench.run(50)
    assert bench.guard.state is State.RUNNING


def test_finish_ends_a_takeover(tmp_path):
    bench = Bench(tmp_path)
    bench.run(100)
    send(bench, take=True)
    send(bench, finish=True)
    bench.until(lambda: bench.guard.state is State.HOLD)
    assert bench.guard.machine.latched is None


@pytest.mark.parametrize("word", ["start", "arm", "limp", "release"])
def test_refusals_while_running_are_reported(tmp_path, word: str):
    bench = Bench(tmp_path)
    bench.run(100)
    send(bench, **{word: True})
    assert bench.loop.refused == f"{word} is refused while RUNNING"
    assert bench.guard.state is State.RUNNING


def test_a_start_is_refused_while_a_reason_is_latched(tmp_path):
    bench = Bench(tmp_path)
    bench.inputs.requests = {}
    bench.inputs.watched = False
    bench.run(2)
    bench.inputs.watched = True
    send(bench, start=True)
    assert "the watchdog process is silent; re-arm first" in str(bench.loop.refused)
    assert not bench.loop.starting


def test_nothing_is_armed_while_the_emergency_stop_is_pressed(tmp_path):
    bench = Bench(tmp_path)
    bench.run(100)
    send(bench, estop=True)
    bench.run(100)
    send(bench, typed="re-arm")
    assert bench.guard.state is State.CONNECTED
    send(bench, arm=True, estop=True)
    assert "emergency stop" in str(bench.loop.refused)
    assert bench.guard.state is State.CONNECTED
    send(bench, arm=True)
    assert bench.guard.state is State.HOLD


def test_a_takeover_reaches_its_target_by_a_ramp(tmp_path):
    """The ramp is linear, from the measured position, in 0.2 s."""
    bench = Bench(tmp_path)
    bench.run(100)
    here = bench.robot.q.copy()
    bench.inputs.standing = Request(take=True, target=here + 0.04, target_ns=bench.clock.now)
    rows = bench.run(12)
    aims = np.array([row["target"][0] - here[0] for row in rows[1:]])
    since = np.array([row["wake_ns"] - rows[0]["wake_ns"] for row in rows[1:]]) * 1e-9
    assert aims == pytest.approx(0.04 * since / 0.2, abs=0.004)


def test_an_old_request_is_refused_but_an_old_emergency_stop_is_not(tmp_path):
    bench = Bench(tmp_path)
    bench.run(100)
    send(bench, finish=True, late=True)
    assert bench.guard.state is State.RUNNING
    assert "type it again" in str(bench.loop.refused)
    send(bench, estop=True, late=True)
    assert bench.guard.state is State.ESTOP


def test_a_device_slower_than_the_loop_keeps_the_takeover_until_it_falls_silent(tmp_path):
    """The device sends in every third tick; its last target is valid for 0.1 s."""
    bench = Bench(tmp_path)
    bench.run(100)
    here = bench.robot.q + 0.02
    send(bench, take=True)
    for tick in range(150):
        if tick % 3 == 0:
            send(bench, target=here, target_ns=bench.clock.now)
        else:
            bench.run(1)
    assert bench.guard.state is State.TAKEOVER
    assert bench.robot.q == pytest.approx(here, abs=0.002)
    bench.run(15)
    assert bench.guard.state is State.TAKEOVER
    bench.until(lambda: bench.guard.machine.latched is Reason.TELEOP_LOST)


def test_a_target_with_another_clock_is_ignored(tmp_path):
    bench = Bench(tmp_path)
    bench.run(100)
    later = bench.clock.now + 10**12
    bench.inputs.standing = Request(take=True, target=bench.robot.q.copy(), target_ns=later)
    bench.run(1)
    bench.inputs.standing = Request(target=bench.robot.q.copy(), target_ns=later)
    bench.until(lambda: bench.guard.machine.latched is Reason.TELEOP_LOST)

"""What a person at the keys wants of a loop that runs, on a simulated clock."""

import numpy as np
import pytest
from robots_in_memory import Bench

from real_robot.control.loop import Request
from real_robot.safety.states import Reason, State


def tell(made: Bench, **request) -> None:
    """In the next tick, and only then."""
    made.loop.refused = None
    made.inputs.requests[made.inputs.calls + 1] = Request(**request)
    made.run(1)


def running_out(folder) -> Bench:
    """Its plan has just ended, and the next one is on its way."""
    made = Bench(folder)
    made.run(200)
    made.inputs.dead, made.inputs.waiting = True, []
    made.until(lambda: made.guard.state is State.SOFT_STOP)
    assert made.guard.machine.pending is Reason.PLAN_EXHAUSTED
    made.inputs.dead, made.inputs.latency_ns, made.inputs.next_ns = False, 0, 0
    return made


def test_a_plan_that_comes_late_goes_on_but_not_once_a_person_has_finished(tmp_path):
    made = running_out(tmp_path)
    made.run(2)
    assert made.guard.state is State.RUNNING
    made = running_out(tmp_path)
    made.inputs.dead = True
    tell(made, finish=True)
    made.inputs.dead = False
    made.run(100)
    assert made.guard.state is State.HOLD
    assert made.guard.machine.latched is None


def test_finishing_before_the_first_plan_cancels_the_start(tmp_path):
    made = Bench(tmp_path)
    made.inputs.dead, made.inputs.requests = True, {}
    tell(made, start=True)
    assert made.loop.starting
    tell(made, finish=True)
    assert made.loop.refused is None
    made.inputs.dead, made.inputs.next_ns = False, 0
    made.run(50)
    assert made.guard.state is State.HOLD


def test_a_start_is_forgotten_when_no_plan_comes_within_two_seconds(tmp_path):
    """Else the robot would move whenever the plan comes, minutes later."""
    made = Bench(tmp_path)
    made.inputs.dead, made.inputs.requests = True, {}
    tell(made, start=True)
    asked_ns = made.clock.now
    tell(made, start=True)
    assert made.loop.refused == "start was already requested: motion begins with the first plan"
    made.loop.refused = None
    made.until(lambda: not made.loop.starting)
    assert 2.0 < (made.clock.now - asked_ns) * 1e-9 < 2.02
    assert made.loop.refused == ("no plan came within 2 s: inference is silent; type start again")
    made.inputs.dead, made.inputs.latency_ns, made.inputs.next_ns = False, 0, 0
    made.run(100)
    assert made.guard.state is State.HOLD
    tell(made, start=True)
    made.run(50)
    assert made.guard.state is State.RUNNING


def test_finishing_lets_a_person_who_has_taken_over_go(tmp_path):
    made = Bench(tmp_path)
    made.run(100)
    tell(made, take=True)
    tell(made, finish=True)
    made.until(lambda: made.guard.state is State.HOLD)
    assert made.guard.machine.latched is None


@pytest.mark.parametrize("word", ["start", "arm", "limp", "release"])
def test_what_is_refused_while_it_runs_is_said(tmp_path, word: str):
    made = Bench(tmp_path)
    made.run(100)
    tell(made, **{word: True})
    assert made.loop.refused == f"{word} is refused while RUNNING"
    assert made.guard.state is State.RUNNING


def test_a_start_is_refused_at_once_while_a_reason_is_latched(tmp_path):
    made = Bench(tmp_path)
    made.inputs.requests = {}
    made.inputs.watched = False
    made.run(2)
    made.inputs.watched = True
    tell(made, start=True)
    assert "the watchdog process is silent; re-arm first" in str(made.loop.refused)
    assert not made.loop.starting


def test_nothing_is_armed_while_the_emergency_stop_is_pressed(tmp_path):
    made = Bench(tmp_path)
    made.run(100)
    tell(made, estop=True)
    made.run(100)
    tell(made, typed="re-arm")
    assert made.guard.state is State.CONNECTED
    tell(made, arm=True, estop=True)
    assert "emergency stop" in str(made.loop.refused)
    assert made.guard.state is State.CONNECTED
    tell(made, arm=True)
    assert made.guard.state is State.HOLD


def test_a_takeover_reaches_the_persons_target_by_a_ramp(tmp_path):
    """Linear in 0.2 s from where the robot was measured: after a quarter, a quarter of the way."""
    made = Bench(tmp_path)
    made.run(100)
    here = made.robot.q.copy()
    made.inputs.standing = Request(take=True, target=here + 0.04, target_ns=made.clock.now)
    rows = made.run(12)
    aims = np.array([row["target"][0] - here[0] for row in rows[1:]])
    since = np.array([row["wake_ns"] - rows[0]["wake_ns"] for row in rows[1:]]) * 1e-9
    assert aims == pytest.approx(0.04 * since / 0.2, abs=0.004)


def test_a_word_of_before_is_refused_and_an_emergency_stop_of_before_is_not(tmp_path):
    made = Bench(tmp_path)
    made.run(100)
    tell(made, finish=True, late=True)
    assert made.guard.state is State.RUNNING
    assert "type it again" in str(made.loop.refused)
    tell(made, estop=True, late=True)
    assert made.guard.state is State.ESTOP


def test_a_device_slower_than_the_loop_keeps_the_takeover_until_it_falls_silent(tmp_path):
    """It speaks every third tick; its last target holds for 0.1 s."""
    made = Bench(tmp_path)
    made.run(100)
    here = made.robot.q + 0.02
    tell(made, take=True)
    for tick in range(150):
        if tick % 3 == 0:
            tell(made, target=here, target_ns=made.clock.now)
        else:
            made.run(1)
    assert made.guard.state is State.TAKEOVER
    assert made.robot.q == pytest.approx(here, abs=0.002)
    made.run(15)
    assert made.guard.state is State.TAKEOVER
    made.until(lambda: made.guard.machine.latched is Reason.TELEOP_LOST)


def test_a_target_of_another_clock_is_none(tmp_path):
    made = Bench(tmp_path)
    made.run(100)
    later = made.clock.now + 10**12
    made.inputs.standing = Request(take=True, target=made.robot.q.copy(), target_ns=later)
    made.run(1)
    made.inputs.standing = Request(target=made.robot.q.copy(), target_ns=later)
    made.until(lambda: made.guard.machine.latched is Reason.TELEOP_LOST)

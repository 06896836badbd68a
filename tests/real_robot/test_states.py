"""State machine: only listed transitions, and only an operator clears a reason."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real_robot.safety.states import (
    ARMED,
    FAULTS,
    RE_ARM,
    Event,
    Machine,
    Reason,
    Refused,
    State,
    event_of,
)

S, E = State, Event

# from the description of the states, not from the table in the code
PERMITTED = {
    (S.DISCONNECTED, E.CONNECT, S.CONNECTED),
    (S.CONNECTED, E.CHECK, S.CHECKED),
    (S.CHECKED, E.CHECK, S.CHECKED),
    (S.CHECKED, E.EXPIRE, S.CONNECTED),
    (S.CHECKED, E.ARM, S.HOLD),
    (S.HOLD, E.START, S.RUNNING),
    (S.HOLD, E.TAKE, S.TAKEOVER),
    (S.RUNNING, E.TAKE, S.TAKEOVER),
    (S.RUNNING, E.STOP, S.SOFT_STOP),
    (S.TAKEOVER, E.STOP, S.SOFT_STOP),
    (S.RUNNING, E.FINISH, S.SOFT_STOP),
    (S.TAKEOVER, E.RELEASE, S.SOFT_STOP),
    (S.SOFT_STOP, E.STANDSTILL, S.HOLD),
    (S.SOFT_STOP, E.FRESH_PLAN, S.RUNNING),
    (S.SOFT_STOP, E.STOP, S.SOFT_STOP),
    (S.HOLD, E.STOP, S.HOLD),
    (S.SOFT_STOP, E.FINISH, S.SOFT_STOP),
    *((s, E.LIMP, S.CONNECTED) for s in (S.CONNECTED, S.CHECKED, S.HOLD)),
    (S.FAULT, E.LIMP, S.FAULT),
    (S.ESTOP, E.LIMP, S.ESTOP),
    *((s, E.FAULT, S.FAULT) for s in (S.HOLD, S.RUNNING, S.TAKEOVER, S.SOFT_STOP)),
    *((s, E.ESTOP, S.ESTOP) for s in (S.HOLD, S.RUNNING, S.TAKEOVER, S.SOFT_STOP, S.FAULT)),
    *((s, E.CLOSE, S.DISCONNECTED) for s in S),
}
NEXT = {(before, event): after for before, event, after in PERMITTED}
FITTING = {E.STOP: Reason.WORKSPACE, E.FAULT: Reason.BUS_LOST, E.ESTOP: Reason.ESTOP_PRESSED}


def machine(state: State) -> Machine:
    """Return a machine in `state` that accepts most events: nothing latched, just checked."""
    return Machine(state, pending=Reason.PLAN_EXHAUSTED if state is S.SOFT_STOP else None)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_that_is_not_listed_is_refused(state: State, event: Event):
    tried = machine(state)
    if (state, event) in NEXT:
        assert tried.fire(event, 0, FITTING.get(event)) is NEXT[state, event]
    else:
        with pytest.raises(Refused):
            tried.fire(event, 0, FITTING.get(event))
        assert tried == machine(state)


@pytest.mark.parametrize("state", State)
def test_re_arming_is_for_hold_fault_and_estop(state: State):
    tried = Machine(state, latched=Reason.WORKSPACE)
    expected = {S.HOLD: S.HOLD, S.FAULT: S.CONNECTED, S.ESTOP: S.CONNECTED}
    if state in expected:
        assert tried.re_arm("re-arm", present=(), now_ns=0) is expected[state]
        assert tried.latched is None
    else:
        with pytest.raises(Refused):
            tried.re_arm("re-arm", present=(), now_ns=0)


@pytest.mark.parametrize("typed", ["", "y", "yes", "RE-ARM", "re-arm "])
def test_only_the_word_itself_re_arms(typed: str):
    tried = Machine(S.HOLD, latched=Reason.TRACKING_ERROR)
    with pytest.raises(Refused, match="type 're-arm'"):
        tried.re_arm(typed, present=(), now_ns=0)
    assert tried.latched is Reason.TRACKING_ERROR


def test_re_arming_is_refused_while_the_cause_is_there():
    tried = Machine(S.FAULT, latched=Reason.SERVO_ERROR)
    with pytest.raises(Refused, match=f"^still present: {Reason.BUS_LOST.text}"):
        tried.re_arm(RE_ARM, present=[Reason.BUS_LOST], now_ns=0)  # not the first cause


def test_a_latched_robot_neither_starts_nor_is_taken_over():
    for event in (E.START, E.TAKE):
        with pytest.raises(Refused, match="re-arm first"):
            Machine(S.HOLD, latched=Reason.WORKSPACE).fire(event, 0)


def test_a_check_holds_for_a_minute():
    tried = Machine(S.CONNECTED)
    tried.fire(E.CHECK, 10**9)
    with pytest.raises(Refused, match="check again"):
        tried.fire(E.ARM, 61 * 10**9 + 1)
    assert tried.fire(E.ARM, 61 * 10**9) is S.HOLD


def test_a_new_plan_resumes_motion_only_if_the_last_one_ran_out():
    stopping = Machine(S.RUNNING)
    stopping.fire(E.STOP, 0, Reason.PLAN_EXHAUSTED)
    stopping.fire(E.STOP, 0, Reason.WORKSPACE)  # the second one is more severe
    with pytest.raises(Refused):
        stopping.fire(E.FRESH_PLAN, 0)
    stopping.fire(E.STANDSTILL, 0)
    assert stopping.latched is Reason.WORKSPACE


@pytest.mark.parametrize("ran_out", [False, True])
def test_finishing_latches_nothing(ran_out: bool):
    """This includes a plan that has just run out; then no new plan resumes motion."""
    tried = Machine(S.RUNNING)
    if ran_out:
        tried.fire(E.STOP, 0, Reason.PLAN_EXHAUSTED)
    tried.fire(E.FINISH, 0)
    with pytest.raises(Refused):
        tried.fire(E.FRESH_PLAN, 0)
    tried.fire(E.STANDSTILL, 0)
    assert tried == Machine(S.HOLD)


def test_finishing_hides_no_other_reason():
    tried = Machine(S.RUNNING)
    tried.fire(E.STOP, 0, Reason.WORKSPACE)
    tried.fire(E.FINISH, 0)
    tried.fire(E.STANDSTILL, 0)
    assert tried.latched is Reason.WORKSPACE


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_triggers_only_its_event(reason: Reason):
    kinds = {E.STOP: S.SOFT_STOP, E.FAULT: S.FAULT, E.ESTOP: S.ESTOP}
    for event, state in kinds.items():
        tried = Machine(S.RUNNING)
        if event is event_of(reason):
            assert tried.fire(event, 0, reason) is state
        else:
            with pytest.raises(Refused):
                tried.fire(event, 0, reason)
    assert reason.text
    assert (event_of(reason) is E.FAULT) == (reason in FAULTS)


EVENTS = st.lists(st.tuples(st.sampled_from(Event), st.sampled_from(Reason)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_in_any_order_of_events_only_an_operator_clears_a_latch(events):
    tried, now = Machine(), 0
    for event, reason in events:
        before, latched = tried.state, tried.latched
        now += 10**9
        try:
            after = tried.fire(event, now, reason)
        except Refused:
            assert (tried.state, tried.latched) == (before, latched)
            continue
        assert (before, event, after) in PERMITTED
        if latched is not None:  # it stays, or a later fault or emergency stop replaced it
            assert tried.latched is not None
            assert tried.latched is latched or event in (E.FAULT, E.ESTOP)
            assert after not in (S.RUNNING, S.TAKEOVER)
        if after in (S.FAULT, S.ESTOP) and before in ARMED:
            assert tried.latched is reason

"""The control process: `python -m real_robot.control.control <session folder>`.

The process imports neither torch nor camera libraries. It arms the robot once inference, writer and
watchdog are running. When the process ends, the robot holds its position.
"""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.control.clock import Clock, MonotonicClock, no_garbage_collection, request_real_time
from real_robot.control.kinematics import forward
from real_robot.control.loop import Loop
from real_robot.control.playback import CHUNK_SIZE, Playback
from real_robot.control.rings import Ring, SharedValues
from real_robot.control.schedule import Schedule, Timing
from real_robot.control.session import (
    MESSAGE,
    NO_PLAN,
    TICKS_S,
    Session,
    SharedInputs,
    explain_missing_plan,
    load_session,
    pin,
    post_message,
    report_errors,
)
from real_robot.control.unconfirmed import Unconfirmed
from real_robot.robot import Code, Robot
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import Rules, envelope, limit_problems, limits_from, tightest
from real_robot.safety.states import MOVING, Reason, Refused, State

ARM_S = 1.0  # maximum wait for a good reading before arming
# At the end of a run, the robot has `Envelope.longest_stop_s` + END_MARGIN_S to come to rest. The
# margin is for missed ticks.
END_MARGIN_S = 4.0


def guard_of(session: Session, robot: Robot) -> Guard:
    """Return a guard for the robot, with the user's limits applied. Raises UserError."""
    spec = robot.spec
    try:
        user_limits = limits_from(session.limits, spec.joints, spec.limits)
    except ValueError as error:
        raise UserError(f"limits: {error}") from None
    limits = tightest(spec.limits, user_limits)
    if problems := limit_problems(spec.joints, limits, spec.units, spec.unusual):
        raise UserError(f"{spec.name}: {problems[0]}")
    rules = build(Rules, session.rules, "rules.")
    return Guard(robot, envelope(spec, limits, session.rate_hz, rules, forward(spec)))


def run(session: Session) -> None:
    """Run the control process until the run ends. Raises UserError if arming fails."""
    shared = SharedValues(session.path / "shared_values")
    robot = session.make_robot()
    guard, clock = guard_of(session, robot), MonotonicClock()
    spec = guard.spec
    ticks = Ring.create(
        session.path / "ticks", row_type(spec), max(16, round(TICKS_S * session.rate_hz))
    )
    messages = Ring.create(session.path / "messages", MESSAGE, 16)
    unconfirmed = Unconfirmed(session.unconfirmed_file(), guard)
    lock = session.claim()
    guard.connect(clock.now_ns())
    shared["control_beat"] = 1  # tells the other processes that the rings exist
    try:
        chunks = _wait_for_processes(session, shared)
        chunk_size = CHUNK_SIZE if session.plan is not None else session.chunk_size
        age_s = guard.envelope.rules.plan_age_s
        latency_s = session.command_latency_s
        timing = Timing(session.policy_rate_hz, chunk_size, session.offset, latency_s, age_s)
        schedule = Schedule(timing, len(spec.joints))
        inputs = SharedInputs(session, shared, chunks, Ring.open(session.path / "requests"))
        if session.plan is not None:
            inputs.plan = _playback(session, guard)
        loop = Loop(guard, clock, schedule, inputs, ticks)
        loop.explain_missing_plan = lambda now_ns: explain_missing_plan(session, shared, now_ns)
        shared["owner_pid"], shared["period_ns"] = os.getpid(), loop.period_ns
        pin(last_core=True)
        granted = request_real_time()
        (session.path / "granted").write_text(granted.text)
        with no_garbage_collection():
            if session.armed:
                confirmation = _arm(guard, clock, shared)
                if confirmation and not session.terminal:
                    raise UserError(f"{confirmation}. Run it at a terminal to confirm")
                if confirmation:
                    post_message(messages, confirmation)
                else:
                    shared["control_ns"], shared["armed"] = clock.now_ns(), 1
            else:
                # `robot record` has asked the operator to hold the arm
                guard.limp(clock.now_ns())
            loop.begin()
            _loop(loop, session, shared, messages, unconfirmed)
        # After an exception this line is not reached: `armed` stays 1 and the watchdog holds.
        shared["armed"] = 0
    finally:
        guard.close(clock.now_ns())
        unconfirmed.close()
        lock.close()


def _playback(session: Session, guard: Guard) -> Playback:
    assert session.plan is not None
    goals = np.load(session.plan, allow_pickle=False)
    velocity = guard.envelope.velocity
    return Playback(goals, session.policy_rate_hz, velocity, lambda: guard.motion.q)


def _wait_for_processes(session: Session, shared: SharedValues) -> Ring | None:
    clock = MonotonicClock()
    needed = ["watchdog_beat", "writer_beat" if session.recording else "", "inference_beat"]
    if session.bundle is None:
        needed.pop()
    while any(name and shared[name] == 0 for name in needed):
        if session.ended(shared):
            raise SystemExit(0)
        _refuse_pressed(shared)
        clock.sleep_until(clock.now_ns() + 5_000_000)
    return Ring.open(session.path / "chunks") if session.bundle is not None else None


def _refuse_pressed(shared: SharedValues) -> None:
    if shared.pressed:
        raise UserError(
            "the emergency stop was pressed before the robot was armed: start the run again"
        )


def _arm(guard: Guard, clock: Clock, shared: SharedValues) -> str:
    """Arm the robot. Raises UserError if it cannot be armed.

    If the operator must confirm a joint first, return the request to the operator and do not arm.
    """
    end = clock.now_ns() + int(ARM_S * 1e9)
    while (reading := guard.read()).code != Code.OK and clock.now_ns() < end:
        clock.sleep_until(clock.now_ns() + 5_000_000)
    now_ns = clock.now_ns()
    _refuse_pressed(shared)
    if reading.code == Code.OK and (confirmation := guard.confirmation_request(reading.q.tolist())):
        return confirmation
    try:
        guard.run_check(now_ns)
        guard.arm(now_ns)
    except Refused as error:
        raise UserError(str(error)) from None
    return ""


def _loop(
    loop: Loop, session: Session, shared: SharedValues, messages: Ring, unconfirmed: Unconfirmed
) -> None:
    """Run ticks until the run ends and the robot is at rest.

    If the robot does not come to rest, return once more than `longest_stop_s` + END_MARGIN_S has
    passed since the run ended.
    """
    guard, ended_ns, had_run_out = loop.guard, 0, False
    end_ns = round((guard.envelope.longest_stop_s + END_MARGIN_S) * 1e9)
    shared["end_ns"] = end_ns
    while True:
        loop.step()
        unconfirmed.save()
        now = loop.clock.now_ns()
        shared["control_beat"] = loop.tick_number + 2
        shared["control_ns"] = now
        shared["armed"] = guard.state not in (State.DISCONNECTED, State.CONNECTED, State.CHECKED)
        shared["starting"] = loop.starting
        machine = guard.machine
        has_run_out = Reason.PLAN_EXHAUSTED in (machine.pending, machine.latched)
        if has_run_out and not had_run_out:
            (session.path / NO_PLAN).write_text(loop.explain_missing_plan(now))
        had_run_out = has_run_out
        if loop.refused is not None:
            post_message(messages, loop.refused)
            loop.refused = None
        if not session.ended(shared):
            continue
        ended_ns = ended_ns or now
        with contextlib.suppress(Refused):  # refused if the robot is not moving
            loop.finish(now)
        is_stopping = guard.state in MOVING or guard.state is State.SOFT_STOP
        if now - ended_ns > end_ns or (guard.at_rest and not is_stopping):
            return


def main(arguments: list[str]) -> None:
    session = load_session(arguments)
    with report_errors(session, "control"):
        run(session)
    assert "torch" not in sys.modules, "the control process has loaded torch"


if __name__ == "__main__":
    main(sys.argv)

"""The control process: `python -m real_robot.control.control <session folder>`.

It imports neither torch nor anything that opens a camera. It arms the robot once inference, writer
and watchdog are there, and holds it when it ends.
"""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from real_robot.control.clock import Clock, MonotonicClock, ask_for_real_time, without_collector
from real_robot.control.kinematics import forward
from real_robot.control.loop import Loop
from real_robot.control.playback import WINDOW, Playback
from real_robot.control.rings import Ring, Words
from real_robot.control.schedule import Schedule, Timing
from real_robot.control.session import (
    NO_PLAN,
    SAID,
    TICKS_S,
    Session,
    SharedInputs,
    main_folder,
    pin,
    say,
    told_as_error,
    why_no_plan,
)
from real_robot.control.unconfirmed import Unconfirmed
from real_robot.robot import Code, Robot
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import Rules, envelope, faults, limits_from, tightest
from real_robot.safety.states import MOVING, Reason, Refused, State

ARM_S = 1.0  # in which a robot must give one good reading
END_MARGIN_S = 4.0  # that a stop may take longer, when the run is to end: ticks are missed


def guard_of(session: Session, robot: Robot) -> Guard:
    """The robot behind its check, with the tightest limits. Raises UserError."""
    spec = robot.spec
    try:
        own = limits_from(session.limits, spec.joints, spec.limits)
    except ValueError as error:
        raise UserError(f"limits: {error}") from None
    limits = tightest(spec.limits, own)
    if found := faults(spec.joints, limits, spec.units, spec.unusual):
        raise UserError(f"{spec.name}: {found[0]}")
    rules = build(Rules, session.rules, "rules.")
    return Guard(robot, envelope(spec, limits, session.rate_hz, rules, forward(spec)))


def run(session: Session) -> None:
    """Until everyone is told to end. Raises UserError where the robot cannot be armed."""
    words = Words(session.path / "words")
    robot = session.make_robot()
    guard, clock = guard_of(session, robot), MonotonicClock()
    spec = guard.spec
    ticks = Ring.create(
        session.path / "ticks", row_type(spec), max(16, round(TICKS_S * session.rate_hz))
    )
    said = Ring.create(session.path / "said", SAID, 16)
    unconfirmed = Unconfirmed(session.unconfirmed_file(), guard)
    lock = session.claim()
    guard.connect(clock.now_ns())
    words["control_beat"] = 1  # the rings are there: who reads them may begin
    try:
        chunks = _wait_for_the_others(session, words)
        chunk_size = WINDOW if session.plan is not None else session.chunk_size
        age_s = guard.envelope.rules.plan_age_s
        latency_s = session.command_latency_s
        timing = Timing(session.policy_rate_hz, chunk_size, session.offset, latency_s, age_s)
        schedule = Schedule(timing, len(spec.joints))
        inputs = SharedInputs(session, words, chunks, Ring.open(session.path / "wishes"))
        if session.plan is not None:
            inputs.plan = _playback(session, guard)
        loop = Loop(guard, clock, schedule, inputs, ticks)
        loop.why_no_plan = lambda now_ns: why_no_plan(session, words, now_ns)
        words["owner_pid"], words["period_ns"] = os.getpid(), loop.period_ns
        pin(last_core=True)
        granted = ask_for_real_time()
        (session.path / "granted").write_text(granted.text)
        with without_collector():
            if session.armed:
                doubts = _arm(guard, clock, words)
                if doubts and not session.terminal:
                    raise UserError(f"{doubts}; for that, run it at a terminal")
                if doubts:
                    say(said, doubts)
                else:
                    words["control_ns"], words["armed"] = clock.now_ns(), 1
            else:
                guard.limp(clock.now_ns())  # whoever records has been asked to hold it
            loop.begin()
            _loop(loop, session, words, said, unconfirmed)
        words["armed"] = 0  # else it stays: the watchdog holds what this process leaves in motion
    finally:
        guard.close(clock.now_ns())
        unconfirmed.close()
        lock.close()


def _playback(session: Session, guard: Guard) -> Playback:
    assert session.plan is not None
    goals = np.load(session.plan, allow_pickle=False)
    velocity = guard.envelope.velocity
    return Playback(goals, session.policy_rate_hz, velocity, lambda: guard.motion.q)


def _wait_for_the_others(session: Session, words: Words) -> Ring | None:
    clock = MonotonicClock()
    needed = ["watchdog_beat", "writer_beat" if session.recording else "", "inference_beat"]
    if session.bundle is None:
        needed.pop()
    while any(name and words[name] == 0 for name in needed):
        if session.ended(words):
            raise SystemExit(0)
        _refuse_pressed(words)
        clock.sleep_until(clock.now_ns() + 5_000_000)
    return Ring.open(session.path / "chunks") if session.bundle is not None else None


def _refuse_pressed(words: Words) -> None:
    if words.pressed:
        raise UserError("the emergency stop was pressed before the robot was armed: begin again")


def _arm(guard: Guard, clock: Clock, words: Words) -> str:
    """Arm the robot, or return what the operator has to confirm first. Raises UserError."""
    end = clock.now_ns() + int(ARM_S * 1e9)
    while (reading := guard.read()).code != Code.OK and clock.now_ns() < end:
        clock.sleep_until(clock.now_ns() + 5_000_000)
    now_ns = clock.now_ns()
    _refuse_pressed(words)
    if reading.code == Code.OK and (doubts := guard.doubts(reading.q.tolist())):
        return doubts
    try:
        guard.passed(now_ns)
        guard.arm(now_ns)
    except Refused as error:
        raise UserError(str(error)) from None
    return ""


def _loop(loop: Loop, session: Session, words: Words, said: Ring, unconfirmed: Unconfirmed) -> None:
    """Until the run is to end and the robot stands, or does not in the time of its longest stop."""
    guard, ended_ns, had_run_out = loop.guard, 0, False
    end_ns = round((guard.envelope.longest_stop_s + END_MARGIN_S) * 1e9)
    words["end_ns"] = end_ns
    while True:
        loop.step()
        unconfirmed.keep()
        now = loop.clock.now_ns()
        words["control_beat"] = loop.tick_number + 2
        words["control_ns"] = now
        words["armed"] = guard.state not in (State.DISCONNECTED, State.CONNECTED, State.CHECKED)
        words["starting"] = loop.starting
        machine = guard.machine
        has_run_out = Reason.PLAN_EXHAUSTED in (machine.pending, machine.latched)
        if has_run_out and not had_run_out:
            (session.path / NO_PLAN).write_text(loop.why_no_plan(now))
        had_run_out = has_run_out
        if loop.refused is not None:
            say(said, loop.refused)
            loop.refused = None
        if not session.ended(words):
            continue
        ended_ns = ended_ns or now
        with contextlib.suppress(Refused):  # nobody moves it
            loop.finish(now)
        stops = guard.state in MOVING or guard.state is State.SOFT_STOP
        if now - ended_ns > end_ns or (guard.rests and not stops):
            return


def main(arguments: list[str]) -> None:
    session = main_folder(arguments)
    with told_as_error(session, "control"):
        run(session)
    assert "torch" not in sys.modules, "the control process has loaded torch"


if __name__ == "__main__":
    main(sys.argv)

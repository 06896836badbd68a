"""Control process in one process: shared memory, arming and the end of a run."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from robots_in_memory import Bench, Clock, MemoryRobot, spec, workspace

from offline_rl.utils.errors import UserError
from real_robot.console import Console
from real_robot.control import control
from real_robot.control import session as session_module
from real_robot.control.clock import Granted
from real_robot.control.control import guard_of
from real_robot.control.loop import Loop, Request
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import MESSAGE, Session, SharedInputs, put_request, request_type
from real_robot.control.unconfirmed import Unconfirmed
from real_robot.safety.guard import Guard
from real_robot.safety.limits import envelope
from real_robot.safety.states import Reason, State


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    """Return a session with this process's parent as console, on an arm that nothing else uses."""
    monkeypatch.setattr(session_module.os, "getppid", lambda: 4711)
    own = {"port": str(tmp_path / "port"), "calibration": str(tmp_path / "calibration.json")}
    return Session(str(tmp_path), robot="desk", rate_hz=200.0, console_pid=4711, changes=own)


@pytest.fixture
def shared(session) -> SharedValues:
    return SharedValues(session.path / "shared_values", create=True)


# shared memory


@pytest.fixture
def loop_inputs(session, shared) -> tuple[SharedInputs, Ring]:
    requests = Ring.create(session.path / "requests", request_type(2), 8)
    return SharedInputs(session, shared, None, requests), requests


def test_the_emergency_stop_works_with_and_without_another_request(loop_inputs, shared):
    inputs, requests = loop_inputs
    assert inputs.request() == Request()
    shared["estop"] = 1
    assert inputs.request() == Request(estop=True)
    put_request(requests, Request(limp=True))
    assert inputs.request() == Request(estop=True, limp=True)
    assert inputs.request() == Request(estop=True)
    shared["estop_released"] = 1
    assert inputs.request() == Request()  # no older requests are waiting


def test_no_press_of_the_emergency_stop_is_lost_however_fast_re_arm_is_typed(
    loop_inputs, shared, monkeypatch
):
    """A late loop must process a press that the operator has already cleared."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    inputs, requests = loop_inputs
    console = Console(shared, requests)
    console.feed(" re-arm\n")
    assert inputs.request() == Request(estop=True, typed="re-arm")
    assert inputs.request() == Request(estop=True)
    console.feed("re-arm\n")
    assert inputs.request() == Request(typed="re-arm")
    console.feed(" ")
    inputs.request()
    console.feed("  re-arm\n")  # one of three presses was processed
    assert inputs.request().estop
    console.feed("re-arm\n")
    assert not inputs.request().estop


def test_a_request_older_than_half_a_second_is_late_and_the_newest_target_counts(
    loop_inputs, monkeypatch
):
    """If it was typed while the policy was loaded, it would move the robot unexpectedly."""
    inputs, requests = loop_inputs
    for place in (0.1, 0.2, 0.3):
        put_request(requests, Request(target=[place, 0.0]))
    put_request(requests, Request(start=True))
    put_request(requests, Request(target=[0.4, 0.0]))
    assert inputs.request() == Request(start=True)
    assert inputs.request() == Request(target=[0.4, 0.0])
    assert inputs.request() == Request()
    put_request(requests, Request(start=True))
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 510_000_000)
    assert inputs.request() == Request(start=True, late=True)


def test_a_recorder_without_heartbeat_is_lost_if_it_is_needed(
    session, shared, tmp_path, monkeypatch
):
    now = itertools.count(10**9, 600_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
    requests = Ring.create(session.path / "requests", request_type(2), 8)
    for needed, found in ((True, [False, False, True, False]), (False, [False] * 4)):
        changed: dict[str, Any] = {"recording": "x.rec", "recorder_needed": needed}
        mine = Session(str(tmp_path), robot="desk", rate_hz=200.0, **changed)
        inputs, seen = SharedInputs(mine, shared, None, requests), []
        for beat in (1, 1, 1, 2):
            shared["writer_beat"] = beat
            seen.append(inputs.recorder_lost())
        assert seen == found


def test_a_console_is_lost_half_a_second_after_its_last_heartbeat(loop_inputs, shared, monkeypatch):
    inputs, _ = loop_inputs
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    found = []
    for ms, beat in ((0, 1), (490, 1), (510, 1), (600, 2), (1090, 2), (1110, 2)):
        now[0], shared["console_beat"] = 10**9 + ms * 10**6, beat
        found.append(inputs.console_lost())
    assert found == [False, False, True, False, False, True]


def test_a_child_ends_when_it_is_told_to_and_when_its_console_is_gone(session, shared, monkeypatch):
    assert not session.ended(shared)
    shared["stop"] = 1
    assert session.ended(shared)
    shared["stop"] = 0
    monkeypatch.setattr(session_module.os, "getppid", lambda: 1)
    assert session.ended(shared)
    assert shared["stop"] == 1  # the other processes are told


# before the loop


def test_the_robot_is_kept_within_the_users_limits_and_its_workspace(tmp_path):
    """The tool is at 0.5 m with stretched links; the box ends at 0.45 m."""
    own = {"velocity": {"elbow": 0.5}, "position_high": {"shoulder": 1.0}}
    changes: dict[str, Any] = {"limits": own, "rules": {"trip_after_s": 0.25}}
    robot = MemoryRobot(Clock(), spec(workspace=workspace(tmp_path)))
    found = guard_of(Session("", robot="desk", rate_hz=100.0, **changes), robot).envelope
    assert list(found.velocity) == [2.0, 0.5]
    assert list(found.high) == [1.0, 2.0]
    assert (found.rules.trip_after_s, found.period_s) == (0.25, 0.01)
    assert not found.inside([0.0, 0.0])
    assert found.inside([0.0, 1.4])


def test_a_robot_without_a_limit_is_refused():
    robot = MemoryRobot(Clock(), spec(jerk=np.nan))
    with pytest.raises(UserError, match="jerk"):
        guard_of(Session("", robot="desk", rate_hz=100.0), robot)


def test_nothing_is_armed_once_the_emergency_stop_was_pressed(shared):
    clock = Clock()
    robot = MemoryRobot(clock, spec())
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0))
    guard.connect(clock.now)
    shared["estop"] = 1
    with pytest.raises(UserError, match="pressed before the robot was armed"):
        control._arm(guard, clock, shared)
    assert "arm" not in robot.calls
    shared["estop_released"] = 1
    control._arm(guard, clock, shared)
    assert guard.state is State.HOLD


def test_waiting_control_obeys_the_emergency_stop_and_the_end_of_the_console(session, shared):
    shared["estop"] = 1
    with pytest.raises(UserError, match="pressed before"):
        control._wait_for_processes(session, shared)
    shared["stop"] = 1
    with pytest.raises(SystemExit):
        control._wait_for_processes(session, shared)


# the loop and its end


class Ended(Bench):
    """Bench with the loop of the control process. `at`: tick -> event."""

    def __init__(
        self, session: Session, shared: SharedValues, at: dict[int, Any], **changes
    ) -> None:
        super().__init__(session.path, **changes)
        self.session, self.shared, self.at, self.ticks = session, shared, at, 0
        self.said = Ring.create(session.path / "messages", MESSAGE, 16)
        self.armed = list[int]()
        step = self.loop.step

        def counted() -> None:
            self.ticks += 1
            assert self.ticks < 2000, f"it does not end: {self.guard.machine}"
            self.at.get(self.ticks, lambda bench: None)(self)
            step()
            self.armed.append(self.shared["armed"])

        self.loop.step = counted

    def go(self) -> np.ndarray:
        """Run to the end and return all rows."""
        control._loop(
            self.loop, self.session, self.shared, self.said, Unconfirmed(None, self.guard)
        )
        return np.array(list(self._rows()))

    def _rows(self) -> Iterator[np.ndarray]:
        while self.reader.following():
            yield self.reader.record.copy()


def quit_(bench: Ended) -> None:
    bench.shared["stop"] = 1


def console_dies(bench: Ended) -> None:
    session_module.os.getppid = lambda: 1  # type: ignore[assignment]  # the fixture undoes it


def stop_key(bench: Ended) -> None:
    bench.inputs.standing = Request(estop=True)


def inference_dies(bench: Ended) -> None:
    bench.inputs.dead, bench.inputs.waiting = True, []


def plan_comes(bench: Ended) -> None:
    bench.inputs.dead, bench.inputs.latency_ns, bench.inputs.next_ns = False, 0, 0


@pytest.mark.parametrize("end", [quit_, console_dies])
def test_the_end_of_a_run_brings_the_robot_to_rest(session, shared, end) -> None:
    bench = Ended(session, shared, {150: end})
    rows = bench.go()
    assert shared["stop"] == 1
    assert State(int(rows["state"][140])) is State.RUNNING
    assert State(int(rows["state"][-1])) is State.HOLD
    assert rows["latched"][-1] == -1
    assert bench.guard.motion.is_at_rest()
    bench.assert_within_limits()


def test_an_axis_that_needs_six_seconds_to_stop_gets_them(session, shared) -> None:
    """The axis stops from 0.3 rad/s at 0.05 rad/s². The console waits as long."""

    def forward(t: float) -> np.ndarray:
        times = t + 0.05 * np.arange(8)[:, None]
        return np.repeat(-1.9 + 0.045 / 2 * times**2, 2, 1)

    slow = {"velocity": 0.4, "acceleration": 0.05, "stop_acceleration": 0.05, "jerk": 5.0}
    start = np.full(2, -1.9)
    bench = Ended(session, shared, {}, act=forward, q0=start, **slow)
    bench.run(1380)
    speed = bench.guard.motion.v[0]
    assert speed > 0.29
    bench.ticks, bench.at = 0, {1: quit_}
    rows = bench.go()
    assert len(rows) * bench.guard.envelope.period_s > speed / 0.05
    assert bench.guard.motion.is_at_rest()
    assert State(int(rows["state"][-1])) is State.HOLD
    assert shared["end_ns"] * 1e-9 > 0.4 / 0.05
    bench.assert_within_limits()


def test_the_emergency_stop_completes_before_a_run_ends(session, shared) -> None:
    bench = Ended(session, shared, {150: stop_key, 151: quit_})
    rows = bench.go()
    assert State(int(rows["state"][-1])) is State.ESTOP
    assert Reason(int(rows["latched"][-1])) is Reason.ESTOP_PRESSED
    assert bench.guard.motion.is_at_rest()
    bench.assert_within_limits()


def test_a_late_plan_does_not_resume_a_run_that_ends(session, shared) -> None:
    stopping = Bench(session.path)
    stopping.run(100)
    stopping.inputs.dead, stopping.inputs.waiting = True, []
    took = 100 + stopping.until(lambda: stopping.guard.state is State.SOFT_STOP)
    bench = Ended(session, shared, {101: inference_dies, took + 1: quit_, took + 2: plan_comes})
    rows = bench.go()
    assert State(int(rows["state"][took - 1])) is State.SOFT_STOP
    assert State.RUNNING not in rows["state"][took:]
    assert State(int(rows["state"][-1])) is State.HOLD
    assert len(rows) < took + 100


def test_the_watchdog_knows_every_armed_state(session, shared) -> None:
    bench = Ended(session, shared, {400: quit_, 100: stop_key})
    bench.inputs.requests = {20: Request(start=True)}
    bench.inputs.requests[300] = Request(typed="re-arm")
    bench.at[250] = lambda bench: setattr(bench.inputs, "standing", Request())
    rows = bench.go()
    states = [State(int(state)) for state in rows["state"]]
    assert {State.HOLD, State.RUNNING, State.ESTOP, State.CONNECTED} == set(states)
    told = [*bench.armed[1:], shared["armed"]]  # after each tick
    assert told == [int(state is not State.CONNECTED) for state in states]
    assert shared["control_beat"] == bench.loop.tick_number + 2
    assert shared["control_ns"] == bench.clock.now


def test_every_refusal_is_reported(session, shared) -> None:
    bench = Ended(session, shared, {200: quit_})
    bench.inputs.requests |= {50: Request(arm=True), 60: Request(arm=True), 70: Request(limp=True)}
    told = Reader(Ring.open(bench.said.path), from_start=True)
    bench.go()
    found = []
    while told.following():
        found.append(told.record["text"].item().decode())
    arm, limp = "arm is refused while RUNNING", "limp is refused while RUNNING"
    assert found == [arm, arm, limp]


# the complete process


@pytest.fixture
def robot(session, shared, monkeypatch) -> MemoryRobot:
    """Return the robot of a session in which a control process can run alone."""
    clock = Clock()
    robot_in_memory = MemoryRobot(clock, spec())
    monkeypatch.setattr(control, "MonotonicClock", lambda: clock)
    monkeypatch.setattr(control, "pin", lambda last_core: None)
    monkeypatch.setattr(control, "request_real_time", lambda: Granted(False, False))
    monkeypatch.setattr(Session, "make_robot", lambda self: robot_in_memory)
    Ring.create(session.path / "requests", request_type(2), 8)
    shared["watchdog_beat"] = 1
    return robot_in_memory


@pytest.mark.parametrize("armed", [True, False])
def test_a_run_leaves_the_robot_holding_and_recording_by_hand_releases_it_first(
    session, shared, robot, armed: bool
) -> None:
    """The robot may still hold since an earlier run."""
    reads, read = itertools.count(), robot.read

    def counted() -> Any:
        shared["stop"] = shared["stop"] or next(reads) == 20
        return read()

    robot.torque, robot.read = True, counted
    control.run(replace(session, armed=armed))
    assert robot.torque == armed
    assert robot.calls == ["connect", "arm" if armed else "disarm", "close"]
    assert bool(robot.arrived) == armed
    assert shared["armed"] == 0


def test_a_control_process_that_fails_leaves_the_robot_to_the_watchdog(
    session, shared, robot, monkeypatch
) -> None:
    """Control fails while armed: the watchdog must hold the robot."""

    def failing(loop: Loop) -> None:
        raise RuntimeError("the loop is wrong")

    monkeypatch.setattr(Loop, "step", failing)
    with pytest.raises(RuntimeError, match="loop is wrong"):
        control.run(session)
    assert robot.calls == ["connect", "arm", "close"]
    assert shared["armed"] == 1


def test_an_unconfirmed_joint_is_not_armed_by_the_next_run(session, shared, tmp_path):
    path = tmp_path / "two links.unconfirmed.json"
    bench = Bench(tmp_path)
    unconfirmed = Unconfirmed(path, bench.guard)
    unconfirmed.save()
    assert not path.exists()
    bench.run(50)
    measured = bench.guard.motion.measured[1]
    bench.robot.offset[1] = 0.3
    bench.run(1)
    unconfirmed.save()
    unconfirmed.close()
    assert json.loads(path.read_text()) == {"elbow": measured}

    clock = Clock()
    robot = MemoryRobot(clock, spec())
    guard = Guard(robot, envelope(robot.spec, robot.spec.limits, 200.0))
    again = Unconfirmed(path, guard)
    guard.connect(clock.now)
    assert "joint elbow was last trusted at" in control._arm(guard, clock, shared)
    assert guard.state is State.CONNECTED
    assert "arm" not in robot.calls
    guard.confirm("elbow")
    again.close()
    assert not path.exists()
    assert control._arm(guard, clock, shared) == ""
    assert guard.state is State.HOLD


@pytest.mark.parametrize("text", ['{"knee": 0.5}', '{"elbow": NaN}', '{"elbow": true}', "[]"])
def test_a_file_of_unconfirmed_joints_of_another_robot_is_refused(tmp_path, text: str):
    path = tmp_path / "two links.unconfirmed.json"
    path.write_text(text)
    with pytest.raises(UserError, match="expected joints of two links, each with a position"):
        Unconfirmed(path, Bench(tmp_path).guard)


def test_unconfirmed_joints_are_saved_again_at_the_end_after_a_failure(tmp_path):
    guard, place = Bench(tmp_path).guard, tmp_path / "settings"
    place.write_text("no folder")
    unconfirmed = Unconfirmed(place / "two links.unconfirmed.json", guard)
    guard.unconfirmed["elbow"] = 0.5
    unconfirmed.save()
    with pytest.raises(UserError, match="next run will not ask to confirm elbow"):
        unconfirmed.close()
    place.unlink()
    unconfirmed.close()
    assert json.loads((place / "two links.unconfirmed.json").read_text()) == {"elbow": 0.5}


@pytest.mark.parametrize("adapter", ["simulated", "dynamixel"])
def test_one_arm_has_one_run(session, tmp_path, adapter: str):
    def of(**changes: str) -> Session:
        return replace(session, adapter=adapter, changes=changes)

    place = {"simulated": "folder", "dynamixel": "port"}[adapter]
    first, link = tmp_path / "first", tmp_path / "link"
    first.mkdir()
    link.symlink_to(first)
    lock = of(**{place: str(first)}).claim()
    with pytest.raises(UserError, match=r"another run commands desk .*first\): end that run first"):
        of(**{place: str(first)}).claim()
    of(**{place: str(tmp_path / "second")}).claim().close()
    with pytest.raises(UserError, match="another run commands desk"):  # by another name
        of(**{place: str(link)}).claim()
    lock.close()
    of(**{place: str(first)}).claim().close()


def test_a_run_waits_for_the_watchdog_of_an_earlier_one(session, tmp_path, monkeypatch):
    """The watchdog may still command the arm to hold after control was killed."""
    arm = replace(session, adapter="simulated", changes={"folder": str(tmp_path / "arm")})
    watchdog = arm.claim_watch()
    monkeypatch.setattr("real_robot.control.session.WATCHDOG_END_S", 0.02)
    with pytest.raises(UserError, match=r"watchdog of an earlier run still watches desk .*arm\)"):
        arm.claim()
    threading.Timer(0.05, watchdog.close).start()
    monkeypatch.setattr("real_robot.control.session.WATCHDOG_END_S", 5.0)
    arm.claim().close()


def test_the_reason_is_saved_when_a_plan_runs_out(session, shared, tmp_path):
    bench = Bench(tmp_path)
    bench.run(50)
    bench.inputs.dead, bench.inputs.waiting = True, []
    bench.loop.explain_missing_plan = lambda now_ns: "target.x is not measured"
    request, calls = bench.inputs.request, itertools.count()

    def wish_or_end() -> Request:
        shared["stop"] = next(calls) > 200
        return request()

    bench.inputs.request = wish_or_end
    said = Ring.create(tmp_path / "messages", MESSAGE, 4)
    unconfirmed = Unconfirmed(tmp_path / "none.json", bench.guard)
    control._loop(bench.loop, session, shared, said, unconfirmed)
    assert bench.guard.machine.latched is Reason.PLAN_EXHAUSTED
    assert (session.path / "no_plan").read_text() == "target.x is not measured"

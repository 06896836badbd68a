"""Imports, terminal, watchdog; and, slow, all processes on a simulated robot."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from desk_bundle import write_desk_bundle
from robots_in_memory import Bench, spec

from offline_rl.utils.errors import UserError
from real_robot import read, run, running
from real_robot.console import Console, keys, show_line
from real_robot.control import session as session_module
from real_robot.control import watchdog
from real_robot.control.clock import MonotonicClock
from real_robot.control.loop import Request
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import Processes, Session, put_request, request_of, request_type
from real_robot.control.watchdog import Watchdog, watch
from real_robot.safety.states import Reason, State
from real_robot.verbs import robot

ROOT = Path(__file__).resolve().parents[2]


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(found.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import real_robot",
        "import real_robot.verbs",
        "import real_robot.control.control, real_robot.control.kinematics",
        "import real_robot.control.watchdog",
        "import real_robot.recording.writer",
    ],
)
def test_the_control_process_loads_neither_torch_nor_learning(statement: str):
    loaded = loaded_by(statement)
    assert not {"torch", "cv2"} & loaded
    ours = {name for name in loaded if name.split(".")[0] == "offline_rl"}
    permitted = {"offline_rl", "offline_rl.version", "offline_rl.utils"}
    assert not [n for n in ours - permitted if not n.startswith("offline_rl.utils.")]


def test_sleeping_until_a_deadline_is_never_early():
    clock = MonotonicClock()
    for _ in range(20):
        deadline = clock.now_ns() + 1_000_000
        clock.sleep_until(deadline)
        assert clock.now_ns() >= deadline
    begun = clock.now_ns()
    clock.sleep_until(begun - 10**9)  # the deadline has passed


# the terminal


@pytest.fixture
def console(tmp_path) -> Console:
    shared = SharedValues(tmp_path / "shared_values", create=True)
    return Console(shared, Ring.create(tmp_path / "requests", request_type(2), 8))


def requests(console: Console) -> list[Request]:
    reader, found = Reader(console._requests, from_start=True), []
    while reader.following():
        found.append(request_of(reader.record, time.monotonic_ns()))
    return found


@pytest.mark.parametrize("before", ["", "star", "re-ar", "anything at al"])
def test_the_space_bar_stops_whatever_is_being_typed(console: Console, before: str):
    console.feed(before + " ")
    assert console._shared.pressed
    assert console.typed == ""
    assert requests(console) == []


def test_commands_become_requests_and_unknown_ones_are_reported(console: Console):
    console.feed("start\nstrat\nfinisj\x7fh\n")
    assert requests(console) == [Request(start=True), Request(finish=True)]
    console.feed("strat\n")
    assert "unknown command 'strat'" in console.message
    console.feed("confirm=waist\n")
    assert requests(console)[-1] == Request(confirm="waist")
    assert not console._shared.pressed


def test_only_the_complete_word_re_arms(console: Console, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    console.feed(" ")
    console.feed("re-ar\n")
    console.feed("\n\n")
    assert console._shared.pressed
    assert requests(console) == []
    console._shared["estop_seen"] = 1
    console.feed("re-arm\n")
    assert not console._shared.pressed
    assert requests(console) == [Request(typed="re-arm")]


def test_the_line_says_state_rate_and_why_it_stopped(tmp_path, console: Console):
    bench = Bench(tmp_path)
    bench.run(100)
    assert "RUNNING" in console.line(bench.ring.record, 199.7)
    assert "199.7 Hz" in console.line(bench.ring.record, 199.7)
    assert "first plan" not in console.line(bench.ring.record, 199.7)
    console._shared["starting"] = 1
    assert "starts with the first plan" in console.line(bench.ring.record, 199.7)
    bench.inputs.dead, bench.inputs.waiting = True, []
    bench.run(300)
    line = console.line(bench.ring.record, 200.0)
    assert Reason.PLAN_EXHAUSTED.text in line
    assert "type re-arm" in line
    (tmp_path / "no_plan").write_text("inference took 350 ms and must take at most 200 ms")
    console._no_plan = tmp_path / "no_plan"
    text = f"{Reason.PLAN_EXHAUSTED.text} (inference took 350 ms and must take at most 200 ms)"
    assert text in console.line(bench.ring.record, 200.0)
    assert console.log_line(bench.ring.record) == f"HOLD | {text}"


def test_a_terminal_that_vanishes_ends_the_run(console: Console):
    master, slave = os.openpty()
    with open(slave) as stream, keys(stream) as handle:
        os.write(master, b"sta")
        console.wait(handle)
        assert console.typed == "sta"
        assert not console.quit
        os.close(master)
        console.wait(handle)
    assert console.quit


@pytest.mark.parametrize("key", [b" ", b"\x1b", b"\x03", b"\x1c", b"\x1a"])
def test_every_key_that_ends_programs_stops_the_robot(console: Console, key: bytes):
    """Ctrl-C, Ctrl-\\ and Ctrl-Z are keys, not signals. After Ctrl-S the space bar still works."""
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    with open(slave) as stream, keys(stream) as handle:
        os.write(master, b"sta\x13" + key)
        for _ in range(3):
            console.wait(handle)
        assert console._shared["estop"] == 1
        assert not console.quit
        assert not termios.tcgetattr(slave)[0] & termios.IXON
        tty_of_the_shell = os.dup(slave)
    assert termios.tcgetattr(tty_of_the_shell) == before
    os.close(tty_of_the_shell)
    os.close(master)


def test_the_space_bar_still_stops_while_a_run_ends(tmp_path, console: Console):
    """The robot decelerates until control ends. Until then `end` must read the keys."""
    master, slave = os.openpty()
    processes = Processes(Session(str(tmp_path), robot="desk", rate_hz=100))
    console._shared = processes.shared
    polls = iter(range(100))

    def poll() -> int | None:
        number = next(polls)
        if number == 2:
            os.write(master, b" ")
        return 0 if processes.shared.pressed else None

    processes.children["control"] = SimpleNamespace(poll=poll)
    with open(slave) as stream, keys(stream) as handle:
        processes.end(lambda: console.wait(handle), patience_s=60.0)
    os.close(master)
    assert processes.shared["stop"] == 1
    assert processes.shared.pressed
    assert processes.shared["console_beat"] > 1


def test_a_process_that_does_not_end_in_time_is_killed(tmp_path):
    processes = Processes(Session(str(tmp_path), robot="desk", rate_hz=100))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    processes.children["control"] = child
    processes.end(lambda: time.sleep(0), patience_s=0.0)
    assert child.returncode == -signal.SIGKILL


def test_control_gets_the_time_that_its_robot_needs_to_stop(tmp_path, monkeypatch):
    now, killed = [0.0], list[float]()
    monkeypatch.setattr(session_module.time, "monotonic", lambda: now[0])
    processes = Processes(Session(str(tmp_path), robot="desk", rate_hz=100))
    processes.shared["end_ns"] = 8_000_000_000
    processes.children["control"] = SimpleNamespace(
        poll=lambda: None, kill=lambda: killed.append(now[0]), wait=lambda: None
    )

    def listen() -> None:
        now[0] += 0.125

    processes.end(listen, patience_s=2.0)
    assert killed == [10.0]


def test_the_end_of_input_quits(console: Console):
    console.feed("sta\x04")
    assert console.quit
    assert requests(console) == []


def test_once_a_run_ends_only_the_space_bar_works(console: Console):
    console.feed("quit\nstart\narm\nlimp\nre-arm\n")
    assert requests(console) == []
    console.feed(" ")
    assert console._shared.pressed


@pytest.mark.parametrize(
    ("sent", "stops"),
    [(s, True) for s in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)]
    + [(s, False) for s in (signal.SIGHUP, signal.SIGTERM)],
)
def test_signals_stop_the_robot_or_quit(console: Console, sent: signal.Signals, stops: bool):
    before = signal.getsignal(sent)
    with console.signals():
        signal.raise_signal(sent)
        assert (console._shared["estop"], console.quit) == (stops, not stops)
    assert signal.getsignal(sent) == before


@pytest.mark.parametrize("how", ["full", "gone"])
def test_output_to_a_blocked_terminal_is_dropped(how: str):
    """Otherwise the thread that reads the space bar hangs."""
    master, slave = os.openpty()
    if how == "full":
        os.set_blocking(slave, False)
        with suppress(BlockingIOError):
            while True:
                os.write(slave, b"x" * 4096)
        os.set_blocking(slave, True)
    else:
        os.close(master)
    with open(slave, "w") as stream:
        shows = threading.Thread(target=show_line, args=("a line", stream), daemon=True)
        shows.start()
        shows.join(5.0)
        hangs = shows.is_alive()
        if how == "full":
            assert os.get_blocking(slave)  # the shell uses the same terminal
            os.close(master)
    assert not hangs


def test_a_request_passes_through_shared_memory_unchanged(tmp_path):
    ring = Ring.create(tmp_path / "w", request_type(2), 4)
    sent = Request(take=True, target=[0.5, -1.0], target_ns=12, typed=None)
    put_request(ring, sent)
    reader = Reader(ring, from_start=True)
    assert reader.following()
    assert request_of(reader.record, time.monotonic_ns()) == sent


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "unknown robot command"),
        (["rum", "robot=desk"], "did you mean run"),
        (["run"], "robot=… is missing"),
        (["run", "robot=desk"], "bundle=… is missing"),
        (["run", "robot=dsk", "bundle=b"], "did you mean desk"),
        (["record", "robot=desk"], "out=… is missing"),
        (["replay", "robot=desk"], "recording=… is missing"),
        (["check", "robot=desk", "limits=nowhere.yaml"], "nowhere.yaml is not readable"),
        (["run", "robot=desk", "bundel=x"], "'bundel'; did you mean bundle"),
        (["run", "robot=desk", "bundle=x", "prot=x"], "'prot'; did you mean port"),
    ],
)
def test_an_incomplete_command_names_the_missing_option(arguments, sentence: str):
    with pytest.raises(UserError, match=sentence):
        robot(arguments)


# the watchdog


class Held:
    """Robot that records each hold, and whether its owner was alive then."""

    spec = spec()

    def __init__(self, pid: int) -> None:
        self.pid, self.reasons, self.owner_lived = pid, list[str](), False
        self.deaf: list[list[str]] = []  # joints that miss each hold

    def hold(self, reason: str) -> list[str]:
        self.reasons.append(reason)
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.owner_lived = found is None
        return self.deaf.pop(0) if self.deaf else []


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_end_a_process(monkeypatch):
    monkeypatch.setattr(watchdog, "DEATH_MS", 60_000)
    monkeypatch.setattr(watchdog, "SILENCE_S", 0.0)  # a long wait would hide that it did not wait


@pytest.fixture
def owner():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def watched(tmp_path, owner) -> tuple[Watchdog, Held, SharedValues]:
    shared = SharedValues(tmp_path / "shared_values", create=True)
    shared["owner_pid"], shared["period_ns"] = owner.pid, 5_000_000
    shared["armed"], shared["control_ns"] = 1, time.monotonic_ns()
    held = Held(owner.pid)
    return Watchdog(held, shared), held, shared


def test_the_watchdog_leaves_a_living_owner_alone(tmp_path, owner):
    dog, held, shared = watched(tmp_path, owner)
    for _ in range(5):
        assert dog.step(shared["control_ns"] + 29_000_000) is None
    assert shared["watchdog_beat"] == 5
    assert held.reasons == []
    assert owner.poll() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_the_watchdog_holds_the_robot_of_an_owner_that_died(tmp_path, owner, how):
    dog, held, shared = watched(tmp_path, owner)
    now = shared["control_ns"]  # its heartbeat continues: only its death can be noticed
    dog.step(now)
    owner.send_signal(how)
    while dog.step(now) is None:
        assert shared["watchdog_beat"] < 1000
    assert held.reasons == ["the control process died"]
    assert shared["watchdog_fired"] == 1
    assert dog.step(now) is None  # once


def test_the_watchdog_ends_a_stalled_owner_before_it_holds_the_robot(tmp_path, owner):
    dog, held, shared = watched(tmp_path, owner)
    dog.step(shared["control_ns"])
    owner.send_signal(signal.SIGSTOP)
    assert dog.step(shared["control_ns"] + 31_000_000) == "the control process has stalled"
    assert not held.owner_lived
    assert owner.wait(5) == -signal.SIGKILL


def test_joints_that_miss_the_watchdogs_hold_are_held_again_and_named(tmp_path, owner):
    dog, held, shared = watched(tmp_path, owner)
    held.deaf = [["elbow", "wrist"], ["wrist"]]
    owner.kill()
    said = [dog.step(shared["control_ns"])]
    while said[-1] is None:
        said[-1] = dog.step(shared["control_ns"])
    said += [dog.step(shared["control_ns"]) for _ in range(4)]
    why, seen = "the control process died", "did not answer: check that it does not move"
    assert said == [f"{why}; elbow, wrist {seen}", f"{why}; wrist {seen}", why, None, None]


def test_an_owner_that_ends_late_has_the_robot_held_twice(tmp_path, owner):
    """It may have sent a goal after the first hold."""
    dog, _, shared = watched(tmp_path, owner)
    ends = iter(
        [[], [], [], [(0, 1)], [(0, 1)]]
    )  # polls of its handle: the first one while it is watched
    dog.step(shared["control_ns"])
    dog._poll = SimpleNamespace(poll=lambda _: next(ends))
    late = shared["control_ns"] + 31_000_000
    said = [dog.step(late) for _ in range(4)]
    assert said == [
        "the control process has stalled",
        None,
        "the control process has stalled",
        None,
    ]


def test_the_watchdog_waits_for_silence_after_the_kill(tmp_path, owner, monkeypatch):
    """The silence counts from the signal: nothing can have been written later."""
    dog, _, shared = watched(tmp_path, owner)
    now_ns, slept = [0], list[float]()
    dog.step(shared["control_ns"])

    def kill(handle: int, how: int) -> None:
        now_ns[0] += 7_000_000  # the wait was before

    def poll(_: int) -> list[tuple[int, int]]:
        now_ns[0] += 2_000_000  # to end
        return [(0, 1)]

    monkeypatch.setattr(watchdog, "SILENCE_S", 0.005)
    monkeypatch.setattr(watchdog.signal, "pidfd_send_signal", kill)
    monkeypatch.setattr(watchdog.time, "monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr(watchdog.time, "sleep", slept.append)
    dog._poll = SimpleNamespace(poll=poll)
    assert dog.fence()
    assert slept == [pytest.approx(0.003)]


def test_an_ending_watchdog_first_holds_the_robot_of_a_dead_owner(tmp_path, owner, monkeypatch):
    """The console may notice the death first and end all processes."""
    session = SimpleNamespace(path=tmp_path, ended=lambda shared: shared["stop"])
    session.claim_watch = BytesIO
    monkeypatch.setattr(
        watchdog, "request_real_time", lambda *_, **__: ""
    )  # not for the process of the tests
    _, held, shared = watched(tmp_path, owner)
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    shared["stop"] = shared["control_beat"] = 1
    held.connect = held.close = lambda: None
    session.make_robot = lambda: held
    watch(session, lambda: shared["control_ns"])
    assert held.reasons == ["the control process died"]


def test_the_watchdog_leaves_the_line_to_control_until_that_has_connected(tmp_path, monkeypatch):
    shared, calls = SharedValues(tmp_path / "shared_values", create=True), list[str]()

    def sleep(seconds: float) -> None:
        calls.append("wait")
        shared["control_beat"] = len(calls) == 3
        shared["stop"] = 1 if shared["control_beat"] else 0

    monkeypatch.setattr(watchdog, "request_real_time", lambda *_, **__: "")
    monkeypatch.setattr(watchdog.time, "sleep", sleep)
    robot = SimpleNamespace(connect=lambda: calls.append("connect"), close=lambda: None)
    make, ended = (lambda: robot), (lambda shared: bool(shared["stop"]))
    watch(SimpleNamespace(path=tmp_path, make_robot=make, ended=ended, claim_watch=BytesIO))
    assert calls == ["wait", "wait", "wait", "connect"]


def test_a_recorder_that_is_not_needed_may_end(tmp_path):
    ended = SimpleNamespace(poll=lambda: -9, returncode=-9)
    for needed in (False, True):
        processes = Processes(
            Session(str(tmp_path), robot="desk", rate_hz=100, recorder_needed=needed)
        )
        processes.children["writer"] = ended
        told = pytest.raises(UserError, match="writer: the process ended with code -9")
        with told if needed else nullcontext():
            processes.raise_errors()


@pytest.mark.parametrize("answers", [True, False])
def test_the_watchdogs_reaction_to_a_dead_control_process_is_reported(
    tmp_path, monkeypatch, answers: bool
):
    monkeypatch.setattr(session_module, "HOLD_S", 0.0)
    processes = Processes(Session(str(tmp_path), robot="desk", rate_hz=100))
    processes.children["control"] = SimpleNamespace(poll=lambda: -9, returncode=-9)
    processes.shared["armed"] = 1
    sentence = "did not command the robot to hold"
    if answers:
        (tmp_path / "watchdog.fired").write_text("it stands still")
        sentence = "commanded the robot to hold: it stands still"
    with pytest.raises(
        UserError, match=f"control: the process ended with code -9; the watchdog {sentence}"
    ):
        processes.raise_errors()


def test_the_watchdog_does_nothing_while_nothing_is_armed(tmp_path, owner):
    dog, held, shared = watched(tmp_path, owner)
    shared["armed"] = 0
    owner.kill()
    owner.wait()
    for _ in range(3):
        dog.step(time.monotonic_ns())
    assert held.reasons == []


# everything


def test_a_recording_by_hand_first_asks_the_operator_to_hold_the_robot(tmp_path, monkeypatch):
    told = list[str]()
    monkeypatch.setattr(running, "check", lambda robot, bundle, rate_hz: told.append("checked"))
    monkeypatch.setattr(running, "run_session", lambda session, **how: told.append("recorded"))
    monkeypatch.setattr(running, "new_folder", lambda: str(tmp_path))
    how = {"adapter": "simulated", "folder": str(tmp_path), "keyboard": False}
    running.record("desk", tmp_path / "x.rec", ask=told.append, **how)
    assert "torque will be switched off" in told[1]
    assert (told[0], told[2]) == ("checked", "recorded")

    def nobody(sentence: str) -> None:
        raise EOFError

    with pytest.raises(UserError, match="there is no operator at the terminal"):
        running.record("desk", tmp_path / "x.rec", ask=nobody, **how)
    assert len(told) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rate_hz": 49.0}, "rate_hz is 49, expected 50 to 200, half to twice the 100 Hz of desk"),
        ({"rate_hz": 0.0}, "rate_hz is 0"),
        ({"command_latency_s": -0.01}, "command_latency_s is -0.01, expected 0 to 0.5 s"),
        ({"command_latency_s": 20.0}, "command_latency_s is 20,"),
        ({"command_latency_s": np.nan}, "command_latency_s is nan"),
        ({"offset": 1.5}, "offset is 1.5, expected -1 to 1"),
        ({"offset": -1.5}, "offset is -1.5"),
        ({"offset": np.nan}, "offset is nan"),
    ],
)
def test_implausible_times_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, options, sentence: str
):
    monkeypatch.setattr(running, "check", lambda *_, **__: None)
    file = write_desk_bundle(tmp_path / "b")
    with pytest.raises(UserError, match=sentence):
        run(file, "desk", adapter="simulated", record=str(tmp_path / "new" / "x.rec"), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("state", "latched", "code"),
    [
        (State.HOLD, None, 0),
        (State.FAULT, Reason.BUS_LOST, 1),
        (State.ESTOP, Reason.ESTOP_PRESSED, 1),
        (State.HOLD, Reason.CLIPPED_TOO_LONG, 1),
    ],
)
def test_the_exit_code_of_a_run_is_1_if_something_stopped_the_robot(
    monkeypatch, capsys, state: State, latched: Reason | None, code: int
):
    outcome = running.Outcome(state, latched, 1.0, 0, "", None)
    monkeypatch.setattr(running, "run", lambda *_, **__: outcome)
    with nullcontext() if code == 0 else pytest.raises(SystemExit, match="1"):
        robot(["run", "robot=desk", "bundle=b"])
    assert state.name in capsys.readouterr().out


def test_a_start_that_no_key_could_stop_is_refused_unless_something_else_can(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", running._NoTerminal())
    file = write_desk_bundle(tmp_path / "b")
    how = {"adapter": "simulated", "start": True}
    with pytest.raises(UserError, match=r"no key could stop it\. Add stop=signals"):
        run(file, "desk", **how)
    with pytest.raises(UserError, match="no key could stop it"):
        running.replay(tmp_path / "none.rec", "desk", **how)
    monkeypatch.setattr(running, "check", lambda *_, **__: None)
    monkeypatch.setattr(running, "run_session", lambda *_, **__: "it runs")
    assert run(file, "desk", stop="signals", **how) == "it runs"
    assert run(file, "desk", seconds=1.0, **how) == "it runs"
    assert run(file, "desk", keyboard=False, **how) == "it runs"


def test_without_a_terminal_the_run_says_how_to_stop_the_robot():
    said = running.without_terminal(True, 5.0)
    assert "no key stops the robot" in said
    assert f"kill -INT {os.getpid()} stops it immediately" in said
    assert "ends after 5 s" in said
    assert "only a terminal can start it" in running.without_terminal(False, None)


def test_an_old_state_is_shown_as_stale(tmp_path, console: Console):
    bench = Bench(tmp_path)
    bench.run(100)
    line = console.line(bench.ring.record, 100.0, silent_s=0.7)
    assert line == "STALE: no state from control for 0.7 s; the last was RUNNING"


def test_the_console_says_why_a_plan_ran_out(tmp_path):
    session = Session(str(tmp_path), robot="desk", rate_hz=100)
    shared = SharedValues(tmp_path / "shared_values", create=True)
    shared["time_limit_ns"], shared["call_took_ns"] = 200_000_000, 350_000_000
    said = session_module.explain_missing_plan(session, shared, 10**9)
    assert said.startswith("inference took 350 ms and must take at most 200 ms")
    shared["call_started_ns"] = 10**9 - 900_000_000
    said = session_module.explain_missing_plan(session, shared, 10**9)
    assert said.startswith("inference has taken 900 ms and must take at most 200 ms")
    (tmp_path / "lacks").write_text("target.x")
    said = session_module.explain_missing_plan(session, shared, 10**9)
    assert said == "target.x is not measured: check that its tracker runs"


def test_the_outcome_says_in_which_state_a_run_ended():
    told = running.Outcome(State.SOFT_STOP, None, 12.0, 3, "as granted", None).text
    assert told == "finished; final state SOFT_STOP; 12.0 s, 3 deadlines missed; as granted"


def test_record_and_replay_refuse_a_rate_outside_the_robots_range(tmp_path, monkeypatch):
    found = SimpleNamespace(about={"joints": []}, rows=np.zeros(0))
    monkeypatch.setattr(running, "read", lambda path: found)
    how = {"adapter": "simulated", "folder": str(tmp_path / "sim"), "rate_hz": 500.0}
    sentence = "rate_hz is 500, expected 50 to 200, half to twice the 100 Hz of desk"
    file = str(tmp_path / "new" / "x.rec")
    with pytest.raises(UserError, match=sentence):
        running.record("desk", file, **how)
    with pytest.raises(UserError, match=sentence):
        running.replay(tmp_path / "y.rec", "desk", record=file, **how)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def patient_desk(tmp_path) -> str:
    """Write a desk robot with timeouts for a busy machine."""
    folder = ROOT / "configs" / "robot"
    values = yaml.safe_load((folder / "desk.yaml").read_text())
    values |= {"rate_hz": 50, "timeout_s": 0.5, "max_reading_age_s": 0.5, "adapter": "simulated"}
    (tmp_path / "desk.yaml").write_text(yaml.safe_dump(values))
    shutil.copy(folder / "desk.xml", tmp_path)
    return str(tmp_path / "desk.yaml")


OWN_ARM = """
from real_robot.robots.config import SimulationOptions
from real_robot.robots.simulated import SimulatedRobot


class Arm(SimulatedRobot):
    def __init__(self, described, folder):
        how = {**described.config.simulated, "folder": folder}
        super().__init__(described, SimulationOptions(**how))
"""


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, "own_arm.py:Arm"])
def test_a_run_on_a_simulated_arm_moves_records_and_holds(
    tmp_path, monkeypatch, patient_desk: str, adapter: str | None
):
    """Relative file names work in every process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_arm.py").write_text(OWN_ARM)
    outcome = run(
        write_desk_bundle(tmp_path / "b"),
        Path(patient_desk).name,
        adapter=adapter,
        folder=str(tmp_path / "sim"),
        seconds=6.0,
        start=True,
        record=str(tmp_path / "x.rec"),
        keyboard=False,
    )
    recording = read(tmp_path / "x.rec")
    rows = recording.rows
    assert (recording.lost, recording.cut_at) == (0, None)
    assert (np.diff(rows["tick"].astype(int)) >= 1).all()
    assert outcome.recording == tmp_path / "x.rec"
    running = rows[rows["mode"] == 1]
    assert len(running) > 20
    assert np.isfinite(running["sent"][:-1]).all()
    assert np.ptp(running["sent"], axis=0).max() > 1e-4
    # it ended holding, even if a stall of the machine ended it
    assert outcome.state in (State.HOLD, State.SOFT_STOP, State.FAULT)


@pytest.mark.slow
def test_of_two_runs_on_one_simulated_arm_the_second_is_refused(tmp_path, patient_desk: str):
    how = {"folder": str(tmp_path / "sim"), "seconds": 20.0, "start": True, "keyboard": False}
    bundle, file = write_desk_bundle(tmp_path / "b"), tmp_path / "x.rec"
    code = f"from real_robot import run\nrun({str(bundle)!r}, {patient_desk!r}, **{how!r}"
    command = [sys.executable, "-c", f"{code}, record={str(file)!r})"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as first:
        deadline = time.monotonic() + 60
        while not file.exists() or file.stat().st_size < 20_000:
            assert first.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it did not begin"
            time.sleep(0.05)
        with pytest.raises(UserError, match=r"another run commands .*: end that run first"):
            run(bundle, patient_desk, **how)
        os.kill(first.pid, signal.SIGTERM)
        first.wait(60)
    assert read(file).rows["tick"].size > 20


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["control", "inference", "writer"])
def test_if_any_process_is_killed_the_recording_is_complete_and_the_robot_holds(
    tmp_path, patient_desk: str, victim: str
):
    code = (
        "import sys; from real_robot import run\n"
        "run(sys.argv[1], sys.argv[2], folder=sys.argv[3], record=sys.argv[4], seconds=20.0,"
        " start=True, keyboard=False)"
    )
    files = [write_desk_bundle(tmp_path / "b"), patient_desk, tmp_path / "sim", tmp_path / "x.rec"]
    command = [sys.executable, "-c", code, *map(str, files)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as console:
        deadline = time.monotonic() + 60
        while not files[3].exists() or files[3].stat().st_size < 20_000:
            assert console.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it did not begin"
            time.sleep(0.05)
        children = Path(f"/proc/{console.pid}/task/{console.pid}/children").read_text().split()
        module = f"real_robot.control.{victim}".replace("control.writer", "recording.writer")
        pids = [c for c in children if module in Path(f"/proc/{c}/cmdline").read_text()]
        os.kill(int(pids[0]), signal.SIGKILL)
        told = console.communicate(timeout=60)[1]
    if console.returncode == 0:
        pytest.skip("this machine stalled, and the run had ended by itself")
    reaction = "the watchdog" if victim == "control" else "control brings the robot to rest"
    assert f"{victim}: the process ended with code -9; {reaction}" in told
    assert read(files[3]).rows["tick"].size > 20


PTY = (
    "import sys; from real_robot import run\n"
    "print(run(sys.argv[1], sys.argv[2], folder=sys.argv[3], record=sys.argv[4], start=True).text)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("ctrl-c", State.ESTOP),
        ("ctrl-z", State.ESTOP),
        ("ctrl-\\", State.ESTOP),
        ("hangup", State.HOLD),
        ("SIGHUP", State.HOLD),
        ("SIGTERM to all", State.HOLD),
        ("SIGKILL", State.HOLD),
        ("SIGSTOP", State.HOLD),
    ],
)
def test_if_the_terminal_is_lost_the_robot_comes_to_rest_and_no_process_remains(
    tmp_path, patient_desk: str, how: str, state: State
):
    """The console leads the session of its terminal, as the terminal's only program."""
    files = [write_desk_bundle(tmp_path / "b"), patient_desk, tmp_path / "sim", tmp_path / "x.rec"]
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-c", PTY, *map(str, files)]
        os.execve(sys.executable, command, os.environ | {"PYTHONPATH": str(ROOT)})
    shown, open_ = bytearray(), True
    try:
        deadline = time.monotonic() + 90
        while b"RUNNING" not in shown:
            assert time.monotonic() < deadline, shown[-2000:]
            shown += _read_terminal(terminal)
        children = _children(pid)
        assert len(children) >= 4
        folder = Path(f"/proc/{children[0]}/cmdline").read_text().split("\0")[-2]
        groups = {os.getpgid(child) for child in children}
        assert len(groups) == 1
        assert pid not in groups
        if how.startswith("ctrl"):
            os.write(terminal, {"c": b"\x03", "z": b"\x1a", "\\": b"\x1c"}[how[-1]])
            while b"ESTOP" not in shown:
                assert time.monotonic() < deadline, shown[-2000:]
                shown += _read_terminal(terminal)
            os.write(terminal, b"quit\n")
        elif how == "hangup":
            os.close(terminal)
            open_ = False
        else:
            sent_to = [c for c in children if how.endswith("all") and _of_the_run(c)]
            assert len(sent_to) == (4 if how.endswith("all") else 0)
            for each in (*sent_to, pid):  # as at the end of a session or a shutdown
                os.kill(each, getattr(signal, how.split()[0]))
        if how == "SIGSTOP":
            time.sleep(1.5)
            os.kill(pid, signal.SIGCONT)
            while Reason.CONSOLE_LOST.text.encode() not in shown:
                assert time.monotonic() < deadline, shown[-2000:]
                shown += _read_terminal(terminal)
            os.write(terminal, b"quit\n")
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline, "the console does not end"
            if open_:
                shown += _read_terminal(terminal)
        while left := [child for child in children if Path(f"/proc/{child}").exists()]:
            assert time.monotonic() < deadline, [
                Path(f"/proc/{c}/cmdline").read_text() for c in left
            ]
            time.sleep(0.05)
    finally:
        if open_:
            os.close(terminal)
    if how == "SIGKILL":  # no process was left to remove it
        shutil.rmtree(folder)
    assert not Path(folder).exists()
    rows = read(files[3]).rows
    assert State(int(rows["state"][-1])) is state
    sent = rows["sent"][np.isfinite(rows["sent"]).all(1)]
    np.testing.assert_array_equal(sent[-1], sent[-2])


def _read_terminal(terminal: int) -> bytes:
    """Return the terminal's output."""
    ready = select.select([terminal], [], [], 0.05)[0]
    with suppress(OSError):  # the other end is closed
        return os.read(terminal, 4096) if ready else b""
    time.sleep(0.05)
    return b""


def _of_the_run(pid: int) -> bool:
    """Return True for a process of the run, other than the simulated arm."""
    told = Path(f"/proc/{pid}/cmdline").read_text()
    return "real_robot.control" in told or "real_robot.recording" in told


def _children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

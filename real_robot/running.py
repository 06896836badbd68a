"""A run: check, then the processes, then the terminal until it ends."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, read_yaml
from offline_rl.utils.options import build, coerce
from policies.bundle import read as read_bundle
from real_robot.check import check, control_rate
from real_robot.console import Console, keys, show, tell
from real_robot.control.loop import Wish
from real_robot.control.observing import offset
from real_robot.control.rings import Reader, Ring
from real_robot.control.session import NO_PLAN, Processes, Session, new_folder, put_wish, wish_type
from real_robot.recording.files import read
from real_robot.robots.make import make
from real_robot.safety.limits import Rules
from real_robot.safety.states import Reason, State

LINE_S = 0.2
STALE_S = 0.3  # an older state of the control process is shown as stale
START_S = 60.0  # in which control connects
LATENCY_S = 0.5  # at most, from a command to the motion
Stop = Literal["keys", "signals"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: State
    latched: Reason | None  # what stopped it; None: it was finished
    seconds: float
    missed: int  # deadlines
    granted: str  # what the kernel gave the control process
    recording: Path | None
    why: str = "finished"  # what stopped it, in words

    @property
    def stopped(self) -> bool:
        """True if a reason stopped the robot, and no operator has re-armed it since."""
        return self.latched is not None or self.state in (State.FAULT, State.ESTOP)

    @property
    def text(self) -> str:
        ended = f"{self.why}; it ended in {self.state.name}"
        told = f"{ended}; {self.seconds:.1f} s, {self.missed} deadlines missed; {self.granted}"
        return told if self.recording is None else f"{told}\n{self.recording}"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `robot run` takes."""

    robot: str  # a name in configs/robot, or a file of your own
    bundle: str
    runtime: Literal["auto", "torch", "onnx", "numpy"] = "auto"  # that runs it: policies.load
    rate_hz: float | None = None  # of the control loop; default: the robot's
    seconds: float | None = None  # default: until it is finished, or a person quits
    start: bool = False  # at once; else a person types start
    record: str | None = None  # a file that is not there yet
    recorder_needed: bool = True  # false: a full disk does not stop the robot
    offset: float | None = None  # steps from an observation to its first action; default: bundle's
    command_latency_s: float = 0.0  # from a command to the motion, measured
    limits: str | None = None  # a file of tighter ones; see `own_limits`
    adapter: str | None = None  # another than the robot's own, such as simulated
    stop: Stop = "keys"  # how an operator stops it; signals: SIGINT and SIGTERM, no terminal


def run(bundle: str | Path, robot: str, *, keyboard: bool = True, **options: Any) -> Outcome:
    """Moves `robot` by `bundle` until it is finished, stopped or a person quits.

    options: those of `RunOptions`, and the adapter's own, such as port=…. Raises UserError before
    anything moves where bundle and robot do not fit.
    """
    hints = get_type_hints(RunOptions)
    own: dict[str, Any] = {k: coerce(v, hints[k], k) for k, v in options.items() if k in hints}
    chosen = RunOptions(robot=robot, bundle=str(bundle), **own)
    changes = {k: v for k, v in options.items() if k not in hints}
    latency_s = chosen.command_latency_s
    if not 0 <= latency_s <= LATENCY_S:
        raise UserError(
            f"command_latency_s is {latency_s:g}, expected 0 to {LATENCY_S:g} s: measure the time "
            "from a command to the motion, in seconds"
        )
    _refuse_unstoppable(keyboard, chosen.start, chosen.stop, chosen.seconds)
    limits, rules = own_limits(chosen.limits)
    machine = make(robot, adapter=chosen.adapter, **changes)
    rate_hz = control_rate(machine.spec, chosen.rate_hz)
    check(machine, bundle, rate_hz=rate_hz, limits=limits, runtime=chosen.runtime)
    policy = read_bundle(bundle).spec
    steps = offset(policy) if chosen.offset is None else chosen.offset
    if steps is not None and not abs(steps) <= policy.chunk_size:
        raise UserError(
            f"offset is {steps:g}, expected at most the {policy.chunk_size} steps of a chunk of this "
            "bundle, forward or back: leave offset away to take the bundle's own"
        )
    file = _new_file(chosen.record)
    session = Session(
        folder=new_folder(),
        robot=robot,
        rate_hz=rate_hz,
        adapter=chosen.adapter,
        changes=changes,
        bundle=str(Path(bundle).resolve()),
        runtime=chosen.runtime,
        limits=limits,
        rules=rules,
        policy_rate_hz=policy.rate_hz or rate_hz,
        chunk_size=policy.chunk_size,
        offset=steps,
        command_latency_s=latency_s,
        recording=file,
        recorder_needed=chosen.recorder_needed,
    )
    return conduct(session, seconds=chosen.seconds, start=chosen.start, keyboard=keyboard)


def _refuse_unstoppable(keyboard: bool, start: bool, stop: Stop, seconds: float | None) -> None:
    """Raise UserError if the robot would move and no key could stop it, unless that is asked for.

    keyboard: False if a Python caller has asked for a run without one.
    """
    if start and keyboard and not sys.stdin.isatty() and stop == "keys" and seconds is None:
        raise UserError(
            "start=true without a terminal: the robot would move and no key could stop it. Add "
            "stop=signals (SIGINT stops at once, SIGTERM brings it to rest) or seconds=…"
        )


def own_limits(path: str | None) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """(limits, rules) of a user's YAML file; empty where there is none. Raises UserError.

    velocity: {waist: 0.5}      # a limit: joints, in rad, m, s and A
    rules: {trip_after_s: 1.0}  # `safety.limits.Rules`
    """
    if path is None:
        return {}, {}
    values = read_yaml(Path(path))
    if not all(isinstance(v, dict) for v in values.values()):
        raise UserError(f"{path}: expected a table for each limit, as in velocity: {{waist: 0.5}}")
    rules = values.pop("rules", {})
    build(Rules, rules, f"{path}: rules.")
    return values, rules


def record(
    robot: str,
    out: str | Path,
    *,
    seconds: float | None = None,
    rate_hz: float | None = None,
    adapter: str | None = None,
    keyboard: bool = True,
    ask: Callable[[str], object] = input,
    **changes: Any,
) -> Outcome:
    """Records what the robot measures, without torque, while a person moves it by hand.

    ask: returns once a person holds the arm, which would drop: it may hold since an earlier run.
    """
    machine = make(robot, adapter=adapter, **changes)
    check(machine, None, rate_hz=rate_hz)
    file = _new_file(str(out))
    try:
        ask(f"Hold {machine.spec.name}: its torque goes off, and it may drop. Then press Enter. ")
    except EOFError:
        raise UserError("nobody is at the terminal to hold the robot") from None
    session = Session(
        folder=new_folder(),
        robot=robot,
        rate_hz=control_rate(machine.spec, rate_hz),
        adapter=adapter,
        changes=changes,
        armed=False,
        recording=file,
    )
    return conduct(session, seconds=seconds, start=False, keyboard=keyboard)


def replay(
    recording: str | Path,
    robot: str,
    *,
    start: bool = False,
    record: str | None = None,
    rate_hz: float | None = None,
    limits: str | None = None,
    adapter: str | None = None,
    stop: Stop = "keys",
    keyboard: bool = True,
    **changes: Any,
) -> Outcome:
    """Plays back what a recording's robot was told, or, where nothing was, how it was moved."""
    _refuse_unstoppable(keyboard, start, stop, None)
    found, (own, rules) = read(recording), own_limits(limits)
    machine = make(robot, adapter=adapter, **changes)
    check(machine, None, rate_hz=rate_hz, limits=own)
    if list(found.about["joints"]) != list(machine.spec.joints):
        raise UserError(
            f"{recording} is of joints {', '.join(found.about['joints'])}; {robot} has "
            f"{', '.join(machine.spec.joints)}"
        )
    rate_hz = control_rate(machine.spec, rate_hz)
    plan = goals_of(found.rows, min(rate_hz, 25.0))
    if len(plan) < 2:
        raise UserError(f"{recording} holds no motion to play back")
    file, folder = _new_file(record), new_folder()
    np.save(Path(folder) / "plan.npy", plan)
    session = Session(
        folder=folder,
        robot=robot,
        rate_hz=rate_hz,
        adapter=adapter,
        changes=changes,
        plan=str(Path(folder) / "plan.npy"),
        policy_rate_hz=min(rate_hz, 25.0),
        limits=own,
        rules=rules,
        recording=file,
    )
    return conduct(session, start=start, keyboard=keyboard, last=True)


def goals_of(rows: np.ndarray, rate_hz: float) -> np.ndarray:
    """[N, J]: what was sent, or measured where nothing was, `rate_hz` times a second."""
    goals = np.where(np.isfinite(rows["sent"]), rows["sent"], rows["q"])
    keep = np.isfinite(goals).all(1)
    times, goals = rows["wake_ns"][keep] * 1e-9, goals[keep]
    if len(times) < 2:
        return goals
    wanted = np.arange(times[0], times[-1], 1 / rate_hz)
    return np.stack([np.interp(wanted, times, column) for column in goals.T], 1)


def _new_file(path: str | None) -> str | None:
    """Absolute. Raises UserError where it is there already, or cannot be."""
    if path is None:
        return None
    where = Path(path).resolve()
    if where.exists():
        raise UserError(f"{path} is there already; name another file, or remove it")
    make_folder(where.parent)
    return str(where)


def conduct(
    session: Session,
    *,
    seconds: float | None = None,
    start: bool = False,
    keyboard: bool = True,
    last: bool = False,
) -> Outcome:
    """Starts the processes and looks after them until the run ends.

    last: the run ends when the plan does.
    """
    stream: Any = sys.stdin if keyboard else _NoTerminal()
    try:
        session = replace(session, terminal=stream.isatty())
        session.save()
        processes = Processes(session)
        joints = session.make_robot().spec.joints
        wishes = Ring.create(session.path / "wishes", wish_type(len(joints)), 64)
        console = Console(processes.words, wishes, joints, session.path / NO_PLAN)
        with console.signals(), keys(stream) as handle:
            try:
                for name, wanted in (
                    ("control", True),
                    ("watchdog", True),
                    ("writer", session.recording is not None),
                    ("inference", session.bundle is not None),
                ):
                    if wanted:
                        processes.start(name)
                rows = _connected(processes, console, handle)
                begun = _look_after(processes, console, rows, wishes, handle, seconds, start, last)
            finally:
                console.quit = True
                processes.end(lambda: console.wait(handle))
                show("")
        if not rows.newest() and not rows.next:
            raise UserError("it was ended before it began")
        return _outcome(session, rows.record, time.monotonic() - begun, console)
    finally:
        _remove_empty(session.recording)
        shutil.rmtree(session.folder, ignore_errors=True)


def _remove_empty(recording: str | None) -> None:
    """A run that never began leaves nothing."""
    if recording is not None and Path(recording).exists() and not len(read(recording).rows):
        Path(recording).unlink()


def _connected(processes: Processes, console: Console, handle: int | None) -> Reader:
    """The loop's rows, once control has connected. Raises UserError where it does not."""
    end = time.monotonic() + START_S
    while not console.quit:
        console.wait(handle)
        processes.raise_errors()
        if processes.words["control_beat"]:
            return Reader(Ring.open(processes.session.path / "ticks"), from_start=True)
        if time.monotonic() > end:
            raise UserError(f"control did not connect within {START_S:.0f} s")
    raise UserError("it was ended before the robot was connected")


def _look_after(
    processes: Processes,
    console: Console,
    rows: Reader,
    wishes: Ring,
    handle: int | None,
    seconds: float | None,
    start: bool,
    last: bool,
) -> float:
    """Until the run is to end; returns when the first tick was seen, monotonic s."""
    begun, shown, ticks, rate, moved, newest = 0.0, 0.0, 0, 0.0, False, time.monotonic()
    told = ""
    if handle is None:
        tell(without_terminal(start, seconds))
    said = Reader(Ring.open(processes.session.path / "said"), from_start=True)
    while not console.quit:
        console.wait(handle)
        processes.raise_errors()
        console.lost = rows.lost
        if said.newest():
            console.said = said.record["text"].item().decode(errors="replace")
        now = time.monotonic()
        if not rows.newest():
            if begun and now - shown >= LINE_S and now - newest > STALE_S:
                ticks, shown = int(rows.record["tick"]), now
                show(console.line(rows.record, 0.0, silent_s=now - newest))
            continue
        row, newest = rows.record, now
        if begun == 0:
            begun = shown = now
            if start:
                put_wish(wishes, Wish(start=True))
        if now - shown >= LINE_S:
            rate = (int(row["tick"]) - ticks) / (now - shown)
            ticks, shown = int(row["tick"]), now
            show(console.line(row, rate))
        if handle is None and (news := console.news(row)) != told:
            tell(news)
            told = news
        state = State(int(row["state"]))
        moved = moved or state is State.RUNNING
        over = seconds is not None and now - begun >= seconds
        halted = state in (State.HOLD, State.FAULT, State.ESTOP)
        stopped = halted and (moved or int(row["latched"]) >= 0)
        if over or (stopped and (last or handle is None)):
            break
    return begun or time.monotonic()


def without_terminal(start: bool, seconds: float | None) -> str:
    """What an operator without a terminal has to know, in a line."""
    begins = "It moves with its first plan" if start else "It holds: only a terminal can start it"
    ends = "" if seconds is None else f" It ends after {seconds:g} s."
    return (
        f"No terminal: no key stops the robot. {begins}. kill -INT {os.getpid()} stops it at once, "
        f"kill {os.getpid()} brings it to rest.{ends}"
    )


class _NoTerminal:
    def isatty(self) -> bool:
        return False


def _outcome(session: Session, row: np.ndarray, seconds: float, console: Console) -> Outcome:
    granted = session.path / "granted"
    latched = int(row["latched"])
    return Outcome(
        State(int(row["state"])),
        Reason(latched) if latched >= 0 else None,
        seconds,
        int(row["missed"]),
        granted.read_text() if granted.exists() else "",
        Path(session.recording) if session.recording else None,
        console.why(row) if latched >= 0 else "finished",
    )

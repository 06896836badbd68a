"""The commands run, record and replay: check the robot, start the processes, serve the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, read_yaml
from offline_rl.utils.options import build, coerce
from policies.bundle import read as read_bundle
from real_robot.check import check, control_rate
from real_robot.console import Console, keys, print_line, show_line
from real_robot.control.inference import load_policy
from real_robot.control.loop import Request
from real_robot.control.observing import offset
from real_robot.control.rings import Reader, Ring
from real_robot.control.session import (
    NO_PLAN,
    Processes,
    Session,
    new_folder,
    put_request,
    request_type,
)
from real_robot.recording.files import read
from real_robot.robot import Robot
from real_robot.robots.make import make
from real_robot.safety.limits import Rules
from real_robot.safety.states import Reason, State

LINE_S = 0.2
STALE_S = 0.3  # the status line says that the state is stale if the last row is older than this
START_S = 60.0  # maximum time until control is connected
LATENCY_S = 0.5  # largest command_latency_s that is accepted
Stop = Literal["keys", "signals"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run."""

    state: State
    latched: Reason | None  # reason that stopped the robot; None: the run was finished
    seconds: float  # duration of the run
    missed: int  # number of missed deadlines
    granted: str  # real-time guarantees that control got, as text
    recording: Path | None
    why: str = "finished"  # reason as text

    @property
    def stopped(self) -> bool:
        """True if a reason stopped the robot, and no operator has re-armed it since."""
        return self.latched is not None or self.state in (State.FAULT, State.ESTOP)

    @property
    def text(self) -> str:
        ended = f"{self.why}; final state {self.state.name}"
        summary = f"{ended}; {self.seconds:.1f} s, {self.missed} deadlines missed; {self.granted}"
        return summary if self.recording is None else f"{summary}\n{self.recording}"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `robot run`."""

    robot: str  # a name in configs/robot, or your own file
    bundle: str  # the policy bundle
    # runtime of the bundle; auto: the first that is installed, see policies.load
    runtime: Literal["auto", "torch", "onnx", "numpy"] = "auto"
    rate_hz: float | None = None  # rate of the control loop; default: the robot's
    # maximum duration; default: the run ends if it finishes, if a reason stops it, or with `quit`
    seconds: float | None = None
    start: bool = False  # true: move immediately; false: wait until the operator types start
    record: str | None = None  # new file to record to
    recorder_needed: bool = True  # false: a full disk does not stop the robot
    # steps from an observation to the time at which its first action is due; default: the bundle's
    offset: float | None = None
    command_latency_s: float = 0.0  # measured delay from a command to the motion; 0 to 0.5
    limits: str | None = None  # file of tighter limits; see `read_limits`
    adapter: str | None = None  # replaces the robot's adapter, for example simulated
    backup: str | None = None  # bundle that acts while the robustness of stl is below margin
    stl: str | None = None  # formula of signal temporal logic on the policy's observations
    margin: float = 0.0  # robustness below which the backup takes over
    release: float | None = None  # robustness at which the policy takes over again; default: margin
    window: int = 10  # number of recent observations that the formula is evaluated on
    # how the operator stops the robot; keys: at a terminal; signals: with SIGINT and SIGTERM
    stop: Stop = "keys"


def run(bundle: str | Path, robot: str, *, keyboard: bool = True, **options: Any) -> Outcome:
    """Run the policy in `bundle` on `robot` until it finishes, stops, or the operator quits.

    options: fields of `RunOptions`, and options of the adapter, such as port=…. Raises UserError
    before anything moves if the bundle does not fit the robot.
    """
    hints = get_type_hints(RunOptions)
    run_options: dict[str, Any] = {
        k: coerce(v, hints[k], k) for k, v in options.items() if k in hints
    }
    cfg = RunOptions(robot=robot, bundle=str(bundle), **run_options)
    changes = {k: v for k, v in options.items() if k not in hints}
    latency_s = cfg.command_latency_s
    if not 0 <= latency_s <= LATENCY_S:
        raise UserError(
            f"command_latency_s is {latency_s:g}, expected 0 to {LATENCY_S:g} s: use the measured "
            "delay from a command to the motion, in seconds"
        )
    _refuse_unstoppable(keyboard, cfg.start, cfg.stop, cfg.seconds)
    limits, rules = read_limits(cfg.limits)
    machine = make(robot, adapter=cfg.adapter, **changes)
    rate_hz = control_rate(machine.spec, cfg.rate_hz)
    switch = _check_backup(cfg, machine, rate_hz, limits)
    check(machine, bundle, rate_hz=rate_hz, limits=limits, runtime=cfg.runtime)
    policy = read_bundle(bundle).spec
    steps = offset(policy) if cfg.offset is None else cfg.offset
    if steps is not None and not abs(steps) <= policy.chunk_size:
        raise UserError(
            f"offset is {steps:g}, expected -{policy.chunk_size} to {policy.chunk_size}, the "
            "number of steps in a chunk of this bundle. Omit offset to use the bundle's"
        )
    file = _new_file(cfg.record)
    session = Session(
        folder=new_folder(),
        robot=robot,
        rate_hz=rate_hz,
        adapter=cfg.adapter,
        changes=changes,
        bundle=str(Path(bundle).resolve()),
        runtime=cfg.runtime,
        backup=None if cfg.backup is None else str(Path(cfg.backup).resolve()),
        switch=switch,
        limits=limits,
        rules=rules,
        policy_rate_hz=policy.rate_hz or rate_hz,
        chunk_size=policy.chunk_size,
        offset=steps,
        command_latency_s=latency_s,
        recording=file,
        recorder_needed=cfg.recorder_needed,
    )
    return run_session(session, seconds=cfg.seconds, start=cfg.start, keyboard=keyboard)


def _check_backup(
    cfg: RunOptions, machine: Robot, rate_hz: float, limits: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return the fields of `Switch`; {} without a backup policy.

    Raises UserError if the backup fits neither the robot nor the policy, or without a formula.
    """
    if (cfg.backup is None) != (cfg.stl is None):
        raise UserError("backup= and stl= belong together: give both, or neither")
    if cfg.backup is None:
        return {}
    switch = {name: getattr(cfg, name) for name in ("stl", "margin", "release", "window")}
    options: dict[str, Any] = {"limits": limits, "runtime": cfg.runtime, "connect": False}
    check(machine, cfg.backup, rate_hz=rate_hz, **options)
    load_policy(cfg.bundle, cfg.runtime, cfg.backup, switch)
    return switch


def _refuse_unstoppable(keyboard: bool, start: bool, stop: Stop, seconds: float | None) -> None:
    """Raise UserError if the robot would move and no key could stop it.

    keyboard: False if a Python program started the run without a keyboard. This is accepted.
    """
    if start and keyboard and not sys.stdin.isatty() and stop == "keys" and seconds is None:
        raise UserError(
            "start=true without a terminal: the robot would move and no key could stop it. Add "
            "stop=signals (SIGINT stops it immediately, SIGTERM brings it to rest) or seconds=…"
        )


def read_limits(path: str | None) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return (limits, rules) of a user's YAML file; empty if `path` is None. Raises UserError.

    Example of a file. Limits are in rad, m, s and A. The rules are the fields of
    `safety.limits.Rules`:

        velocity: {waist: 0.5}
        rules: {trip_after_s: 1.0}
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
    """Record the robot's measurements, without torque, while an operator moves it by hand.

    ask: shows a sentence and returns once the operator holds the arm. The arm drops if its torque
    was still on since an earlier run.
    """
    machine = make(robot, adapter=adapter, **changes)
    check(machine, None, rate_hz=rate_hz)
    file = _new_file(str(out))
    try:
        ask(
            f"Hold {machine.spec.name}: its torque will be switched off, and it may drop. Then "
            "press Enter. "
        )
    except EOFError:
        raise UserError(
            "there is no operator at the terminal to hold the robot: run this at a terminal"
        ) from None
    session = Session(
        folder=new_folder(),
        robot=robot,
        rate_hz=control_rate(machine.spec, rate_hz),
        adapter=adapter,
        changes=changes,
        armed=False,
        recording=file,
    )
    return run_session(session, seconds=seconds, start=False, keyboard=keyboard)


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
    """Play back the goals of a recording, or the measured positions where no goals were sent."""
    _refuse_unstoppable(keyboard, start, stop, None)
    recorded, (user_limits, rules) = read(recording), read_limits(limits)
    machine = make(robot, adapter=adapter, **changes)
    check(machine, None, rate_hz=rate_hz, limits=user_limits)
    if list(recorded.about["joints"]) != list(machine.spec.joints):
        raise UserError(
            f"{recording} has joints {', '.join(recorded.about['joints'])}, but {robot} has "
            f"{', '.join(machine.spec.joints)}: replay it on the robot that it was recorded on"
        )
    rate_hz = control_rate(machine.spec, rate_hz)
    plan = goals_of(recorded.rows, min(rate_hz, 25.0))
    if len(plan) < 2:
        raise UserError(
            f"{recording} has fewer than two positions to play back: use a longer recording"
        )
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
        limits=user_limits,
        rules=rules,
        recording=file,
    )
    return run_session(session, start=start, keyboard=keyboard, last=True)


def goals_of(rows: np.ndarray, rate_hz: float) -> np.ndarray:
    """Return the positions to play back, at `rate_hz`, [N, J].

    They are the goals that were sent, or the measured positions where no goals were sent.
    """
    goals = np.where(np.isfinite(rows["sent"]), rows["sent"], rows["q"])
    keep = np.isfinite(goals).all(1)
    times, goals = rows["wake_ns"][keep] * 1e-9, goals[keep]
    if len(times) < 2:
        return goals
    times_out = np.arange(times[0], times[-1], 1 / rate_hz)
    return np.stack([np.interp(times_out, times, column) for column in goals.T], 1)


def _new_file(path: str | None) -> str | None:
    """Return the absolute path of a new file. Raises UserError if it exists already."""
    if path is None:
        return None
    where = Path(path).resolve()
    if where.exists():
        raise UserError(f"{path} already exists: name another file, or remove it")
    make_folder(where.parent)
    return str(where)


def run_session(
    session: Session,
    *,
    seconds: float | None = None,
    start: bool = False,
    keyboard: bool = True,
    last: bool = False,
) -> Outcome:
    """Start the processes and supervise them until the run ends.

    last: True: the run ends when the plan ends, also at a terminal.
    """
    stream: Any = sys.stdin if keyboard else _NoTerminal()
    try:
        session = replace(session, terminal=stream.isatty())
        session.save()
        processes = Processes(session)
        joints = session.make_robot().spec.joints
        requests = Ring.create(session.path / "requests", request_type(len(joints)), 64)
        console = Console(processes.shared, requests, joints, session.path / NO_PLAN)
        with console.signals(), keys(stream) as handle:
            try:
                for name, needed in (
                    ("control", True),
                    ("watchdog", True),
                    ("writer", session.recording is not None),
                    ("inference", session.bundle is not None),
                ):
                    if needed:
                        processes.start(name)
                rows = _wait_until_connected(processes, console, handle)
                start_s = _serve_console(
                    processes, console, rows, requests, handle, seconds, start, last
                )
            finally:
                console.quit = True
                processes.end(lambda: console.wait(handle))
                show_line("")
        if not rows.newest() and not rows.next:
            raise UserError("the run was ended before the first tick: start it again")
        return _outcome(session, rows.record, time.monotonic() - start_s, console)
    finally:
        _remove_empty(session.recording)
        shutil.rmtree(session.folder, ignore_errors=True)


def _remove_empty(recording: str | None) -> None:
    """Remove the recording of a run that never began."""
    if recording is not None and Path(recording).exists() and not len(read(recording).rows):
        Path(recording).unlink()


def _wait_until_connected(processes: Processes, console: Console, handle: int | None) -> Reader:
    """Wait until control is connected and return a reader of its rows. Raises UserError."""
    end = time.monotonic() + START_S
    while not console.quit:
        console.wait(handle)
        processes.raise_errors()
        if processes.shared["control_beat"]:
            return Reader(Ring.open(processes.session.path / "ticks"), from_start=True)
        if time.monotonic() > end:
            raise UserError(
                f"control did not connect within {START_S:.0f} s: check the robot's power and port"
            )
    raise UserError("the run was ended before the robot was connected: start it again")


def _serve_console(
    processes: Processes,
    console: Console,
    rows: Reader,
    requests: Ring,
    handle: int | None,
    seconds: float | None,
    start: bool,
    last: bool,
) -> float:
    """Serve the console until the run ends. Return the monotonic time of the first tick, s."""
    start_s, shown, ticks, rate, moved, newest = 0.0, 0.0, 0, 0.0, False, time.monotonic()
    last_line = ""
    if handle is None:
        print_line(without_terminal(start, seconds))
    messages = Reader(Ring.open(processes.session.path / "messages"), from_start=True)
    while not console.quit:
        console.wait(handle)
        processes.raise_errors()
        console.lost = rows.lost
        if messages.newest():
            console.message = messages.record["text"].item().decode(errors="replace")
        now = time.monotonic()
        if not rows.newest():
            if start_s and now - shown >= LINE_S and now - newest > STALE_S:
                ticks, shown = int(rows.record["tick"]), now
                show_line(console.line(rows.record, 0.0, silent_s=now - newest))
            continue
        row, newest = rows.record, now
        if start_s == 0:
            start_s = shown = now
            if start:
                put_request(requests, Request(start=True))
        if now - shown >= LINE_S:
            rate = (int(row["tick"]) - ticks) / (now - shown)
            ticks, shown = int(row["tick"]), now
            show_line(console.line(row, rate))
        if handle is None and (log_line := console.log_line(row)) != last_line:
            print_line(log_line)
            last_line = log_line
        state = State(int(row["state"]))
        moved = moved or state is State.RUNNING
        over = seconds is not None and now - start_s >= seconds
        halted = state in (State.HOLD, State.FAULT, State.ESTOP)
        stopped = halted and (moved or int(row["latched"]) >= 0)
        if over or (stopped and (last or handle is None)):
            break
    return start_s or time.monotonic()


def without_terminal(start: bool, seconds: float | None) -> str:
    """Return a line that explains how to stop the robot without a terminal."""
    begins = (
        "The robot moves with its first plan"
        if start
        else "The robot holds: only a terminal can start it"
    )
    ends = "" if seconds is None else f" The run ends after {seconds:g} s."
    return (
        f"No terminal: no key stops the robot. {begins}. kill -INT {os.getpid()} stops it "
        f"immediately, kill {os.getpid()} brings it to rest.{ends}"
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
        console.stop_reason(row) if latched >= 0 else "finished",
    )

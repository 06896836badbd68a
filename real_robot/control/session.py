"""Session: settings and shared memory of one run, in a folder that all its processes open.

session.json   settings of the run: robot, bundle, rates, files
shared_values  heartbeats and flags (`rings.SharedValues`)
ticks          rows of the control loop; read by inference, writer and console
chunks         action chunks from inference
requests       the operator's requests, from the console
messages       refusals and their reasons, from control
<name>.error   one sentence, if a process failed
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.loop import FLAGS, Request
from real_robot.control.playback import Playback
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.schedule import Chunk
from real_robot.robot import Robot

MEMORY = Path("/dev/shm")
TICKS_S = 20.0  # length of the ring of rows; must be longer than any delay of the writer
WATCHDOG_END_S = 1.0  # maximum time in which the watchdog of an earlier run ends
RECORDER_AGE_NS = 1_000_000_000  # the writer is lost if its heartbeat does not change for this time
CONSOLE_AGE_NS = 500_000_000  # the console is lost if its heartbeat does not change for this time
LACKS = "lacks"  # file with the name of the measurement that inference waits for; empty: none
NO_PLAN = "no_plan"  # file with the reason why the plan ran out
HOLD_S = 1.0  # maximum wait for the watchdog's hold after control has ended
# Only the console handles signals of the terminal. The other processes ignore them, so that they
# can bring the robot to rest first.
TERMINAL_SIGNALS = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP),
    *(signal.SIGTTIN, signal.SIGTTOU),
)
# A request that is older than this is refused, because the robot may have changed its state.
REQUEST_AGE_NS = 500_000_000


@dataclass(frozen=True)
class Session:
    """Settings of a run. The console saves them; the other processes load them."""

    folder: str  # session folder
    robot: str  # name in configs/robot, or path of a robot's file
    rate_hz: float  # control rate
    adapter: str | None = None  # replaces the adapter of the robot's file
    changes: Mapping[str, Any] = field(default_factory=dict)  # options of the adapter
    bundle: str | None = None  # path of the policy bundle
    runtime: str = "auto"  # runtime of the bundle
    backup: str | None = None  # path of the backup policy's bundle
    # when the backup acts: the fields of `policies.stl.backup.Switch`
    switch: Mapping[str, Any] = field(default_factory=dict)
    # .npy file of joint positions to play back instead of a policy, [N, J]
    plan: str | None = None
    armed: bool = True  # False: torque is switched off, and the operator moves the robot by hand
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the user's limits
    rules: Mapping[str, float] = field(default_factory=dict)
    policy_rate_hz: float = 1.0
    chunk_size: int = 1
    offset: float | None = None
    command_latency_s: float = 0.0
    recording: str | None = None
    recorder_needed: bool = True  # False: a full disk does not stop the robot
    terminal: bool = True  # True: an operator can type commands
    console_pid: int = field(default_factory=os.getpid)  # process that created the session

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def save(self) -> None:
        (self.path / "session.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: str) -> Session:
        return cls(**json.loads((Path(folder) / "session.json").read_text()))

    def make_robot(self) -> Robot:
        """Create this process's instance of the robot. Raises UserError."""
        from real_robot.robots.make import make

        return make(self.robot, adapter=self.adapter, **self.changes)

    def unconfirmed_file(self) -> Path | None:
        """Return the path of the file of unconfirmed joints; None: the robot is simulated."""
        from real_robot.robots.config import unconfirmed_file

        return unconfirmed_file(self.robot, adapter=self.adapter, **self.changes)

    def claim(self) -> BinaryIO:
        """Lock the arm for this process.

        The lock is released when the returned file is closed or this process ends.
        Raises UserError if another run commands the arm. Also raises UserError if the watchdog of
        an earlier run does not end in time, because it may still write to the arm.
        """
        arm = self._arm()
        file = _lock_file(arm, "lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(
                f"another run commands {self.robot} ({arm}): end that run first"
            ) from None
        until = time.monotonic() + WATCHDOG_END_S
        with _lock_file(arm, "watchdog") as watchdog:
            while True:
                try:
                    fcntl.flock(watchdog, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                except BlockingIOError:
                    if time.monotonic() > until:
                        file.close()
                        raise UserError(
                            f"the watchdog of an earlier run still watches {self.robot} "
                            f"({arm}): end that run first"
                        ) from None
                    time.sleep(0.01)

    def claim_watch(self) -> BinaryIO:
        """Prevent later runs from using the arm until this process, the watchdog, has ended."""
        file = _lock_file(self._arm(), "watchdog")
        fcntl.flock(file, fcntl.LOCK_SH)
        return file

    def _arm(self) -> str:
        """Return the port or name that identifies the arm."""
        from real_robot.robots.config import arm_identity

        return arm_identity(self.robot, adapter=self.adapter, **self.changes)

    def ended(self, shared: SharedValues) -> bool:
        """Return True if a child process must end: on request, or because the console is gone."""
        if os.getppid() != self.console_pid:
            shared["stop"] = 1
        return bool(shared["stop"])


def _lock_file(arm: str, suffix: str) -> BinaryIO:
    """Open the lock file of an arm, which all runs of a user share."""
    name = f"robot-{os.getuid()}-{hashlib.sha256(arm.encode()).hexdigest()[:16]}"
    folder = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    return (folder / f"{name}.{suffix}").open("a+b")


def explain_missing_plan(session: Session, shared: SharedValues, now_ns: int) -> str:
    """Return the reason why inference has sent no plan in time."""
    lacks = session.path / LACKS
    if lacks.exists() and (name := lacks.read_text()):
        return f"{name} is not measured: check that its tracker runs"
    call_started_ns, limit_ms = shared["call_started_ns"], shared["time_limit_ns"] * 1e-6
    took_ms = (now_ns - call_started_ns if call_started_ns else shared["call_took_ns"]) * 1e-6
    verb = "has taken" if call_started_ns else "took"
    message = f"inference {verb} {took_ms:.0f} ms and must take at most {limit_ms:.0f} ms"
    slow = took_ms > limit_ms
    return f"{message}: use a faster runtime or longer chunks" if slow else message


def new_folder() -> str:
    """Create a session folder, in memory (/dev/shm) if the system has it."""
    return tempfile.mkdtemp(prefix="robot-", dir=MEMORY if MEMORY.is_dir() else None)


# record types of the rings


def chunk_type(chunk_size: int, joints: int) -> np.dtype:
    return np.dtype(
        [
            ("seq", "<i8"),
            ("observed_ns", "<i8"),
            ("completed_ns", "<i8"),
            ("actions", "<f8", (chunk_size, joints)),
            ("is_backup", "u1"),
            ("margin", "<f8"),
        ]
    )


def chunk_of(record: np.ndarray) -> Chunk:
    return Chunk(
        int(record["seq"]),
        int(record["observed_ns"]),
        int(record["completed_ns"]),
        record["actions"].copy(),
        bool(record["is_backup"]),
        float(record["margin"]),
    )


def request_type(joints: int) -> np.dtype:
    return np.dtype(
        [
            *((name, "u1") for name in FLAGS),
            ("typed", "S16"),
            ("confirm", "S64"),
            ("has_target", "u1"),
            ("target", "<f8", (joints,)),
            ("target_ns", "<i8"),
            ("requested_ns", "<i8"),
        ]
    )


def put_request(ring: Ring, request: Request) -> None:
    record = ring.record
    for name in FLAGS:
        record[name] = getattr(request, name)
    record["typed"] = (request.typed or "").encode()[:16]
    record["confirm"] = (request.confirm or "").encode()[:64]
    record["has_target"] = request.target is not None
    if request.target is not None:
        record["target"] = request.target
    record["target_ns"] = request.target_ns
    record["requested_ns"] = time.monotonic_ns()
    ring.push()


def request_of(record: np.ndarray, now_ns: int) -> Request:
    return Request(
        late=now_ns - int(record["requested_ns"]) > REQUEST_AGE_NS,
        **{name: bool(record[name]) for name in FLAGS},
        typed=record["typed"].item().decode(errors="replace") or None,
        confirm=record["confirm"].item().decode(errors="replace") or None,
        target=record["target"].tolist() if record["has_target"] else None,
        target_ns=int(record["target_ns"]),
    )


MESSAGE = np.dtype([("text", "S480")])


def post_message(ring: Ring, text: str) -> None:
    ring.record["text"] = text.encode()[: MESSAGE.itemsize]
    ring.push()


class Processes:
    """Child processes of the console, in one process group. They end together."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shared = SharedValues(session.path / "shared_values", create=True)
        self.children = dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, threads: int = 1) -> None:
        """Start a process: control, inference, watchdog or writer."""
        module = "real_robot.recording.writer" if name == "writer" else f"real_robot.control.{name}"
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        group = next((child.pid for child in self.children.values()), 0)  # the first child's group
        self.children[name] = subprocess.Popen(
            [sys.executable, "-m", module, self.session.folder],
            env=env,
            stdin=subprocess.DEVNULL,
            process_group=group,
        )

    def raise_errors(self) -> None:
        """Raise UserError if a child has ended unexpectedly."""
        for name, child in self.children.items():
            may_end = name == "writer" and not self.session.recorder_needed
            if child.poll() is None or self.shared["stop"] or may_end:
                continue
            path = self.session.path / f"{name}.error"
            message = (
                path.read_text()
                if path.exists()
                else f"the process ended with code {child.returncode}"
            )
            if name == "control":
                message += self._describe_hold()
            elif self.shared["armed"]:
                message += "; control brings the robot to rest, and the run ends"
            raise UserError(f"{name}: {message}")

    def _describe_hold(self) -> str:
        """Return what the watchdog did after control ended. Wait up to HOLD_S for its hold."""
        fired, end = self.session.path / "watchdog.fired", time.monotonic() + HOLD_S
        while self.shared["armed"]:
            if fired.exists() and (reason := fired.read_text()):
                return f"; the watchdog commanded the robot to hold: {reason}"
            if time.monotonic() > end:
                return (
                    "; the watchdog did not command the robot to hold: check that it does not move"
                )
            time.sleep(0.005)
        return ""

    def end(self, listen: Callable[[], object], patience_s: float = 5.0) -> None:
        """End all processes, control first. Kill a process that does not end in time.

        Args:
            listen: called repeatedly. It reads the keys, so that a moving robot can still be
                stopped.
            patience_s: maximum time for each process. Control also has the time that it needs to
                bring the robot to rest.
        """
        self.shared["stop"] = 1
        for name in ("control", *(n for n in self.children if n != "control")):
            child = self.children.get(name)
            if child is None:
                continue
            needs_s = self.shared["end_ns"] * 1e-9 if name == "control" else 0.0
            end = time.monotonic() + needs_s + patience_s
            while child.poll() is None and time.monotonic() < end:
                listen()
            if child.poll() is None:
                child.kill()
                child.wait()


@contextlib.contextmanager
def report_errors(session: Session, name: str) -> Iterator[None]:
    """Save a UserError of a child process, which the console prints. Exit with code 2."""
    try:
        yield
    except UserError as error:
        (session.path / f"{name}.error").write_text(str(error))
        raise SystemExit(2) from None


def pin(last_core: bool) -> None:
    """Pin this process to cores, on Linux. Control uses the last core; inference the others."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:] if last_core else cores[:-1])


class Heartbeat:
    """Heartbeat of another process: a counter that must change at least every `age_ns`."""

    def __init__(self, shared: SharedValues, name: str, age_ns: int) -> None:
        self._shared, self._name, self._age_ns = shared, name, age_ns
        self._last, self._since_ns = -1, 0

    def is_lost(self) -> bool:
        """Return True if the counter has not changed for `age_ns`. Call this in every tick."""
        now, beat = time.monotonic_ns(), self._shared[self._name]
        if beat != self._last:
            self._last, self._since_ns = beat, now
        return now - self._since_ns > self._age_ns


class SharedInputs:
    """Inputs of the loop, from shared memory."""

    def __init__(
        self, session: Session, shared: SharedValues, chunks: Ring | None, requests: Ring
    ) -> None:
        self._shared, self._session = shared, session
        self.plan: Playback | None = None  # source of chunks instead of inference
        self._chunks = Reader(chunks) if chunks is not None else None
        self._requests = Reader(requests, from_start=True)
        self._writer = Heartbeat(shared, "writer_beat", RECORDER_AGE_NS)
        self._console = Heartbeat(shared, "console_beat", CONSOLE_AGE_NS)
        self._nothing = Request()

    def chunk(self) -> Chunk | None:
        if self.plan is not None:
            return self.plan.chunk(time.monotonic_ns(), bool(self._shared["starting"]))
        if self._chunks is not None and self._chunks.newest():
            return chunk_of(self._chunks.record)
        return None

    def has_plan_ended(self) -> bool:
        return self.plan is not None and self.plan.has_ended

    def request(self) -> Request:
        presses = self._shared["estop"]
        pressed = self._shared.pressed
        self._shared["estop_seen"] = presses  # the next tick processes a press from now on
        request = self._nothing
        while self._requests.following():
            request = request_of(self._requests.record, time.monotonic_ns())
            if request.has_command:
                break  # one command per tick; of several targets, only the newest is used
        return replace(request, estop=True) if pressed else request

    def watchdog_ns(self) -> int | None:
        return self._shared["watchdog_ns"]

    def recorder_lost(self) -> bool:
        """Return True if the writer's heartbeat has not changed for 1 s. Disk syncs take time."""
        if self._session.recording is None or not self._session.recorder_needed:
            return False
        return self._writer.is_lost()

    def console_lost(self) -> bool:
        """Return True if the console's heartbeat has not changed for 0.5 s."""
        return self._console.is_lost()


def load_session(arguments: Sequence[str]) -> Session:
    """Load the session of a child process, and let the process ignore the terminal's signals."""
    for each in TERMINAL_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    # SIGTERM is ignored by a handler instead of SIG_IGN. Programs that an adapter starts would
    # inherit SIG_IGN and could not be terminated.
    signal.signal(signal.SIGTERM, lambda *_: None)
    return Session.load(arguments[1])

"""What the processes of one run share: a folder in memory, with the rings and what to do.

session.json   the plan of the run: robot, bundle, rates, files
words          heartbeats and flags (`rings.Words`)
ticks          the control loop's rows; read by inference, writer and console
chunks         inference's answers
wishes         what a person wants; from the console
said           what was refused, and why; from control
<name>.error   one sentence, where a process could not go on
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
from real_robot.control.loop import FLAGS, Wish
from real_robot.control.playback import Playback
from real_robot.control.rings import Reader, Ring, Words
from real_robot.control.schedule import Chunk
from real_robot.robot import Robot

MEMORY = Path("/dev/shm")
TICKS_S = 20.0  # of rows that the ring keeps: more than any writer is ever late
RECORDER_AGE_NS = 1_000_000_000
CONSOLE_AGE_NS = 500_000_000
LACKS = "lacks"  # file: the measurement that inference waits for, empty if none
NO_PLAN = "no_plan"  # file: why the plan ran out
HELD_S = 1.0  # in which the watchdog has held the robot of a dead control process
# what a terminal sends is for the console alone: whoever moves the robot ends when it stands
CONSOLES = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP),
    *(signal.SIGTTIN, signal.SIGTTOU),
)
WISH_AGE_NS = 500_000_000  # an older word is of a robot that a person saw doing something else


@dataclass(frozen=True)
class Session:
    """A run, as its processes read it."""

    folder: str
    robot: str  # a name, or a file
    rate_hz: float
    adapter: str | None = None  # another than the robot's own
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the adapter's options
    bundle: str | None = None
    runtime: str = "auto"  # that runs it
    plan: str | None = None  # instead of a bundle: goals to play back, [N, J], a .npy file
    armed: bool = True  # else torque goes off: a person moves the robot by hand
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the user's, tighter
    rules: Mapping[str, float] = field(default_factory=dict)
    policy_rate_hz: float = 1.0
    chunk_size: int = 1
    offset: float | None = None
    command_latency_s: float = 0.0
    recording: str | None = None
    recorder_needed: bool = True  # else a full disk does not stop the robot
    terminal: bool = True  # an operator can type words
    console_pid: int = field(default_factory=os.getpid)  # who makes the session

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def save(self) -> None:
        (self.path / "session.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: str) -> Session:
        return cls(**json.loads((Path(folder) / "session.json").read_text()))

    def make_robot(self) -> Robot:
        """Each process its own. Raises UserError."""
        from real_robot.robots.make import make

        return make(self.robot, adapter=self.adapter, **self.changes)

    def unconfirmed_file(self) -> Path | None:
        """See `robots.config.unconfirmed_file`."""
        from real_robot.robots.config import unconfirmed_file

        return unconfirmed_file(self.robot, adapter=self.adapter, **self.changes)

    def claim(self) -> BinaryIO:
        """Lock the arm for this process until it ends, or the file is closed.

        Raises UserError if another process commands the arm.
        """
        from real_robot.robots.config import arm_of

        arm = arm_of(self.robot, adapter=self.adapter, **self.changes)
        name = f"robot-{os.getuid()}-{hashlib.sha256(arm.encode()).hexdigest()[:16]}.lock"
        folder = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
        file = (folder / name).open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(
                f"another run commands {self.robot} ({arm}): end that one first"
            ) from None
        return file

    def ended(self, words: Words) -> bool:
        """Asked by a child: whether it is told to end, or nobody is left who could tell it."""
        if os.getppid() != self.console_pid:
            words["stop"] = 1
        return bool(words["stop"])


def why_no_plan(session: Session, words: Words, now_ns: int) -> str:
    """Why inference has sent no plan in time."""
    lacks = session.path / LACKS
    if lacks.exists() and (name := lacks.read_text()):
        return f"{name} is not measured: see whether its tracker runs"
    asked_ns, leaves_ms = words["asked_ns"], words["leaves_ns"] * 1e-6
    took_ms = (now_ns - asked_ns if asked_ns else words["took_ns"]) * 1e-6
    verb = "has taken" if asked_ns else "took"
    found = f"inference {verb} {took_ms:.0f} ms, the plan leaves it {leaves_ms:.0f} ms"
    slow = took_ms > leaves_ms
    return f"{found}: use a faster runtime or longer chunks" if slow else found


def new_folder() -> str:
    """In memory where there is a tmpfs, else wherever temporary files go."""
    return tempfile.mkdtemp(prefix="robot-", dir=MEMORY if MEMORY.is_dir() else None)


# the rings' records


def chunk_type(chunk_size: int, joints: int) -> np.dtype:
    return np.dtype(
        [
            ("seq", "<i8"),
            ("observed_ns", "<i8"),
            ("answered_ns", "<i8"),
            ("actions", "<f8", (chunk_size, joints)),
        ]
    )


def chunk_of(record: np.ndarray) -> Chunk:
    return Chunk(
        int(record["seq"]),
        int(record["observed_ns"]),
        int(record["answered_ns"]),
        record["actions"].copy(),
    )


def wish_type(joints: int) -> np.dtype:
    return np.dtype(
        [
            *((name, "u1") for name in FLAGS),
            ("typed", "S16"),
            ("confirm", "S64"),
            ("has_target", "u1"),
            ("target", "<f8", (joints,)),
            ("target_ns", "<i8"),
            ("said_ns", "<i8"),
        ]
    )


def put_wish(ring: Ring, wish: Wish) -> None:
    record = ring.record
    for name in FLAGS:
        record[name] = getattr(wish, name)
    record["typed"] = (wish.typed or "").encode()[:16]
    record["confirm"] = (wish.confirm or "").encode()[:64]
    record["has_target"] = wish.target is not None
    if wish.target is not None:
        record["target"] = wish.target
    record["target_ns"] = wish.target_ns
    record["said_ns"] = time.monotonic_ns()
    ring.push()


def wish_of(record: np.ndarray, now_ns: int) -> Wish:
    return Wish(
        late=now_ns - int(record["said_ns"]) > WISH_AGE_NS,
        **{name: bool(record[name]) for name in FLAGS},
        typed=record["typed"].item().decode(errors="replace") or None,
        confirm=record["confirm"].item().decode(errors="replace") or None,
        target=record["target"].tolist() if record["has_target"] else None,
        target_ns=int(record["target_ns"]),
    )


SAID = np.dtype([("text", "S480")])


def say(ring: Ring, text: str) -> None:
    ring.record["text"] = text.encode()[: SAID.itemsize]
    ring.push()


class Processes:
    """The children of the console, in a process group of their own; ended together."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.words = Words(session.path / "words", create=True)
        self.children = dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, threads: int = 1) -> None:
        """One of control, inference, watchdog, writer."""
        module = "real_robot.recording.writer" if name == "writer" else f"real_robot.control.{name}"
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        group = next((child.pid for child in self.children.values()), 0)  # the first one's
        self.children[name] = subprocess.Popen(
            [sys.executable, "-m", module, self.session.folder],
            env=env,
            stdin=subprocess.DEVNULL,
            process_group=group,
        )

    def raise_errors(self) -> None:
        """Raises UserError where a child has ended and it was not asked to."""
        for name, child in self.children.items():
            spared = name == "writer" and not self.session.recorder_needed
            if child.poll() is None or self.words["stop"] or spared:
                continue
            path = self.session.path / f"{name}.error"
            told = path.read_text() if path.exists() else f"it ended with {child.returncode}"
            raise UserError(f"{name}: {told}{self._held() if name == 'control' else ''}")

    def _held(self) -> str:
        """What the watchdog did about a control process that has ended; it takes a moment."""
        fired, end = self.session.path / "watchdog.fired", time.monotonic() + HELD_S
        while self.words["armed"]:
            if fired.exists() and (reason := fired.read_text()):
                return f"; the watchdog has told the robot to hold: {reason}"
            if time.monotonic() > end:
                return "; the watchdog has not told the robot to hold: see whether it stands"
            time.sleep(0.005)
        return ""

    def end(self, listen: Callable[[], object], patience_s: float = 5.0) -> None:
        """Asks all to end, control first to stand still, then insists.

        patience_s: with each, and with control beyond the time that it says its robot needs.
        listen: hears the keys for a moment, over and over: a robot that still moves is stopped.
        """
        self.words["stop"] = 1
        for name in ("control", *(n for n in self.children if n != "control")):
            child = self.children.get(name)
            if child is None:
                continue
            needs_s = self.words["end_ns"] * 1e-9 if name == "control" else 0.0
            end = time.monotonic() + needs_s + patience_s
            while child.poll() is None and time.monotonic() < end:
                listen()
            if child.poll() is None:
                child.kill()
                child.wait()


@contextlib.contextmanager
def told_as_error(session: Session, name: str) -> Iterator[None]:
    """A child's UserError becomes the sentence that the console prints."""
    try:
        yield
    except UserError as error:
        (session.path / f"{name}.error").write_text(str(error))
        raise SystemExit(2) from None


def pin(last_core: bool) -> None:
    """The control loop has the last core to itself, as far as this run's processes go."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:] if last_core else cores[:-1])


class Beat:
    """Whether a word that another process counts up has stood still for longer than `age_ns`."""

    def __init__(self, words: Words, name: str, age_ns: int) -> None:
        self._words, self._name, self._age_ns = words, name, age_ns
        self._last, self._since_ns = -1, 0

    def lost(self) -> bool:
        """Asked in every tick."""
        now, beat = time.monotonic_ns(), self._words[self._name]
        if beat != self._last:
            self._last, self._since_ns = beat, now
        return now - self._since_ns > self._age_ns


class SharedInputs:
    """The loop's inputs, from shared memory."""

    def __init__(self, session: Session, words: Words, chunks: Ring | None, wishes: Ring) -> None:
        self._words, self._session = words, session
        self.plan: Playback | None = None  # instead of inference
        self._chunks = Reader(chunks) if chunks is not None else None
        self._wishes = Reader(wishes, from_start=True)
        self._writer = Beat(words, "writer_beat", RECORDER_AGE_NS)
        self._console = Beat(words, "console_beat", CONSOLE_AGE_NS)
        self._nothing = Wish()

    def chunk(self) -> Chunk | None:
        if self.plan is not None:
            return self.plan.chunk(time.monotonic_ns(), bool(self._words["starting"]))
        if self._chunks is not None and self._chunks.newest():
            return chunk_of(self._chunks.record)
        return None

    def plan_handed_out(self) -> bool:
        return self.plan is not None and self.plan.handed_out

    def wish(self) -> Wish:
        seen = self._words["estop"]
        pressed = self._words.pressed
        self._words["estop_seen"] = seen  # what is pressed from now on is seen by the next tick
        wish = self._nothing
        while self._wishes.following():
            wish = wish_of(self._wishes.record, time.monotonic_ns())
            if wish.said:
                break  # one word a tick; of targets the newest
        return replace(wish, estop=True) if pressed else wish

    def watchdog_ns(self) -> int | None:
        return self._words["watchdog_ns"]

    def recorder_lost(self) -> bool:
        """The writer's beat has stood still for a second: it syncs a disk in between."""
        if self._session.recording is None or not self._session.recorder_needed:
            return False
        return self._writer.lost()

    def console_lost(self) -> bool:
        """Its beat has stood still for half a second: it looks for keys in between."""
        return self._console.lost()


def main_folder(arguments: Sequence[str]) -> Session:
    """The session that a child is started for; from then on it hears no terminal."""
    for each in CONSOLES:
        signal.signal(each, signal.SIG_IGN)
    # and so is the system's end; unlike what is ignored, programs that an adapter starts hear it
    signal.signal(signal.SIGTERM, lambda *_: None)
    return Session.load(arguments[1])

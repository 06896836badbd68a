"""Execution of a plan: its cells run in processes that a launcher starts, with one retry.

    <out>/plan.json              the cells, in order of importance
    <out>/queue/claims           which process runs which cell
    <out>/queue/<id>.json        the error of a cell that failed

Several commands, also on machines that share the folder, can execute one plan. Finished cells are
skipped. Interrupted cells resume from their last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from offline_rl.suite.claims import STALE_S
from offline_rl.suite.plan import Cell
from offline_rl.suite.worker import BUSY
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json
from offline_rl.utils.hardware import num_cores
from offline_rl.utils.signals import handle_signals
from offline_rl.utils.text import format_duration
from offline_rl.version import __version__

TRIES = 2
LOSSES = 10  # maximum number of restarts of a cell whose machine was lost
NICENESS = 19  # of the workers; other work on the machine has priority
POLL_S = 2.0  # time between reads of the run folders
MAX_BARS = 16  # maximum number of progress bars of cells
MIN_FREE_BYTES = 256 << 20  # free disk space below which no cell is started


@dataclass(frozen=True)
class Request:
    """Request to run a cell: the standard input of its process (`offline_rl.suite.worker`)."""

    id: str
    keys: dict[str, Any]  # options of `train`, or of `finetune` if there is a `run`
    queue: str  # absolute path of <out>/queue
    niceness: int
    wait_s: float = 0.0  # how long to wait for another process that runs the cell
    stale_s: float = STALE_S  # a claim without a heartbeat for this long is void
    follows_parent: bool = False  # stop, with a checkpoint, when the parent process ends
    version: str = __version__  # of offline_rl, which must be equal on all machines

    def to_json(self) -> str:
        """Return the request as JSON in one line."""
        return json.dumps(asdict(self))


class Ended(NamedTuple):
    """The end of a cell's process."""

    code: int  # exit code, or minus the number of the signal that ended it
    stderr: str
    lost: bool = False  # its machine was lost; this does not count as an attempt


class Attempt(Protocol):
    """Protocol of a started process of a cell, on any machine."""

    def wait(self) -> Ended:
        """Wait for the end of the process."""

    def stop(self) -> None:
        """Ask the process to write a checkpoint and end."""


Start = Callable[[Request], Attempt]


class LocalAttempt:
    """A process of a cell on this machine."""

    def __init__(self, request: Request, threads: int) -> None:
        """Start the process. threads: for matrix multiplications. Raises OSError."""
        self.request = request
        self.process = subprocess.Popen(
            [sys.executable, "-m", "offline_rl.suite.worker"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C does not reach the process
            env={"OMP_NUM_THREADS": str(threads)} | os.environ,
        )

    def wait(self) -> Ended:
        """Wait for the end of the process."""
        _, stderr = self.process.communicate(self.request.to_json())
        return Ended(self.process.returncode, stderr)

    def stop(self) -> None:
        """Ask the process to write a checkpoint and end."""
        self.process.terminate()  # not SIGINT, which a shell's background processes ignore


@dataclass
class Progress:
    """State that the workers share. All fields are written under `lock`."""

    left: list[Cell]
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: dict[str, Cell] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # label of a cell -> error
    stopped: str | None = None  # reason why no more cells are started


def run_plan(
    plan: Sequence[Cell],
    out: Path,
    workers: int,
    start: Start | None = None,
    *,
    show: bool = True,
) -> dict[str, str]:
    """Run the unfinished cells of `plan`; return label -> error of the cells that failed.

    workers: number of cells that run at the same time. start: starts the process of a cell;
    default: on this machine. Raises UserError if the disk is full, and KeyboardInterrupt after
    Ctrl-C or SIGTERM once the cells' processes have stopped.
    """
    make_folder(out / "queue")
    start = start or partial(LocalAttempt, threads=max(1, num_cores() // workers))
    progress = Progress([cell for cell in plan if not cell.finished])
    workers = max(1, min(workers, len(progress.left)))
    pool = [threading.Thread(target=_worker, args=(progress, out, start)) for _ in range(workers)]
    for thread in pool:
        thread.start()
    try:
        with (
            handle_signals([signal.SIGTERM], signal.default_int_handler),
            contextlib.closing(Display(plan, workers, show)) as display,
        ):
            last_poll = 0.0
            while any(thread.is_alive() for thread in pool):
                if time.monotonic() - last_poll >= POLL_S:
                    display.update(progress)
                    last_poll = time.monotonic()
                # thread.join() would mark the thread as ended after Ctrl-C
                time.sleep(POLL_S / 10)
            display.update(progress)
    except BaseException:
        with progress.lock:
            progress.stopped = "interrupted"
            for attempt in progress.attempts.values():
                attempt.stop()
        raise
    finally:
        for thread in pool:
            thread.join()
    if progress.stopped is not None:
        raise UserError(progress.stopped)
    return progress.failed


def _worker(progress: Progress, out: Path, start: Start) -> None:
    """Run cells until none remains. Wait if all of these build on unfinished cells."""
    while True:
        with progress.lock:
            if shutil.disk_usage(out).free < MIN_FREE_BYTES and progress.stopped is None:
                progress.stopped = (
                    f"The disk of {out} is full. Free some space and repeat the command."
                )
            if progress.stopped is not None or not progress.left:
                return
            cell = next((c for c in progress.left if c.can_start), None)
            if cell is None and not progress.running:
                return  # the cells that the remaining ones build on failed or run elsewhere
            if cell is not None:
                progress.left.remove(cell)
                progress.running[cell.id] = cell
        if cell is None:
            time.sleep(POLL_S)
            continue
        try:
            error = _run(cell, progress, out, start)
        finally:
            with progress.lock:
                del progress.running[cell.id]
        if error is not None and progress.stopped is None:
            with progress.lock:
                progress.failed[cell.label] = error
            write_json(out / "queue" / f"{cell.id}.json", {"keys": cell.keys, "error": error})


def request_of(cell: Cell, out: Path) -> Request:
    """Return the request to run a cell of the plan in `out`."""
    return Request(cell.id, cell.keys, str((out / "queue").absolute()), NICENESS)


def _run(cell: Cell, progress: Progress, out: Path, start: Start) -> str | None:
    """Run a cell, and repeat it once if it fails. Return the error, or None.

    None is also returned if another command runs the cell.
    """
    request, tries, losses = request_of(cell, out), 0, 0
    while True:
        with progress.lock:
            if progress.stopped is not None:
                return progress.stopped
            try:
                attempt = start(request)
            except OSError as fault:  # for example, out of memory
                return f"no process could be started: {fault.strerror}"
            progress.attempts[cell.id] = attempt
        end = attempt.wait()
        with progress.lock:
            del progress.attempts[cell.id]
        if end.code in (0, BUSY):
            return None
        lines = end.stderr.strip().splitlines() or [f"ended by signal {-end.code}"]
        tries, losses = tries + (not end.lost), losses + end.lost
        if end.code == 2 or tries == TRIES or losses == LOSSES:  # 2: a UserError, which would recur
            return lines[-1]
        # child processes of the ended one may still run, e.g. on an unreachable machine
        request = replace(request, wait_s=request.stale_s + 30)


class Display:
    """Progress bars of the plan and of each worker; without a terminal, a line per minute."""

    def __init__(self, plan: Sequence[Cell], workers: int, show: bool) -> None:
        self.plan, self.show = plan, show
        self.finished = sum(cell.finished for cell in plan)
        quiet = None if show else True
        self.total_bar = tqdm(
            total=len(plan), initial=self.finished, unit="cell", disable=quiet, dynamic_ncols=True
        )
        shape: dict[str, Any] = {
            "unit": "update",
            "disable": quiet,
            "dynamic_ncols": True,
            "leave": False,
        }
        self.workers, count = workers, min(workers, MAX_BARS)
        self.bars = [tqdm(position=k + 1, total=1, **shape) for k in range(count)]
        self.shown: list[str | None] = [None] * count
        self.last_line = 0.0
        self.readings: dict[str, list[tuple[float, int]]] = {}  # cell id -> (time, updates done)

    def update(self, progress: Progress) -> None:
        """Read the progress of the cells from the run folders, and show it."""
        with progress.lock:
            running, left = dict(progress.running), len(progress.left)
        finished = sum(cell.finished for cell in self.plan)
        self.total_bar.update(finished - self.finished)
        self.finished = finished
        self.shown = [name if name in running else None for name in self.shown]
        for name in running:
            if name not in self.shown and None in self.shown:
                free = self.shown.index(None)
                self.shown[free] = name
                self.bars[free].reset(running[name].total)
                self.bars[free].set_description(running[name].label)
        for bar, shown in zip(self.bars, self.shown, strict=True):
            if shown is not None:
                done, readings = running[shown].count_done(), self.readings.setdefault(shown, [])
                bar.update(done - bar.n)
                if readings and done < readings[-1][1]:  # the cell resumed from its checkpoint
                    readings.clear()
                if not readings or done > readings[-1][1]:
                    readings.append((time.monotonic(), done))
        eta = self.eta()
        self.total_bar.set_postfix_str(eta)
        if self.show and self.total_bar.disable and time.monotonic() - self.last_line >= 60:
            self.last_line = time.monotonic()
            cells = ", ".join(
                f"{c.label} {c.count_done():,} of {c.total:,}" for c in running.values()
            )
            print(
                f"{finished} of {len(self.plan)} cells, {left} waiting; {cells}; {eta}", flush=True
            )

    def eta(self) -> str:
        """Return the remaining time as text: the estimates of the cells times the measured pace."""
        rest = [c for c in self.plan if not c.finished]
        if not rest or any(c.seconds is None for c in rest):
            return "" if not rest else "time left unknown"
        seconds = sum(c.seconds_left or 0 for c in rest)
        return f"about {format_duration(self.pace() * seconds / self.workers)} left"

    def pace(self) -> float:
        """Return the measured time divided by the estimated time; 1 before any measurement.

        A cell is measured from the second read of its progress, because the time before the first
        one includes compilation or earlier work. It counts once 2 % of it is measured. Evaluations
        and pauses are included.
        """
        elapsed = estimated = 0.0
        for cell in self.plan:
            if len(readings := self.readings.get(cell.id, [])) > 2 and cell.seconds:
                (start, first), (end, last) = readings[1], readings[-1]
                if (share := (last - first) / cell.total) >= 0.02:
                    elapsed += end - start
                    estimated += cell.seconds * share
        return elapsed / estimated if estimated else 1.0

    def close(self) -> None:
        """Close all bars. The bar of the plan stays visible."""
        for bar in [*self.bars, self.total_bar]:
            bar.close()

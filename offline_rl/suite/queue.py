"""Execution of a plan: its cells run in low-priority processes, with one retry.

    <out>/plan.json              the cells, in order of importance
    <out>/queue/<id>.lock        locked by the command and its process while a cell runs
    <out>/queue/<id>.json        the error of a cell that failed

Several commands, also on machines that share the folder, can execute one plan. Finished cells are
skipped. Interrupted cells resume from their last checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from offline_rl.suite.plan import Cell
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json
from offline_rl.utils.signals import handle_signals
from offline_rl.utils.text import format_duration

TRIES = 2
NICENESS = 19  # of the workers; other work on the machine has priority
POLL_S = 2.0  # time between two readings of the run folders
MIN_FREE_BYTES = 256 << 20  # free disk space below which no cell is started


@dataclass
class Progress:
    """State that the workers share. All fields are written under `lock`."""

    left: list[Cell]
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: dict[str, Cell] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # label of a cell -> error
    stopped: str | None = None  # reason why no more cells are started


def run_plan(plan: Sequence[Cell], out: Path, workers: int, *, show: bool = True) -> dict[str, str]:
    """Run the unfinished cells of `plan`; return label -> error of the cells that failed.

    Raises UserError if the disk is full, and KeyboardInterrupt after Ctrl-C or SIGTERM once the
    workers have stopped.
    """
    make_folder(out / "queue")
    progress = Progress([cell for cell in plan if not cell.finished])
    threads = [
        threading.Thread(target=_worker, args=(progress, out, workers)) for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        with (
            handle_signals([signal.SIGTERM], signal.default_int_handler),
            contextlib.closing(Display(plan, workers, show)) as display,
        ):
            last_poll = 0.0
            while any(thread.is_alive() for thread in threads):
                if time.monotonic() - last_poll >= POLL_S:
                    display.update(progress)
                    last_poll = time.monotonic()
                # not thread.join(): Ctrl-C during join would mark the thread as ended
                time.sleep(POLL_S / 10)
            display.update(progress)
    except BaseException:
        with progress.lock:
            progress.stopped = "interrupted"
            for process in progress.processes.values():
                process.terminate()  # not SIGINT, which a shell's background processes ignore
        raise
    finally:
        for thread in threads:
            thread.join()
    if progress.stopped is not None:
        raise UserError(progress.stopped)
    return progress.failed


def _worker(progress: Progress, out: Path, workers: int) -> None:
    """Run cells until none is left. If none can start, wait for the cells that they build on."""
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
                return  # the cells that the rest builds on failed, or another command runs them
            if cell is not None:
                progress.left.remove(cell)
                progress.running[cell.id] = cell
        if cell is None:
            time.sleep(POLL_S)
            continue
        try:
            with lock_file(out / "queue" / f"{cell.id}.lock") as lock:
                if lock is None:
                    continue
                error = _run(cell, progress, lock, workers)
        finally:
            with progress.lock:
                del progress.running[cell.id]
        path = out / "queue" / f"{cell.id}.json"
        if error is None:
            path.unlink(missing_ok=True)
        elif progress.stopped is None:
            with progress.lock:
                progress.failed[cell.label] = error
            write_json(path, {"keys": cell.keys, "error": error})


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[IO[str] | None]:
    """Open and lock the file; None if another process holds the lock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield file


def _run(cell: Cell, progress: Progress, lock: IO[str], workers: int) -> str | None:
    """Run a cell, and repeat it once if it fails. Return the error, or None."""
    error = None
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    for _ in range(TRIES):
        with progress.lock:
            if progress.stopped is not None:
                return progress.stopped
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "offline_rl.suite.worker", str(NICENESS)],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,  # the terminal's Ctrl-C does not reach the process
                    env={"OMP_NUM_THREADS": threads} | os.environ,
                    pass_fds=(lock.fileno(),),  # the lock is held until both processes end
                )
            except OSError as fault:  # for example, out of memory
                return f"no process could be started: {fault.strerror}"
            progress.processes[cell.id] = process
        _, stderr = process.communicate(json.dumps(cell.keys))
        with progress.lock:
            del progress.processes[cell.id]
        if process.returncode == 0:
            return None
        lines = stderr.strip().splitlines() or [f"ended by signal {-process.returncode}"]
        error = lines[-1]
        if process.returncode == 2:  # a UserError would occur again
            return error
    return error


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
        self.bars = [tqdm(position=k + 1, total=1, **shape) for k in range(workers)]
        self.shown: list[str | None] = [None] * workers
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
            if name not in self.shown:
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
        """Return the remaining time as text: the cells' estimates times the measured pace."""
        rest = [c for c in self.plan if not c.finished]
        if not rest or any(c.seconds is None for c in rest):
            return "" if not rest else "time left unknown"
        seconds = sum(c.seconds_left or 0 for c in rest)
        return f"about {format_duration(self.pace() * seconds / len(self.bars))} left"

    def pace(self) -> float:
        """Return the measured time divided by the estimated time; 1 before any measurement.

        A cell is measured from its second reading on: before the first one it compiles, or it had
        already started. It counts once 2 % of it is measured. Evaluations and pauses are included.
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

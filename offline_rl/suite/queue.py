"""Works off a plan: cells in processes of low priority, each taken by one worker, one retry.

    <out>/plan.json              the entries, in order of worth
    <out>/queue/<id>.lock        held while a process works on the entry, by that process too
    <out>/queue/<id>.json        how an entry that failed did so

Several commands, on machines that share the folder, may work on one plan. What is finished is
skipped; what a kill interrupted goes on from its checkpoint.
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
from offline_rl.utils.signals import handled
from offline_rl.utils.text import duration

TRIES = 2
NICENESS = 19  # of the workers: whoever else works on this machine comes first
LOOK_S = 2.0  # seconds between two looks at what the workers have done
LEAST_FREE = 256 << 20  # bytes of disk below which nothing more is begun


@dataclass
class Progress:
    """What the workers share; every field is written under `lock`."""

    left: list[Cell]
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: dict[str, Cell] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # a cell's label -> why
    stopped: str | None = None  # why nothing more is begun


def work_off(plan: Sequence[Cell], out: Path, workers: int, *, show: bool = True) -> dict[str, str]:
    """Runs what is left of `plan`; -> the labels of cells that failed, and why.

    Raises UserError where the disk is full; KeyboardInterrupt after Ctrl-C or SIGTERM, once the
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
            handled([signal.SIGTERM], signal.default_int_handler),
            contextlib.closing(Display(plan, workers, show)) as display,
        ):
            looked = 0.0
            while any(thread.is_alive() for thread in threads):
                if time.monotonic() - looked >= LOOK_S:
                    display.update(progress)
                    looked = time.monotonic()
                time.sleep(LOOK_S / 10)  # Ctrl-C in a thread's join would count it as ended
            display.update(progress)
    except BaseException:
        with progress.lock:
            progress.stopped = "interrupted"
            for process in progress.processes.values():
                process.terminate()  # what a shell began in the background ignores SIGINT
        raise
    finally:
        for thread in threads:
            thread.join()
    if progress.stopped is not None:
        raise UserError(progress.stopped)
    return progress.failed


def _worker(progress: Progress, out: Path, workers: int) -> None:
    """Takes entries until none is left: the first that is ready, or waits for one to become so."""
    while True:
        with progress.lock:
            if shutil.disk_usage(out).free < LEAST_FREE and progress.stopped is None:
                progress.stopped = f"{out}: the disk is full; make room and give the command again"
            if progress.stopped is not None or not progress.left:
                return
            cell = next((c for c in progress.left if c.ready), None)
            if cell is None and not progress.running:
                return  # what they go on from has failed, or is another command's
            if cell is not None:
                progress.left.remove(cell)
                progress.running[cell.id] = cell
        if cell is None:
            time.sleep(LOOK_S)
            continue
        try:
            with taken(out / "queue" / f"{cell.id}.lock") as lock:
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
def taken(path: Path) -> Iterator[IO[str] | None]:
    """The open, locked file; None where somebody else has it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield file


def _run(cell: Cell, progress: Progress, lock: IO[str], workers: int) -> str | None:
    """One cell, once more where it fails; -> why it failed, None where it did not."""
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
                    start_new_session=True,  # Ctrl-C reaches it through us, once
                    env={"OMP_NUM_THREADS": threads} | os.environ,
                    pass_fds=(lock.fileno(),),  # the entry stays taken as long as either lives
                )
            except OSError as fault:  # such as no memory
                return f"no process could be begun: {fault.strerror}"
            progress.processes[cell.id] = process
        _, said = process.communicate(json.dumps(cell.keys))
        with progress.lock:
            del progress.processes[cell.id]
        if process.returncode == 0:
            return None
        lines = said.strip().splitlines() or [f"ended by signal {-process.returncode}"]
        error = lines[-1]
        if process.returncode == 2:  # a user's mistake does not go away by itself
            return error
    return error


class Display:
    """A bar over the whole plan and one for each worker; a line a minute without a terminal."""

    def __init__(self, plan: Sequence[Cell], workers: int, show: bool) -> None:
        self.plan, self.show = plan, show
        self.finished = sum(cell.finished for cell in plan)
        quiet = None if show else True
        self.whole = tqdm(
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
        self.said = 0.0
        self.looks: dict[str, list[tuple[float, int]]] = {}  # a cell's id -> when, how far

    def update(self, progress: Progress) -> None:
        """Looks at the run folders."""
        with progress.lock:
            running, left = dict(progress.running), len(progress.left)
        finished = sum(cell.finished for cell in self.plan)
        self.whole.update(finished - self.finished)
        self.finished = finished
        self.shown = [name if name in running else None for name in self.shown]
        for name in running:
            if name not in self.shown:
                place = self.shown.index(None)
                self.shown[place] = name
                self.bars[place].reset(running[name].total)
                self.bars[place].set_description(running[name].label)
        for bar, shown in zip(self.bars, self.shown, strict=True):
            if shown is not None:
                done, looks = running[shown].done(), self.looks.setdefault(shown, [])
                bar.update(done - bar.n)
                if looks and done < looks[-1][1]:  # killed, and goes on from its checkpoint
                    looks.clear()
                if not looks or done > looks[-1][1]:
                    looks.append((time.monotonic(), done))
        eta = self.eta()
        self.whole.set_postfix_str(eta)
        if self.show and self.whole.disable and time.monotonic() - self.said >= 60:
            self.said = time.monotonic()
            now = ", ".join(f"{c.label} {c.done():,} of {c.total:,}" for c in running.values())
            print(f"{finished} of {len(self.plan)} cells, {left} waiting; {now}; {eta}", flush=True)

    def eta(self) -> str:
        """What is left, by the cells' expected costs and the pace; unknown where one has none."""
        rest = [c for c in self.plan if not c.finished]
        if not rest or any(c.seconds is None for c in rest):
            return "" if not rest else "time left unknown"
        seconds = sum(c.seconds_left or 0 for c in rest)
        return f"about {duration(self.pace() * seconds / len(self.bars))} left"

    def pace(self) -> float:
        """Seconds on the clock for one of expected cost, of what was done before our eyes.

        From each cell's second look on: before the first it compiled, or was on its way already.
        A cell counts once a fiftieth of it was seen, evaluations and pauses included.
        """
        clock = cost = 0.0
        for cell in self.plan:
            if len(looks := self.looks.get(cell.id, [])) > 2 and cell.seconds:
                (began, first), (now, last) = looks[1], looks[-1]
                if (seen := (last - first) / cell.total) >= 0.02:
                    clock += now - began
                    cost += cell.seconds * seen
        return clock / cost if cost else 1.0

    def close(self) -> None:
        """Leaves the overall bar."""
        for bar in [*self.bars, self.whole]:
            bar.close()

"""Claims: exclusive rights to run a cell, across machines that share the folder.

    <folder>/<cell>.lock        locked by the process that runs the cell
    <folder>/<cell>.<n>.json    the n-th claim: machine and process. Its mtime is the last heartbeat

The lock excludes other processes of the same machine. On many shared file systems, a lock has no
effect on other machines, so a process also claims the cell: it creates the claim with the next
number. Only one process can create it. It may do so if the newest claim is released, has had no
heartbeat for `stale_s`, or belongs to this machine. In the last case, the free lock shows that the
claim's process has ended. Claims are never removed, so two machines that read the same old claim
cannot both replace it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from offline_rl.utils.files import lock_now, make_folder, write_json

HEARTBEAT_S = 10.0  # time between two heartbeats
STALE_S = 120.0  # a process on another machine without a heartbeat for this long counts as ended
PROBE_S = 0.05  # a lock that another process only tests is free after this time
CHECK_S = 0.5  # time between two attempts to claim a cell, and two checks of the parent process


class Claim(NamedTuple):
    """The newest claim of a cell."""

    path: Path
    number: int
    content: dict[str, Any]  # empty while its process writes it
    beat: float  # time of the last heartbeat, by the clock of the file system


@contextlib.contextmanager
def claim(
    folder: Path,
    cell: str,
    *,
    wait_s: float = 0.0,
    stale_s: float = STALE_S,
    lost: Callable[[], object] = lambda: None,
    check: Callable[[], object] = lambda: None,
) -> Iterator[bool]:
    """Claim a cell for the duration of the block. Yield False if another process runs it.

    wait_s: how long to wait for that process to end. lost: called in another thread if this process
    was suspended for so long that another one has taken the cell. check: called there repeatedly.
    """
    make_folder(folder)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        while (path := _try_claim(folder, cell, stale_s, stack)) is None:
            if time.monotonic() >= deadline:
                yield False
                return
            time.sleep(CHECK_S)
        done = threading.Event()

        def beat() -> None:
            last = time.monotonic()
            while not done.wait(CHECK_S):
                check()
                if time.monotonic() - last >= min(HEARTBEAT_S, stale_s / 4):
                    last = time.monotonic()
                    with contextlib.suppress(OSError):  # temporary failure of the file system
                        if _claim_number(newest_path(folder, cell)) > _claim_number(path):
                            lost()
                        os.utime(path)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield True
        finally:
            done.set()
            thread.join()
            write_json(path, {**describe_process(folder), "released": True})


def _try_claim(folder: Path, cell: str, stale_s: float, stack: contextlib.ExitStack) -> Path | None:
    """Lock and claim the cell. Return the claim's file, or None if another process has the cell."""
    with contextlib.ExitStack() as opened:
        file = opened.enter_context((folder / f"{cell}.lock").open("a"))
        locked = lock_now(file)
        if locked is False:
            time.sleep(PROBE_S)  # `holder` may be testing the lock
            locked = lock_now(file)
        if locked is False:
            return None
        os.utime(file.fileno())
        now = os.fstat(file.fileno()).st_mtime  # by the clock of the file system
        number = 0
        if (newest := read_claim(folder, cell)) is not None:
            ended = locked is True and newest.content.get("machine") == _machine(folder)
            if not (newest.content.get("released") or ended or now - newest.beat > stale_s):
                return None
            number = newest.number
        path = folder / f"{cell}.{number + 1}.json"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        with os.fdopen(handle, "w") as claimed:
            json.dump(describe_process(folder), claimed)
        stack.enter_context(opened.pop_all())
        return path


def read_claim(folder: Path, cell: str) -> Claim | None:
    """Return the newest claim of a cell; None if it was never claimed."""
    path = newest_path(folder, cell)
    if path is None:
        return None
    with path.open() as file:  # opening the file first makes NFS read its time from the server
        beat = os.fstat(file.fileno()).st_mtime
        try:
            content = json.load(file)
        except ValueError:
            content = {}
    return Claim(path, _claim_number(path), content if isinstance(content, dict) else {}, beat)


def newest_path(folder: Path, cell: str) -> Path | None:
    """Return the file of the newest claim of a cell; None if it was never claimed."""
    return max(folder.glob(f"{cell}.*.json"), key=_claim_number, default=None)


def _claim_number(path: Path | None) -> int:
    """Return the number in the name of a claim's file."""
    number = path.name.split(".")[-2] if path is not None else ""
    return int(number) if number.isdecimal() else 0


def holder(folder: Path, cell: str) -> str | None:
    """Return the host that runs a cell; None if no process does. Nothing is written."""
    try:
        newest = read_claim(folder, cell)
        if newest is None or newest.content.get("released") or time.time() - newest.beat > STALE_S:
            return None
        if newest.content.get("machine") == _machine(folder):
            with (folder / f"{cell}.lock").open() as file:
                if lock_now(file):
                    return None
    except OSError:
        return None
    return str(newest.content.get("host", "another machine"))


def describe_process(folder: Path) -> dict[str, Any]:
    """Return the description of this process that a claim stores."""
    return {"host": platform.node(), "pid": os.getpid(), "machine": _machine(folder)}


def _machine(folder: Path) -> str:
    """Return an identifier of this machine and its mount of the folder; locks work within it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = boot.read_text().strip() if boot.is_file() else platform.node()
    return f"{name} {folder.stat().st_dev}"

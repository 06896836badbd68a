"""Claims of cells: one process at a time, also if locks do not reach the other machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offline_rl.suite import claims
from offline_rl.suite.claims import STALE_S, claim, holder, newest_path, read_claim
from offline_rl.utils.files import lock_now

CELL = "0123456789ab"
HOLD = (
    "import sys, time; from pathlib import Path; from offline_rl.suite.claims import claim\n"
    "with claim(Path(sys.argv[1]), sys.argv[2]) as claimed:\n"
    "    print(claimed, flush=True); sys.stdin.read()"
)


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that claims the cell until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(folder), CELL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def write_claim(folder: Path, number: int, machine: str, age_s: float, **more: object) -> Path:
    """Write a claim of another machine, with a heartbeat so many seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{CELL}.{number}.json"
    path.write_text(json.dumps({"host": machine, "pid": 1, "machine": machine, **more}))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_cell_belongs_to_one_process_until_that_ends(tmp_path: Path) -> None:
    """A killed process of this machine is replaced immediately, and its claim stays."""
    with another_process(tmp_path) as process:
        with claim(tmp_path, CELL) as claimed:
            assert not claimed
        assert holder(tmp_path, CELL) == os.uname().nodename
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert holder(tmp_path, CELL) is None
    with claim(tmp_path, CELL) as claimed:
        assert claimed
        assert holder(tmp_path, CELL) is not None
    assert read_claim(tmp_path, CELL).number == 2
    assert holder(tmp_path, CELL) is None  # it is released
    assert not read_claim(tmp_path, "of another cell")


@pytest.mark.parametrize(
    ("age_s", "more", "claimed"),
    [
        (STALE_S / 2, {}, False),
        (STALE_S * 2, {}, True),
        (0.0, {"released": True}, True),
        (-STALE_S * 2, {}, False),  # the other machine's clock is ahead
    ],
)
def test_the_claim_of_another_machine_holds_while_it_has_a_heartbeat(
    tmp_path: Path, age_s: float, more: dict[str, bool], claimed: bool
) -> None:
    write_claim(tmp_path, 1, "there", age_s, **more)
    assert (holder(tmp_path, CELL) is None) == claimed
    with claim(tmp_path, CELL) as result:
        assert result == claimed
    assert read_claim(tmp_path, CELL).number == 1 + claimed


def test_of_several_machines_that_find_a_stale_claim_one_gets_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here locks exclude nobody, and all machines look before any of them claims the cell."""
    write_claim(tmp_path, 9, "there", 2 * STALE_S)
    count, results, barrier = 8, [], threading.Barrier(8)
    read = claims.read_claim

    def read_together(*arguments: object) -> object:
        found = read(*arguments)
        barrier.wait()
        return found

    def take() -> None:
        with claim(tmp_path, CELL) as claimed:
            results.append(claimed)
            barrier.wait()

    monkeypatch.setattr(claims, "lock_now", lambda file: None)
    monkeypatch.setattr(claims, "read_claim", read_together)
    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * (count - 1) + [True]
    assert newest_path(tmp_path, CELL).name == f"{CELL}.10.json"


def test_a_heartbeat_keeps_the_claim_and_notices_that_it_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHECK_S", 0.01)
    lost = threading.Event()
    with claim(tmp_path, CELL, stale_s=0.2, lost=lost.set) as claimed:
        assert claimed
        path = newest_path(tmp_path, CELL)
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - path.stat().st_mtime < 10
        assert not lost.is_set()
        write_claim(tmp_path, 2, "there", 0.0)
        assert lost.wait(10)


def test_a_lock_that_is_only_tested_does_not_refuse_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = open(tmp_path / "cell.lock", "a")  # noqa: SIM115
    assert lock_now(tested)
    monkeypatch.setattr(claims.time, "sleep", lambda _: tested.close())
    with claim(tmp_path, "cell") as is_claimed:
        assert is_claimed


def test_a_process_can_wait_for_the_cell(tmp_path: Path) -> None:
    with another_process(tmp_path) as process:
        threading.Timer(0.2, process.stdin.close).start()
        with claim(tmp_path, CELL, wait_s=60.0) as claimed:
            assert claimed

"""Runs of a suite at published lengths, as many as fit into the time that is left."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from offline_rl.suite.plan import Cell, read_plan
from offline_rl.utils.errors import UserError
from offline_rl.utils.text import table

MIN_S = 30.0  # in less time, a run would hardly start
STOP_S = 20.0  # time in which an interrupted run saves a checkpoint
COMMAND = """
import sys
from offline_rl.suite.benchmark import benchmark
from offline_rl.utils.signals import interruptible

with interruptible():
    benchmark(suite=sys.argv[1], workers=1)
"""
INTERRUPTED = (-signal.SIGINT, 130)  # exit statuses


def run(suite: str, end: float, command: str = COMMAND) -> list[str]:
    """Run a suite until `end`, and return paragraphs on its runs.

    The next call continues the suite, because its runs are stored in runs/<suite>. end: reading of
    time.monotonic().
    """
    out = Path("runs") / Path(suite).stem
    if end - time.monotonic() < MIN_S + STOP_S:
        return [f"There was no time left for the runs of suite={suite}. Use more minutes."]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    process = subprocess.Popen(
        [sys.executable, "-c", command, suite], stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = process.communicate(timeout=end - STOP_S - time.monotonic())
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
    failed = process.returncode not in (0, *INTERRUPTED)
    last = errors.strip().splitlines()[-1:] if failed else []
    return [*describe(suite, out), *last]


def describe(suite: str, out: Path) -> list[str]:
    """Return paragraphs on the runs of a suite that have started."""
    try:
        cells = read_plan(out / "plan.json")
    except UserError:
        return [f"No run of suite={suite} has started."]
    body = [
        [cell.label, str(len(cell.folders)), f"{done:,}", f"{cell.total:,}", score(cell)]
        for cell in cells
        if (done := cell.count_done())
    ]
    text = f"{sum(cell.finished for cell in cells)} of {len(cells)} runs of suite={suite} are "
    text += (
        "finished. The next call continues them. Scores: mean and standard deviation over seeds."
    )
    header = ["run", "seeds", "done", "updates", "score"]
    return [text] + [table(header, body, markdown=True)] * bool(body)


def score(cell: Cell) -> str:
    """Return the score of a finished run as text; else an empty text."""
    outcomes = [folder.outcome() for folder in cell.folders] if cell.finished else []
    scores = [value for outcome in outcomes if (value := outcome.get("score")) is not None]
    if not scores:
        return ""
    return f"{statistics.mean(scores):.1f} ± {statistics.pstdev(scores):.1f}"

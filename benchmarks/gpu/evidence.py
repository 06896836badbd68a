"""Runs of a suite at published lengths, as many as fit into the time that is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from offline_rl.reporting.report import report
from offline_rl.suite.plan import read_plan
from offline_rl.utils.errors import UserError
from offline_rl.utils.text import table

MIN_S = 30.0  # in less time, a run would hardly start
STOP_S = 20.0  # time in which an interrupted run saves a checkpoint
COMMAND = "import sys; from offline_rl.cli.main import main; sys.exit(main(sys.argv[1:]))"


def run(suite: str, end: float, command: str = COMMAND) -> list[str]:
    """Run a suite until `end`, and return paragraphs on its runs.

    The next call continues the suite, because its runs are stored in runs/<suite>. end: reading of
    time.monotonic().
    """
    out = Path("runs") / Path(suite).stem
    if end - time.monotonic() < MIN_S + STOP_S:
        return [f"There was no time left for the runs of suite={suite}. Use more minutes."]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    keys = ["benchmark", f"suite={suite}", "workers=1"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *keys], stderr=subprocess.PIPE, text=True
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
    failed = process.returncode not in (0, 130)
    last = errors.strip().splitlines()[-1:] if failed else []
    return [*describe(suite, out), *last]


def describe(suite: str, out: Path) -> list[str]:
    """Return paragraphs on the runs of a suite that have started."""
    try:
        cells = read_plan(out / "plan.json")
    except UserError:
        return [f"No run of suite={suite} has started."]
    started = [(cell, done) for cell in cells if (done := cell.count_done())]
    body = [
        [cell.label, str(len(cell.folders)), f"{done:,}", f"{cell.total:,}"]
        for cell, done in started
    ]
    text = f"{sum(cell.finished for cell in cells)} of {len(cells)} runs of suite={suite} are "
    text += "finished. The next call continues them."
    parts = [text] + [table(["run", "seeds", "done", "updates"], body, markdown=True)] * bool(body)
    finished = [cell.run for cell, _ in started if cell.finished]
    return parts + ([f"```\n{report(finished, out=str(out))}\n```"] if finished else [])

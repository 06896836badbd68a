"""Failure matrix: faults that the simulated hardware can have, injected at random times.

    python -m benchmarks.robot faults [repeats=50] [rows=[5,20]] [on=clock|processes]

Rows of `logic.py` run on one simulated clock and take a minute each. Rows of `processes.py` start a
complete `offline-rl robot run` for each repeat, on this machine's clock, and take several minutes
each. New results replace the results of the same rows. The results of other rows stay.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.robot import RESULTS, bundles, logic, processes
from offline_rl.utils.files import write_json
from offline_rl.utils.hardware import current_commit, describe_machine
from real_robot.control.session import MEMORY


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `faults`."""

    repeats: int = 50  # repeats of each fault
    rows: list = field(default_factory=list)  # numbers or faults of rows; default: all rows
    # clock: rows of `logic.py`; processes: rows of `processes.py`
    on: Literal["both", "clock", "processes"] = "both"


def measure(options: Options) -> dict[str, Any]:
    selected = [str(row) for row in options.rows]
    results = dict[str, list[dict[str, Any]]]()
    file = RESULTS / "faults.json"
    previous = json.loads(file.read_text()) if file.exists() else {}
    for where, rows, run in (
        ("clock", logic.ROWS, logic.run),
        ("processes", processes.ROWS, processes.run_row),
    ):
        by_fault = {row["fault"]: row for row in previous.get(where, [])}
        for row in rows:
            if options.on in ("both", where) and (
                not selected or {row.number, row.fault} & {*selected}
            ):
                with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                    by_fault[row.fault] = run(row, options.repeats, Path(folder))
                by_fault[row.fault]["commit"] = current_commit()
                print(by_fault[row.fault], file=sys.stderr, flush=True)
                # Save after each row, because a row of processes takes minutes.
                results[where] = [by_fault[each.fault] for each in rows if each.fault in by_fault]
                write_json(file, previous | results | {"machine": describe_machine()})
        results[where] = [by_fault[each.fault] for each in rows if each.fault in by_fault]
    return results | {
        "bundles": bundles.count_refused(options.repeats),
        "machine": describe_machine(),
    }

"""The failure matrix: every fault that this hardware can have, injected at random moments.

    python -m benchmarks.robot faults [repeats=50] [rows=[5,20]] [on=clock|processes]

Rows of `logic.py` are on one simulated clock and take a minute each; those of `processes.py` start
a whole `offline-rl robot run` for each repeat, on this machine's clock, and take several each. What
is measured replaces those rows of an older result; the others stay.
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
    """What `faults` takes."""

    repeats: int = 50  # of each fault
    rows: list = field(default_factory=list)  # by number or fault; default: all
    on: Literal["both", "clock", "processes"] = "both"


def measure(options: Options) -> dict[str, Any]:
    wanted = [str(row) for row in options.rows]
    found = dict[str, list[dict[str, Any]]]()
    file = RESULTS / "faults.json"
    old = json.loads(file.read_text()) if file.exists() else {}
    for where, rows, run in (
        ("clock", logic.ROWS, logic.run),
        ("processes", processes.ROWS, processes.run_row),
    ):
        before = {row["fault"]: row for row in old.get(where, [])}
        for row in rows:
            if options.on in ("both", where) and (
                not wanted or {row.number, row.fault} & {*wanted}
            ):
                with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                    before[row.fault] = run(row, options.repeats, Path(folder))
                before[row.fault]["commit"] = current_commit()
                print(before[row.fault], file=sys.stderr, flush=True)
                # at once: a row of processes takes minutes
                found[where] = [before[each.fault] for each in rows if each.fault in before]
                write_json(file, old | found | {"machine": describe_machine()})
        found[where] = [before[each.fault] for each in rows if each.fault in before]
    return found | {"bundles": bundles.refused(options.repeats), "machine": describe_machine()}

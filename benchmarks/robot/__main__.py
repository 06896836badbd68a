"""`python -m benchmarks.robot <what> [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import benchmarks.robot
from benchmarks.figures import status
from benchmarks.robot import RESULTS, page
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json
from offline_rl.utils.options import build, parse_options, unknown

MEASURED = ("first", "task", "faults", "alarms", "soak", "timing", "bus")


def main(arguments: Sequence[str]) -> None:
    """Measures and writes. Raises UserError."""
    what = arguments[0] if arguments else ""
    if what not in (*MEASURED, "page"):
        print(benchmarks.robot.__doc__)
        raise UserError(unknown("measurement", what, (*MEASURED, "page")))
    if what in MEASURED:
        module = import_module(f"benchmarks.robot.{what}")
        options = build(module.Options, parse_options(arguments[1:]))
        make_folder(RESULTS)
        write_json(RESULTS / f"{what}.json", module.measure(options))
    print(page.write())


if __name__ == "__main__":
    sys.exit(status(main, sys.argv[1:]))

"""`python -m benchmarks.robot <what> [key=value …]`."""

from __future__ import annotations

import sys
from importlib import import_module

import benchmarks.robot
from benchmarks.robot import RESULTS, page
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_json
from offline_rl.utils.options import build, parse, unknown

MEASURED = ("task", "faults", "soak", "timing", "bus")


def main(arguments: list[str]) -> int:
    """0: measured and written; 2: the user's mistake."""
    what = arguments[0] if arguments else ""
    try:
        if what not in (*MEASURED, "page"):
            print(benchmarks.robot.__doc__)
            raise UserError(unknown("measurement", what, (*MEASURED, "page")))
        if what in MEASURED:
            module = import_module(f"benchmarks.robot.{what}")
            options = build(module.Options, parse(arguments[1:]))
            RESULTS.mkdir(parents=True, exist_ok=True)
            write_json(RESULTS / f"{what}.json", module.measure(options))
        print(page.write())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

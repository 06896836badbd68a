"""Command line: `python -m benchmarks.robot <measurement> [key=value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import benchmarks.robot
from benchmarks.figures import run_command
from benchmarks.robot import RESULTS, page
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json
from offline_rl.utils.options import build, parse_options, unknown

MEASUREMENTS = ("first", "task", "faults", "alarms", "soak", "timing", "bus")


def main(arguments: Sequence[str]) -> None:
    """Run a measurement and write its results. Raises UserError."""
    name = arguments[0] if arguments else ""
    if name not in (*MEASUREMENTS, "page"):
        print(benchmarks.robot.__doc__)
        raise UserError(unknown("measurement", name, (*MEASUREMENTS, "page")))
    if name in MEASUREMENTS:
        module = import_module(f"benchmarks.robot.{name}")
        options = build(module.Options, parse_options(arguments[1:]))
        make_folder(RESULTS)
        write_json(RESULTS / f"{name}.json", module.measure(options))
    print(page.write())


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

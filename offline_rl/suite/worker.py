"""Process that runs one cell, on any machine. Standard input: a request as JSON.

Its exit code is that of the command line, or BUSY if another process runs the cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from offline_rl.suite.claims import claim
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_json
from offline_rl.utils.signals import handle_signals
from offline_rl.version import __version__

BUSY = 75  # EX_TEMPFAIL of sysexits.h


def main() -> int:
    """Claim and run the cell; return the exit code."""
    request = json.load(sys.stdin)
    lower_priority(request["niceness"])
    queue, cell, check = Path(request["queue"]), request["id"], lambda: None
    failure = queue / f"{cell}.json"
    try:
        if request["version"] != __version__:
            raise UserError(
                f"offline_rl {__version__} is installed on this machine, but version "
                f"{request['version']} started the suite. Install the same version."
            )
        if request["follows_parent"]:
            check = stop_with_parent()
        waiting = {"wait_s": request["wait_s"], "stale_s": request["stale_s"]}
        with (
            handle_signals([signal.SIGTERM], signal.default_int_handler),
            claim(queue / "claims", cell, lost=end_now, check=check, **waiting) as claimed,
        ):
            if not claimed:
                print("another process runs this cell", file=sys.stderr)
                return BUSY
            try:
                run(request["keys"])
            except Exception as error:
                name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                write_json(failure, {"keys": request["keys"], "error": f"{name}{error}"})
                raise
            failure.unlink(missing_ok=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def run(keys: Mapping[str, Any]) -> None:
    """Run the cell. Raises UserError, for example if it builds on an unfinished cell."""
    warnings.filterwarnings("ignore")
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.training.train import distill, finetune, train

    if keys.keys() & {"run", "base"}:
        from offline_rl.suite.plan import Cell

        if not (cell := Cell(dict(keys))).can_start:
            raise UserError(
                f"{cell.label} builds on {cell.previous_run}, which is not finished. Repeat the "
                "command when it is."
            )
    verb = distill if algorithm_class(keys["algorithm"]).mode.start == "teacher" else finetune
    (verb if "run" in keys else train)(show=False, **keys)


def stop_with_parent() -> Callable[[], None]:
    """Return a function that sends SIGTERM to this process if its parent process has ended.

    SIGTERM makes the run write a checkpoint and end.
    """
    parents = [os.getppid()]

    def check() -> None:
        if parents and os.getppid() != parents[0]:
            parents.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    return check


def end_now() -> NoReturn:
    """End without a checkpoint; it would overwrite those of the process that runs the cell."""
    os._exit(BUSY)


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process and, on Linux, of its scheduling group."""
    os.nice(niceness)
    with contextlib.suppress(OSError):  # not Linux, or a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(niceness))


if __name__ == "__main__":
    sys.exit(main())

"""Process that runs one cell. Standard input: the options as JSON. Argument: the niceness."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from offline_rl.utils.errors import UserError
from offline_rl.utils.signals import handle_signals


def main() -> int:
    """Run the cell; return the same exit codes as the command line."""
    lower_priority(int(sys.argv[1]))
    warnings.filterwarnings("ignore")
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.training.train import distill, finetune, train

    keys = json.load(sys.stdin)
    try:
        with handle_signals([signal.SIGTERM], signal.default_int_handler):
            verb = (
                distill if algorithm_class(keys["algorithm"]).mode.start == "teacher" else finetune
            )
            (verb if "run" in keys else train)(show=False, **keys)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process and, on Linux, of its scheduling group."""
    os.nice(niceness)
    with contextlib.suppress(OSError):  # not Linux, or a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(niceness))


if __name__ == "__main__":
    sys.exit(main())

"""One cell in a process of its own: its keys as JSON on standard input; and a niceness."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from offline_rl.utils.errors import UserError
from offline_rl.utils.signals import handled


def main() -> int:
    """Exit codes as the command line's."""
    yielding(int(sys.argv[1]))
    warnings.filterwarnings("ignore")
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.training.finetune import distill, finetune
    from offline_rl.training.train import train

    keys = json.load(sys.stdin)
    try:
        with handled([signal.SIGTERM], signal.default_int_handler):
            on = distill if algorithm_class(keys["algorithm"]).distils else finetune
            (on if "run" in keys else train)(show=False, **keys)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def yielding(niceness: int) -> None:
    """Lets others go first, of other sessions too, which Linux weighs before their processes."""
    os.nice(niceness)
    with contextlib.suppress(OSError):  # no such kernel, or one without these groups
        Path("/proc/self/autogroup").write_text(str(niceness))


if __name__ == "__main__":
    sys.exit(main())

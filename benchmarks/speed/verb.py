"""Command `offline-rl bench`, available in the repository only."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from offline_rl.utils.options import parse_options, takes_options


@takes_options("benchmarks.speed.options:BenchOptions")
def bench(arguments: Sequence[str]) -> None:
    """Compare updates per second of this project, eager PyTorch and other projects, in turns.

    usage: offline-rl bench [algorithms=[td3_bc,iql,cql]] [key=value …]

    Nothing else should run on the machine.
    """
    warnings.filterwarnings("ignore")  # warnings of libraries do not concern the user
    from benchmarks.speed.bench import bench as run

    print(run(**parse_options(arguments)))

"""`offline-rl bench`: a verb of the repository, not of the installed package."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from offline_rl.utils.options import parse, takes


@takes("benchmarks.speed.options:BenchOptions")
def bench(arguments: Sequence[str]) -> None:
    """Updates per second of ours, of eager PyTorch and of the peers, in turns on this machine.

    usage: offline-rl bench [algorithms=[td3_bc,iql,cql]] [key=value …]

    Nothing else should run meanwhile.
    """
    warnings.filterwarnings("ignore")  # libraries' are not the user's business
    from benchmarks.speed.bench import bench as run

    print(run(**parse(arguments)))

"""`offline-rl bench`: a verb of the repository, not of the installed package."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from offline_rl.utils.options import parse


def bench(arguments: Sequence[str]) -> None:
    """Updates per second of ours, of eager PyTorch and of the peers, in turns on this machine.

    usage: offline-rl bench [algorithms=[td3_bc,iql,cql]] [key=value …]

      seeds=[1,8]       seeds side by side            precisions=[fp32,bf16]
      device=auto       blocks=7   seconds=2          each contender has so many turns of so long
      d3rlpy=false      also d3rlpy, installed for python=<interpreter>
      corl=  jax_corl=  unifloral=    also the files of these checkouts, run by python=
      profile=false     also where the time of an update goes
      out=speed         writes <out>-<device>.json, .md and .png

    Nothing else should run meanwhile.
    """
    warnings.filterwarnings("ignore")  # libraries' are not the user's business
    from benchmarks.speed.bench import bench as run

    print(run(**parse(arguments)))

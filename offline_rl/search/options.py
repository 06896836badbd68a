"""Options of `offline-rl search`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from offline_rl.runs.options import IDENTITY, LOCAL, TrainOptions
from offline_rl.utils.options import Amount, Count

SamplerName = Literal["grid", "random", "tpe", "gp", "cmaes", "qmc"]
OWN = ("sampler", "trials", "parallel", "sampler_seed", "objective", "direction")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(TrainOptions):
    """Options of `offline-rl search`, in addition to those of `train`."""

    sampler: SamplerName | None = (
        None  # grid, random, tpe, gp, cmaes or qmc; default: grid; with an interval: random
    )
    trials: Count | None = None  # number of settings; default: the complete grid, else 32
    parallel: Count | None = (
        None  # maximum number of stacked settings; default: 16; with tpe, gp or cmaes: 8
    )
    sampler_seed: Amount = 0  # random seed of the sampler
    objective: str = (
        "score"  # compared quantity: score, return, success, cost, or a training metric
    )
    direction: Literal["maximize", "minimize"] | None = (
        None  # maximize or minimize; default: minimize cost and training metrics
    )
    seeds: Annotated[int | list[int], LOCAL] = (
        1  # training seeds per setting: a list, or a number n: the seeds 900, 899, …
    )
    eval_every: Count | None = None  # type: ignore[assignment] # default: only at start and end
    name: Annotated[str, IDENTITY] = "search"  # last part of <out>/<task>/<algorithm>/<name>
    out: str = "searches"  # folder of all searches

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
    """Options of `offline-rl search`: its own, and those of `train`."""

    sampler: SamplerName | None = (
        None  # grid, random, or Optuna's tpe, gp, cmaes, qmc; default: grid, random with intervals
    )
    trials: Count | None = None  # number of settings; default: the whole grid, else 32
    parallel: Count | None = (
        None  # largest number of settings in one program; default: 16, with tpe, gp, cmaes: 8
    )
    sampler_seed: Amount = 0  # random seed of the sampler
    objective: str = (
        "score"  # what is compared: score, return, success, cost, or a metric of training
    )
    direction: Literal["maximize", "minimize"] | None = (
        None  # default: minimize for cost and metrics of training, else maximize
    )
    seeds: Annotated[int | list[int], LOCAL] = (
        1  # training seeds of each setting: a list, or a count of the highest seeds (900, 899, …)
    )
    eval_every: Count | None = None  # type: ignore[assignment] # default: only at start and end
    name: Annotated[str, IDENTITY] = "search"  # name, in <out>/<task>/<algorithm>/<name>
    out: str = "searches"  # folder of all searches

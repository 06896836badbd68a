"""Options of `offline-rl benchmark`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import Checked, Count, NonNegative


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Checked):
    """Options of `offline-rl benchmark`."""

    suite: str | None = None  # name of a suite in configs/suite, or a YAML file
    plan: str | None = None  # instead of suite: the plan.json that another command has written
    algorithms: list[str] = field(default_factory=list)  # run only these algorithms of the suite
    tasks: list[str] = field(default_factory=list)  # run only these tasks of the suite
    seeds: int | list[int] | None = None  # a count or a list, instead of the suite's seeds
    kept: str | None = None  # folder of a study (contains runs.csv); its seeds are not run again
    out: str | None = None  # folder of the runs; default: runs/<suite>
    dry_run: bool = False  # print the runs and their estimated cost, run nothing
    launcher: Literal["local", "ray", "slurm"] = "local"  # this machine, a Ray cluster, Slurm jobs
    workers: Count | None = None  # cells at a time; default: one per core (local), as many as fit
    cores: Count | None = None  # cores of each cell; default: all / workers (local), 1 (ray, slurm)
    gpus: NonNegative = 0.0  # GPUs of each cell, for ray (0.5: two cells share one) and slurm
    address: str | None = None  # host:port of the Ray cluster; default: the cluster of this machine
    sbatch: str | None = None  # more options of sbatch, such as '--partition=gpu --time=08:00:00'

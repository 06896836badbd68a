"""Options of `offline-rl benchmark`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import Checked, Count, NonNegative


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Checked):
    """Options of `offline-rl benchmark`."""

    suite: str | None = None  # name of a suite in configs/suite, or a YAML file
    plan: str | None = None  # alternative to suite: a plan.json that an earlier command wrote
    algorithms: list[str] = field(default_factory=list)  # run only these algorithms of the suite
    tasks: list[str] = field(default_factory=list)  # run only these tasks of the suite
    seeds: int | list[int] | None = None  # number or list of seeds; default: the suite's
    kept: str | None = None  # folder of a stored study (with runs.csv); seeds in it are skipped
    out: str | None = None  # folder of the runs; default: runs/<suite>
    dry_run: bool = False  # print the cells and their estimated cost; run nothing
    launcher: Literal["local", "ray", "slurm"] = "local"  # where cells run
    workers: Count | None = None  # parallel cells; default: one per core (local), or what fits
    cores: Count | None = None  # cores of each cell; default: all / workers (local), 1 (ray, slurm)
    gpus: NonNegative = 0.0  # GPUs of each cell, for ray (0.5: two cells share one) and slurm
    address: str | None = None  # host:port of the Ray cluster; default: the cluster of this machine
    sbatch: str | None = None  # options of sbatch, such as '--partition=gpu --time=08:00:00'

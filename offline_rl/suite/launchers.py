"""Launchers of the cells of a suite. Every launcher writes the same run folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from offline_rl.suite.options import BenchmarkOptions
from offline_rl.suite.plan import Cell
from offline_rl.suite.queue import LocalAttempt, run_plan
from offline_rl.suite.ray_cluster import RayLauncher
from offline_rl.suite.slurm import SlurmLauncher
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError

NEEDS = {"address": ("ray",), "gpus": ("ray", "slurm"), "sbatch": ("slurm",)}  # option -> launchers


class Launcher(Protocol):
    """Protocol of a launcher, which runs the cells of a plan."""

    where: str  # where cells run and how many at a time, as text for the printed plan

    @property
    def places(self) -> int | None:
        """Number of cells that run at the same time; None if unknown."""

    def run(self, plan: Sequence[Cell], out: Path, *, show: bool) -> dict[str, str]:
        """Run or submit the unfinished cells; return label -> error of those that failed."""


class LocalLauncher:
    """Runs cells in low-priority processes of this machine."""

    def __init__(self, workers: int | None, cores: int | None) -> None:
        available = hardware.num_cores()
        self.places: int = workers or max(1, available // (cores or 1))
        self.threads = cores or max(1, available // self.places)
        self.where = f"{self.places} at a time"

    def run(self, plan: Sequence[Cell], out: Path, *, show: bool) -> dict[str, str]:
        """Run the unfinished cells; return label -> error of those that failed."""
        start = partial(LocalAttempt, threads=self.threads)
        return run_plan(plan, out, self.places, start, show=show)


def make_launcher(options: BenchmarkOptions) -> Launcher:
    """Return the launcher that the options select. Raises UserError, e.g. without a cluster."""
    for key, launchers in NEEDS.items():
        if getattr(options, key) and options.launcher not in launchers:
            raise UserError(
                f"{key}= needs launcher={' or '.join(launchers)}, and launcher="
                f"{options.launcher} is used. Remove {key}=, or use another launcher."
            )
    workers, cores, gpus = options.workers, options.cores, options.gpus
    if options.launcher == "ray":
        return RayLauncher(workers, cores, gpus, options.address)
    if options.launcher == "slurm":
        return SlurmLauncher(workers, cores, gpus, options.sbatch)
    return LocalLauncher(workers, cores)

"""Options of `offline-rl benchmark`."""

from __future__ import annotations

from dataclasses import dataclass, field

from offline_rl.utils.options import Checked, Count


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
    workers: Count | None = None  # parallel processes; default: one per core
    dry_run: bool = False  # print the runs and their estimated cost, run nothing

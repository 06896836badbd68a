"""Options of `offline-rl benchmark`."""

from __future__ import annotations

from dataclasses import dataclass, field

from offline_rl.utils.options import Checked, Count


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Checked):
    """Options of `offline-rl benchmark`."""

    suite: str | None = None  # name of a suite in configs/suite, or a YAML file
    plan: str | None = None  # instead of suite: the plan.json of another command
    algorithms: list[str] = field(default_factory=list)  # run only these of the suite
    tasks: list[str] = field(default_factory=list)  # run only these of the suite
    seeds: int | list[int] | None = None  # replaces the suite's seeds
    kept: str | None = None  # folder of a study's compact files; their seeds are not run again
    out: str | None = None  # folder of the runs; default: runs/<suite>
    workers: Count | None = None  # parallel processes; default: one per core
    dry_run: bool = False  # print the plan without running it

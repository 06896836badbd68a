"""What `offline-rl benchmark` takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from offline_rl.utils.options import Checked, Count


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Checked):
    """What `offline-rl benchmark` takes."""

    suite: str | None = None  # a file of configs/suite, or one of yours (.yaml)
    plan: str | None = None  # instead: a plan.json, made by another command or machine
    algorithms: list[str] = field(default_factory=list)  # only these of the suite
    tasks: list[str] = field(default_factory=list)  # only these of the suite
    seeds: int | list[int] | None = None  # instead of the suite's
    kept: str | None = None  # a study's compact files: the seeds in them are not run again
    out: str | None = None  # default: runs/<suite>
    workers: Count | None = None  # processes at a time; default: one a core
    dry_run: bool = False  # only print the plan

"""Many jobs: what can be stacked becomes one program, and the rest runs one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.algorithms.common.registry import run_label as algorithm_label
from offline_rl.training.options import TrainOptions
from offline_rl.training.resolve import check_stacked, run_name
from offline_rl.training.run_folder import named_task, run_folder
from offline_rl.training.train import check, train
from offline_rl.utils.errors import UserError

Job = dict[str, Any]  # the keys of `train`
DEFAULTS = {f.name: f.default for f in fields(TrainOptions)}


def launch(jobs: Sequence[Mapping[str, Any]], *, show: bool = True) -> list[Path]:
    """Trains all of them; -> each program's folder, as `train` tells it.

    What any of them could be refused for is found before the first one begins. Raises UserError.
    """
    programs = merge(jobs)
    if len(programs) > 1:
        for program in programs:
            try:
                check(program)
            except UserError as error:
                raise UserError(f"{label(program)}: {error}") from None
    paths = []
    for number, program in enumerate(programs, 1):
        if show and len(programs) > 1:
            print(f"{number} of {len(programs)}: {label(program)}", flush=True)
        paths.append(train(show=show, **program).path)
    return paths


def merge(jobs: Iterable[Mapping[str, Any]]) -> list[Job]:
    """The same runs from as few calls of `train` as may be, in the order of their first jobs.

    Jobs that would share a folder and differ in seeds alone, or in numbers of which stacked seeds
    may each have their own, become one call with lists of them; whatever else they differ in
    becomes part of the run's name. Raises UserError where two would still write the same folder.
    """
    shared = dict[Path, list[Job]]()
    for job in jobs:
        job = {key.replace("__", "."): value for key, value in job.items()}
        shared.setdefault(folder(job), []).append(job)
    programs = [program for group in shared.values() for program in together(group)]
    owners = dict[Path, Job]()
    for program in programs:
        for path in folders(program):
            if owners.setdefault(path, program) is not program:
                raise UserError(f"two jobs would write {path}: give them different names, name=…")
    return programs


def together(jobs: list[Job]) -> list[Job]:
    """`merge` for jobs of one folder."""
    if len(jobs) == 1:
        return jobs
    keys = dict.fromkeys(key for job in jobs for key in job if key != "seeds")
    differing = [k for k in keys if any(j.get(k) != jobs[0].get(k) or k not in j for j in jobs)]
    lists = [k for k in differing if stacks(k, jobs)]
    for job in jobs:
        words = {k: text(job[k]) for k in differing if k in job and k not in lists}
        words = {k.removeprefix("algorithm."): word for k, word in words.items()}
        job["name"] = run_name(job.get("name", DEFAULTS["name"]), words)
        job["seeds"] = seeds(job)
        job |= {key: as_list(job[key]) for key in lists if key in job}
    for key in ("seeds", *lists):  # what is equal but for one list becomes one with all its values
        merged = list[Job]()
        for job in jobs:
            for other in merged:
                if key in job and key in other and but(job, key) == but(other, key):
                    other[key] = other[key] + [v for v in job[key] if v not in other[key]]
                    break
            else:
                merged.append(job)
        jobs = merged
    return jobs


def stacks(key: str, jobs: Sequence[Job]) -> bool:
    """Whether seeds that train side by side may each have their own value of `key`."""
    values = [value for job in jobs if key in job for value in as_list(job[key])]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return False
    try:
        algorithm = algorithm_class(str(jobs[0].get("algorithm")))
        check_stacked(algorithm, [key.removeprefix("algorithm.")])
    except UserError:
        return False
    return key.startswith("algorithm.")


def folder(job: Mapping[str, Any], name: str | None = None) -> Path:
    """The job's run folder, or that of a run of another name beside it."""
    known = {**DEFAULTS, **job}
    name = str(known["name"]) if name is None else name
    method = algorithm_label(str(known["algorithm"]))
    return run_folder(str(known["out"]), named_task(known), method, name)


def folders(job: Job) -> list[Path]:
    """The run folders of all its stacked values."""
    lists = {k: v for k, v in job.items() if stacks(k, [job]) and isinstance(v, list)}
    names = [k.removeprefix("algorithm.") for k in lists]
    chosen = [dict(zip(names, map(float, vs), strict=True)) for vs in product(*lists.values())]
    return [folder(job, run_name(job.get("name", DEFAULTS["name"]), each)) for each in chosen]


def label(job: Mapping[str, Any]) -> str:
    """For people."""
    return " ".join(folder(job).parts[-3:])


def seeds(job: Mapping[str, Any]) -> list[Any]:
    """A count as the seeds it stands for."""
    given = job.get("seeds", DEFAULTS["seeds"])
    return list(range(given)) if isinstance(given, int) else as_list(given)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def text(value: Any) -> str:
    """As part of a name."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def but(job: Job, key: str) -> Job:
    """The job without one of its keys."""
    return {k: v for k, v in job.items() if k != key}

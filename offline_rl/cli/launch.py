"""Execution of several jobs. Jobs that can train in parallel are merged; others run in turn."""

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

Job = dict[str, Any]  # options of `train`
DEFAULTS = {f.name: f.default for f in fields(TrainOptions)}


def launch(jobs: Sequence[Mapping[str, Any]], *, show: bool = True) -> list[Path]:
    """Train all jobs and return the folder of each merged job.

    All jobs are checked before the first one starts. Raises UserError.
    """
    merged = merge(jobs)
    if len(merged) > 1:
        for job in merged:
            try:
                check(job)
            except UserError as error:
                raise UserError(f"{job_label(job)}: {error}") from None
    paths = []
    for number, job in enumerate(merged, 1):
        if show and len(merged) > 1:
            print(f"{number} of {len(merged)}: {job_label(job)}", flush=True)
        paths.append(train(show=show, **job).path)
    return paths


def merge(jobs: Iterable[Mapping[str, Any]]) -> list[Job]:
    """Merge jobs into as few calls of `train` as possible, in the order of their first jobs.

    Jobs with the same run folder become one call if they differ only in seeds, or in
    hyper-parameters that may differ between stacked seeds. The call gets a list of the differing
    values. Values of other options are appended to the run's name. Raises UserError if two jobs
    would still write the same folder.
    """
    by_folder = dict[Path, list[Job]]()
    for job in jobs:
        job = {key.replace("__", "."): value for key, value in job.items()}
        by_folder.setdefault(job_folder(job), []).append(job)
    merged = [job for group in by_folder.values() for job in merge_group(group)]
    owners = dict[Path, Job]()
    for job in merged:
        for path in job_folders(job):
            if owners.setdefault(path, job) is not job:
                raise UserError(f"two jobs would write {path}. Give each another name=…")
    return merged


def merge_group(jobs: list[Job]) -> list[Job]:
    """Merge jobs that have the same folder."""
    if len(jobs) == 1:
        return jobs
    keys = dict.fromkeys(key for job in jobs for key in job if key != "seeds")
    differing = [k for k in keys if any(j.get(k) != jobs[0].get(k) or k not in j for j in jobs)]
    lists = [k for k in differing if is_stackable(k, jobs)]
    for job in jobs:
        words = {k: name_part(job[k]) for k in differing if k in job and k not in lists}
        words = {k.removeprefix("algorithm."): word for k, word in words.items()}
        job["name"] = run_name(job.get("name", DEFAULTS["name"]), words)
        job["seeds"] = job_seeds(job)
        job |= {key: as_list(job[key]) for key in lists if key in job}
    for key in ("seeds", *lists):  # jobs that differ only in this list become one job
        merged = list[Job]()
        for job in jobs:
            for other in merged:
                if key in job and key in other and without_key(job, key) == without_key(other, key):
                    other[key] = other[key] + [v for v in job[key] if v not in other[key]]
                    break
            else:
                merged.append(job)
        jobs = merged
    return jobs


def is_stackable(key: str, jobs: Sequence[Job]) -> bool:
    """Return True if seeds that train in parallel may have different values of `key`."""
    values = [value for job in jobs if key in job for value in as_list(job[key])]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return False
    try:
        algorithm = algorithm_class(str(jobs[0].get("algorithm")))
        check_stacked(algorithm, [key.removeprefix("algorithm.")])
    except UserError:
        return False
    return key.startswith("algorithm.")


def job_folder(job: Mapping[str, Any], name: str | None = None) -> Path:
    """Return the run folder of a job. name: replaces the job's name."""
    options = {**DEFAULTS, **job}
    name = str(options["name"]) if name is None else name
    algorithm = algorithm_label(str(options["algorithm"]))
    return run_folder(str(options["out"]), named_task(options), algorithm, name)


def job_folders(job: Job) -> list[Path]:
    """Return the run folders of a job: one per combination of listed hyper-parameter values."""
    lists = {k: v for k, v in job.items() if is_stackable(k, [job]) and isinstance(v, list)}
    names = [k.removeprefix("algorithm.") for k in lists]
    chosen = [dict(zip(names, map(float, vs), strict=True)) for vs in product(*lists.values())]
    name = job.get("name", DEFAULTS["name"])
    return [job_folder(job, run_name(name, values)) for values in chosen]


def job_label(job: Mapping[str, Any]) -> str:
    """Return task, algorithm and name of a job, for messages."""
    return " ".join(job_folder(job).parts[-3:])


def job_seeds(job: Mapping[str, Any]) -> list[Any]:
    """Return the list of seeds of a job; a count n stands for 0, …, n-1."""
    seeds = job.get("seeds", DEFAULTS["seeds"])
    return list(range(seeds)) if isinstance(seeds, int) else as_list(seeds)


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list with one element."""
    return list(value) if isinstance(value, list | tuple) else [value]


def name_part(value: Any) -> str:
    """Return a value as part of a run's name."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def without_key(job: Job, key: str) -> Job:
    """Return the job without one of its keys."""
    return {k: v for k, v in job.items() if k != key}

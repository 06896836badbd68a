"""Published scores from `benchmarks/published`. Each row there names its source."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from envs.suites.ogbench import default_task
from offline_rl.reporting.runs import Seed
from offline_rl.utils.paths import share

FOLDER = "benchmarks/published"
NEORL2_NAMES = {"td3bc": "td3_bc"}  # published names that differ from the names here


class PublishedScore(NamedTuple):
    """A published score of one algorithm on one task."""

    score: float
    std: float | None  # over seeds; None if only an interval is published
    source: str  # repository and file, or paper
    about: str  # data and settings of the published run, to judge whether it is comparable


def published_scores(seeds: Sequence[Seed]) -> dict[str, PublishedScore]:
    """Return algorithm -> published score on the task; empty if a run sets dataset=."""
    if any(seed.config.get("dataset") for seed in seeds):
        return {}
    task = seeds[0].task.removeprefix("d4rl:")
    suite, _, name = task.rpartition("/")
    if suite == "neorl2":
        about = "same data, best of a grid of settings after 1,000,000 or more updates"
        return {
            NEORL2_NAMES.get(row["algorithm"], row["algorithm"]): score_of(row, "value", about)
            for row in rows_of("neorl2.csv")
            if row["task"] == name and row["metric"] == "normalized_score"
            if row["algorithm"] != "data"
        }
    if suite == "ogbench":
        sums = {seed.outcome.dataset_sha256 for seed in seeds if seed.outcome}
        data = "another file: OGBench's own" if sums & generated_sums() else "OGBench's own file"
        about = f"{data}, 1,000,000 updates; fql and the other methods of its paper: eight seeds"
        return {
            row["algorithm"]: score_of(row, "score", about)
            for row in rows_of("ogbench.csv")
            if row["task"] == with_task_number(name)
        }
    dataset = f"{name}-v2" if suite == "gym" else task
    about = "same data" if dataset == task else f"other data: D4RL's {dataset}"
    rows = [row for row in rows_of("d4rl.csv") if row["dataset"] == dataset]
    return {row["algorithm"]: score_of(row, "score", about) for row in rows}


@cache
def generated_sums() -> frozenset[str | None]:
    """Return the SHA-256 of the OGBench files whose generation is recorded in this package."""
    cards = (share("datasets") / "generated").glob("ogbench-*.json")
    return frozenset(json.loads(path.read_text())["sha256"] for path in cards)


def with_task_number(name: str) -> str:
    """Return the name of an OGBench task with the number of the task, if it is the default one."""
    number = default_task(name)
    return name.replace("-singletask-v0", f"-singletask-task{number}-v0")


def score_of(row: dict[str, str], column: str, about: str) -> PublishedScore:
    """Return the score in a row of a file of published numbers."""
    std = float(row["std"]) if row["std"] else None
    return PublishedScore(float(row[column]), std, row["source"], about)


@cache
def rows_of(name: str) -> list[dict[str, str]]:
    """Read the rows of a file of published numbers."""
    with (share(FOLDER) / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))

"""Published scores beside ours, from `benchmarks/published`, where each row names its source."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from offline_rl.reporting.runs import Seed
from offline_rl.utils.paths import share

FOLDER = "benchmarks/published"
NEORL2_NAMES = {"td3bc": "td3_bc"}  # published names that are not ours


class PublishedScore(NamedTuple):
    """The score of one algorithm on one task."""

    score: float
    std: float
    source: str  # repository and file, or paper
    about: str  # what makes it comparable, or not


def published_scores(seeds: Sequence[Seed]) -> dict[str, PublishedScore]:
    """Return what is published for a task's algorithms; nothing for runs on a user's own data."""
    if any(seed.config.get("dataset") for seed in seeds):
        return {}
    task = seeds[0].task.removeprefix("d4rl:")
    suite, _, name = task.rpartition("/")
    if suite == "neorl2":
        about = "on the same data, the best of a grid of settings after 1,000,000 or more updates"
        return {
            NEORL2_NAMES.get(row["algorithm"], row["algorithm"]): score_of(row, "value", about)
            for row in rows_of("neorl2.csv")
            if row["task"] == name and row["metric"] == "normalized_score"
            if row["algorithm"] != "data"
        }
    dataset = f"{name}-v2" if suite == "gym" else task
    about = "on the same data" if dataset == task else f"on D4RL's {dataset}, which is other data"
    rows = [row for row in rows_of("d4rl.csv") if row["dataset"] == dataset]
    return {row["algorithm"]: score_of(row, "score", about) for row in rows}


def score_of(row: dict[str, str], column: str, about: str) -> PublishedScore:
    """Return the score in a row."""
    return PublishedScore(float(row[column]), float(row["std"]), row["source"], about)


@cache
def rows_of(name: str) -> list[dict[str, str]]:
    """Read a file of published numbers."""
    with (share(FOLDER) / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))

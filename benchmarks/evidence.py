"""What the result pages share: runs are kept in benchmarks/results, and pages are made of those."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.data.load import data_folder
from offline_rl.report.report import report

PRETRAIN = {"cql": 25, "msg": 10, "spot": 5}  # 1 / share of the updates that come before, if any


def budget(algorithm: str, updates: int, task: str) -> dict[str, Any]:
    """How long `train` is to train, and how often to look: a short run less often."""
    every = updates // (10 if updates >= 5_000 else 4)
    keys = {"num_updates": updates, "eval_every": every, "checkpoint_every": every}
    cfg, _ = algorithm_config(algorithm, task, {})
    if algorithm in PRETRAIN and getattr(cfg, "bc_updates", True):  # CQL's are of some tasks only
        keys["pretrain_updates"] = updates // PRETRAIN[algorithm]
    return keys


def publish(results: Path, page: Callable[[], str]) -> None:
    """Write a page and its curves into `results`, and print the page."""
    (results / "README.md").write_text(text := page())
    report([str(results / "runs")], out=str(results / "curves"))
    print(text)


def keep(results: Path, runs: str = "*/*/*") -> None:
    """Copy the runs in runs/<name of `results`> that have all their seeds.

    The copy leaves out the place of the data folder on this machine, and of the metrics all but the
    last; it is all that a page needs.
    """
    for run in sorted(Path("runs", results.name).glob(runs)):
        if complete(run) is None:
            continue
        for seed in (file.parent for file in run.glob("seed_*/result.json")):
            place = results / "runs" / seed.relative_to(f"runs/{results.name}")
            place.mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "environment.json", "result.json", "evaluations.jsonl"):
                text = (seed / file).read_text().replace(f"{data_folder()}/", "")
                (place / file).write_text(text)
            last = (seed / "metrics.jsonl").read_text().splitlines()[-1]
            (place / "last-metrics.json").write_text(last + "\n")


def kept(results: Path, runs: str = "*/*/*") -> Iterator[list[dict[str, Any]]]:
    """The seeds' results of every run that is kept in `results`."""
    for run in sorted((results / "runs").glob(runs)):
        if (rows := complete(run)) is not None:
            yield rows


def complete(run: Path) -> list[dict[str, Any]] | None:
    """The results of a run's seeds; None while one of those stacked is missing."""
    results = [json.loads(file.read_text()) for file in sorted(run.glob("seed_*/result.json"))]
    return results if results and len(results) >= results[0]["seeds_stacked"] else None


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean ± standard deviation (ddof 0) of the seeds that have a value, and how many diverged."""
    sound = [x for x in values if x is not None]
    lost = f"{len(values) - len(sound)} of {len(values)} diverged"
    if not sound:
        return lost
    text = f"{statistics.mean(sound):.{digits}f} ± {statistics.pstdev(sound):.{digits}f}"
    return text if len(sound) == len(values) else f"{text}; {lost}"

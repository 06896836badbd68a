"""Runs as reports read them, from run folders and from compact files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from envs import Reference
from offline_rl.algorithms.common.registry import run_label
from offline_rl.evaluation.constrained import UNLIMITED, Limits
from offline_rl.evaluation.rollout import Episodes
from offline_rl.reporting import compact
from offline_rl.reporting.records import Record, of_folder, seed_folders
from offline_rl.runs.folder import SUMS, SeedFolder, named_task
from offline_rl.runs.options import IDENTITY
from offline_rl.runs.run import difference, role_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from offline_rl.utils.trees import flatten

BEHAVIOR = "behavior policy"  # label of the policy that collected the data


@dataclass(frozen=True)
class Outcome:
    """Fields of a seed's result.json that reports show."""

    score: float | None
    mean_return: float | None
    returns: list[float | None] | None
    success: list[bool] | None
    costs: list[float] | None
    num_updates: int  # offline updates, without preliminary phases
    online_updates: int
    num_env_steps: int
    seconds: float
    seeds_stacked: int
    updates_per_second: float | None
    dataset: str | None
    behavior_score: float | None
    behavior_return: float | None
    score_reference: Reference | None
    diverged_at: int | None
    device: str
    precision: str
    compiled: bool | None
    dataset_sha256: str | None
    behavior_cost: float | None = None  # mean cost of the data's episodes; None without costs

    @property
    def updates(self) -> int:
        """The number of offline and online updates."""
        return self.num_updates + self.online_updates


@dataclass(frozen=True)
class DynamicsFit:
    """Fit of a run's dynamics model: the entry `dynamics` of result.json."""

    outputs: list[str]  # names of the observations whose change is predicted, and `reward`
    errors: list[float]  # squared holdout error of each output, mean over the elites
    variances: list[float]  # variance of each output in the holdout rows
    elites: list[int]  # ensemble members that are used for predictions
    epochs: int
    training_rows: int
    holdout_rows: int
    seconds: float | None = None  # time of the fit; None if the model was loaded
    equations: list[str] = field(default_factory=list)  # of a model that has equations

    @classmethod
    def of(cls, entry: dict[str, Any], file: Path) -> DynamicsFit:
        """Parse the entry of a result.json. Raises KeyError, TypeError or UserError."""
        rest = {k: v for k, v in entry.items() if k not in ("holdout_error", "variance")}
        errors = {name: number(value) for name, value in entry["holdout_error"].items()}
        variances = [number(entry["variance"][name]) for name in errors]
        values = {"outputs": [*errors], "errors": [*errors.values()], "variances": variances}
        return build(cls, rest | values, f"{file}: dynamics.")

    def ratio(self, k: int) -> float:
        """Return the error of an output divided by its variance."""
        return self.errors[k] / self.variances[k] if self.variances[k] else math.nan


@dataclass(frozen=True)
class Moment:
    """Result of one evaluation of a run with online training."""

    score: float | None
    mean_return: float
    success: list[bool] | None  # per episode; None if the environment does not report success


@dataclass(frozen=True)
class Seed:
    """One training seed of a run."""

    task: str
    label: str  # algorithm, and the run's name unless it is the default
    number: int
    path: Path
    config: dict[str, Any]  # flat: "hyper.tau" -> value
    # "score", "return", "cost" -> {clock: mean over the episodes}; `clocks` defines the clock
    curves: dict[str, dict[int, float]]
    outcome: Outcome | None  # None if the seed is not finished
    machine: dict[str, Any]  # environment.json
    state: str  # finished, running, interrupted, or failed with the reason
    metrics: dict[str, Any] = field(default_factory=dict)  # last line of metrics.jsonl
    moments: dict[int, Moment] = field(default_factory=dict)  # env steps -> last evaluation there
    dynamics: DynamicsFit | None = None  # fit of the dynamics model, if it has one
    last: Episodes | None = None  # episodes of the last evaluation; None without costs
    limits: Limits = UNLIMITED  # cost limits by which the policy is judged

    @property
    def target(self) -> float | None:
        """The last mean target of the critics; None without critics."""
        return self.metrics.get("train/target")


def read(folder: SeedFolder) -> Seed:
    """Read the seed in `folder`. Raises UserError naming a damaged file."""
    return seed_of(of_folder(folder), folder.path)


def seed_of(record: Record, path: Path) -> Seed:
    """Return the seed in `record`. Raises UserError naming a damaged file in `path`."""
    file, outcome, fit = path / "config.json", None, None
    try:
        config = flatten(record.config, ".")
        method, name, task = str(config["algorithm"]), str(config["name"]), named_task(config)
        title = run_label(method) + ("" if name == "default" else f" ({name})")
        file, rows = path / "evaluations.jsonl", record.evaluations
        clock = clocks(rows, updates_before(config))
        timed = [*zip(clock, rows, strict=True)]
        curves = {
            "return": {t: number(r["eval/return"]) for t, r in timed},
            "score": {t: number(r["eval/score"]) for t, r in timed if "eval/score" in r},
            "cost": {t: float(np.mean(r["costs"])) for t, r in timed if r.get("costs")},
        }
        last = Episodes.from_row(rows[-1]) if rows and rows[-1].get("costs") else None
        acts = bool(config.get("num_env_steps"))
        moments = {int(r["env_steps"]): moment(r) for r in rows} if acts else {}
        file = path / "result.json"
        if record.result is not None:
            values = {
                f.name: record.result[f.name]
                for f in fields(Outcome)
                if f.name in record.result or f.default is MISSING
            }
            if (reference := values["score_reference"]) is not None:
                values["score_reference"] = build(Reference, reference, f"{file}: score_reference.")
            outcome = build(Outcome, values, f"{file}: ")
            if (entry := record.result.get("dynamics")) is not None:
                fit = DynamicsFit.of(entry, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is damaged ({error!r}). Remove the seed's folder, or train it again."
        ) from None
    seed_number = int(path.name.removeprefix("seed_"))
    rest = (curves, outcome, record.environment, record.state, record.metrics, moments, fit)
    limits = Limits.of(record.result or {})
    return Seed(task, title, seed_number, path, config, *rest, last, limits)


def updates_before(config: dict[str, Any]) -> int:
    """Return the updates of the run that this run continues; 0 without one. config: flat."""
    return int(config.get("start.updates") or 0)


def clocks(rows: Sequence[dict[str, Any]], before: int) -> list[int]:
    """Return the clock of each evaluation: offline updates plus environment steps.

    Online updates are not counted. before: updates of the run that this run continues.
    """
    clock, last = list[int](), (before, 0)
    for row in rows:
        updates, env_steps = int(row["updates"]), int(row["env_steps"])
        done = env_steps - last[1] or updates - last[0]
        clock.append(done + (clock[-1] if clock else 0))
        last = updates, env_steps
    return clock


def moment(row: dict[str, Any]) -> Moment:
    """Return the evaluation in a line of evaluations.jsonl."""
    score = number(row["eval/score"]) if "eval/score" in row else None
    return Moment(score, number(row["eval/return"]), row.get("success"))


def number(value: float | None) -> float:
    """Return `value`, or NaN for null, which JSON files contain instead of NaN and infinity."""
    return math.nan if value is None else float(value)


def collect(folders: Sequence[Path]) -> dict[str, list[Seed]]:
    """Return task -> every seed at any depth below `folders`, sorted.

    Raises UserError if there is none, if a file is damaged, or if the seeds of one task, algorithm
    and name cannot be averaged: the same seed twice, or different settings.
    """
    seeds_by_key: dict[tuple[str, str, int], Seed] = {}
    firsts: dict[tuple[str, str], Seed] = {}
    for folder in folders:
        seeds = [*map(read, seed_folders(folder)), *compact_seeds(folder)]
        if not seeds:
            raise UserError(
                f"{folder} contains no run. Expected <task>/<algorithm>/<name>/seed_<n>, or the "
                f"{compact.RUNS} of a study."
            )
        for seed in seeds:
            other = seeds_by_key.setdefault((seed.task, seed.label, seed.number), seed)
            if other.path != seed.path:
                same = f"seed {seed.number} of {seed.label} on {seed.task}"
                raise UserError(
                    f"{other.path} and {seed.path} are both {same}. Report one of them."
                )
            first = firsts.setdefault((seed.task, seed.label), seed)
            differ = [k for k in difference(first.config, seed.config) if not may_differ(k)]
            if differ:
                raise UserError(
                    f"{first.path} and {seed.path} differ in {', '.join(differ)} and cannot be "
                    "averaged. Report them separately, or train one of them under another name=…"
                )
    seeds = [seeds_by_key[key] for key in sorted(seeds_by_key)]
    return {seed.task: [s for s in seeds if s.task == seed.task] for seed in seeds}


def may_differ(key: str) -> bool:
    """Return True if seeds of one run may differ in this config key."""
    return role_of(key) != IDENTITY or key.startswith(SUMS)


def compact_seeds(folder: Path) -> list[Seed]:
    """Return the seeds in compact files at any depth below `folder`."""
    seeds = []
    for file in sorted(folder.resolve().rglob(compact.RUNS)):
        for record in compact.read(file.parent):
            run, seed_number = record.key
            seeds.append(seed_of(record, file / run / f"seed_{seed_number}"))
    return seeds


def groups(seeds: Sequence[Seed]) -> dict[str, list[Seed]]:
    """Return label -> the seeds that are averaged: finished seeds, or all if none is finished."""
    by_label: dict[str, list[Seed]] = {}
    for seed in seeds:
        by_label.setdefault(seed.label, []).append(seed)
    return {label: [s for s in group if s.outcome] or group for label, group in by_label.items()}


def key_of(seeds: Sequence[Seed]) -> str:
    """Return "score" if all seeds of a task have scores, else "return".

    This is the measure by which the seeds are compared.
    """
    return "return" if any(s.curves["return"] and not s.curves["score"] for s in seeds) else "score"


def behavior(seeds: Sequence[Seed]) -> dict[str, tuple[float | None, float]]:
    """Return name of the data -> score and return of the behavior policy.

    Data sets with equal values share one entry, with joined names.
    """
    names = dict[tuple[float | None, float], dict[str, None]]()
    for o in (seed.outcome for seed in seeds):
        if o is not None and o.behavior_return is not None:
            value = o.behavior_score, o.behavior_return
            names.setdefault(value, {})[Path(o.dataset or "").name] = None
    return {", ".join(equal): value for value, equal in names.items()}

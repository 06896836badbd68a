"""Runs as reports see them, from their folders and from compact files alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from envs import Reference
from offline_rl.algorithms.common.registry import label
from offline_rl.reporting import compact
from offline_rl.reporting.records import Record, of_folder, seed_folders
from offline_rl.training.plan import CHANGING
from offline_rl.training.run_folder import SUMS, SeedFolder, agree_in, named_task
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from offline_rl.utils.trees import flatten

BEHAVIOR = "behavior policy"  # the policy that made the data


@dataclass(frozen=True)
class Outcome:
    """What reports show of a seed's result.json."""

    score: float | None
    mean_return: float | None
    returns: list[float | None] | None
    success: list[bool] | None
    costs: list[float] | None
    num_updates: int  # of the main phase, offline
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

    @property
    def updates(self) -> int:
        """On the data and in the environment."""
        return self.num_updates + self.online_updates


@dataclass(frozen=True)
class Moment:
    """An evaluation of a run that acts in an environment."""

    score: float | None
    mean_return: float
    success: list[bool] | None  # of its episodes, where the environment tells


@dataclass(frozen=True)
class Seed:
    """One seed's folder."""

    task: str
    label: str  # algorithm, and the run's name unless it is the default
    number: int
    path: Path
    config: dict[str, Any]  # flat
    curves: dict[str, dict[int, float]]  # "score", "return": clock -> mean over the episodes
    outcome: Outcome | None  # None where it is not finished
    machine: dict[str, Any]  # environment.json
    state: str  # finished, running, interrupted, or failed and why
    metrics: dict[str, Any] = field(default_factory=dict)  # the last row's
    moments: dict[int, Moment] = field(default_factory=dict)  # environment steps -> the last then

    @property
    def target(self) -> float | None:
        """The last mean target of the critics, where there are any."""
        return self.metrics.get("train/target")


def read(folder: SeedFolder) -> Seed:
    """The seed in `folder`. Raises UserError naming a file that is not as `train` writes it."""
    return seed_of(of_folder(folder), folder.path)


def seed_of(record: Record, path: Path) -> Seed:
    """What a report shows of `record`. Raises UserError naming the file of `path` to blame."""
    file, outcome = path / "config.json", None
    try:
        config = flatten(record.config, ".")
        method, name, task = str(config["algorithm"]), str(config["name"]), named_task(config)
        title = label(method) + ("" if name == "default" else f" ({name})")
        file, rows = path / "evaluations.jsonl", record.evaluations
        clock = clocks(rows, updates_before(config))
        timed = [*zip(clock, rows, strict=True)]
        curves = {
            "return": {t: number(r["eval/return"]) for t, r in timed},
            "score": {t: number(r["eval/score"]) for t, r in timed if "eval/score" in r},
        }
        acts = bool(config.get("num_env_steps"))
        moments = {int(r["env_steps"]): moment(r) for r in rows} if acts else {}
        file = path / "result.json"
        if record.result is not None:
            known = {f.name: record.result[f.name] for f in fields(Outcome)}
            if (reference := known["score_reference"]) is not None:
                known["score_reference"] = build(Reference, reference, f"{file}: score_reference.")
            outcome = build(Outcome, known, f"{file}: ")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not as a run leaves it: {error!r}") from None
    number_of = int(path.name.removeprefix("seed_"))
    told = (curves, outcome, record.environment, record.state, record.metrics, moments)
    return Seed(task, title, number_of, path, config, *told)


def updates_before(config: dict[str, Any]) -> int:
    """Those of the run that a run with this flat config goes on from."""
    return int(config.get("start.updates") or 0)


def clocks(rows: Sequence[dict[str, Any]], before: int) -> list[int]:
    """When each evaluation was: updates on data and environment steps that were done by then.

    before: updates of the run that it goes on from. Updates in an environment count for nothing
    beside its steps.
    """
    found, last = list[int](), (before, 0)
    for row in rows:
        updates, env_steps = int(row["updates"]), int(row["env_steps"])
        done = env_steps - last[1] or updates - last[0]
        found.append(done + (found[-1] if found else 0))
        last = updates, env_steps
    return found


def moment(row: dict[str, Any]) -> Moment:
    """Of a line of evaluations.jsonl."""
    score = number(row["eval/score"]) if "eval/score" in row else None
    return Moment(score, number(row["eval/return"]), row.get("success"))


def number(value: float | None) -> float:
    """A NaN or an infinity became null in JSON."""
    return math.nan if value is None else float(value)


def collect(folders: Sequence[Path]) -> dict[str, list[Seed]]:
    """Task -> every seed at any depth below `folders`, sorted.

    Raises UserError where there is none, where a file is damaged, and where the seeds of one task,
    algorithm and name have no common mean: twice the same seed, or different settings.
    """
    found: dict[tuple[str, str, int], Seed] = {}
    firsts: dict[tuple[str, str], Seed] = {}
    for folder in folders:
        seeds = [*map(read, seed_folders(folder)), *compact_seeds(folder)]
        if not seeds:
            raise UserError(
                f"{folder} holds no run: expected <task>/<algorithm>/<name>/seed_<n>, or the "
                f"{compact.RUNS} of a study"
            )
        for seed in seeds:
            other = found.setdefault((seed.task, seed.label, seed.number), seed)
            if other.path != seed.path:
                same = f"seed {seed.number} of {seed.label} on {seed.task}"
                raise UserError(f"{other.path} and {seed.path} are both {same}: report one of them")
            first = firsts.setdefault((seed.task, seed.label), seed)
            a, b = first.config, seed.config
            differ = [k for k in sorted(a | b) if not of_one(k) and not agree_in(k, a, b)]
            if differ:
                raise UserError(
                    f"{first.path} and {seed.path} differ in {', '.join(differ)} and so have no "
                    "common mean: report them apart, or train one of them under another name=…"
                )
    seeds = [found[key] for key in sorted(found)]
    return {seed.task: [s for s in seeds if s.task == seed.task] for seed in seeds}


def of_one(key: str) -> bool:
    """Whether seeds of one run may differ in it."""
    return key in CHANGING or key.startswith(SUMS)


def compact_seeds(folder: Path) -> list[Seed]:
    """Those in compact files at any depth below `folder`."""
    found = []
    for file in sorted(folder.resolve().rglob(compact.RUNS)):
        for record in compact.read(file.parent):
            run, number_of = record.key
            found.append(seed_of(record, file / run / f"seed_{number_of}"))
    return found


def groups(seeds: Sequence[Seed]) -> dict[str, list[Seed]]:
    """Label -> the seeds that are averaged: the finished ones, or all where none is."""
    found: dict[str, list[Seed]] = {}
    for seed in seeds:
        found.setdefault(seed.label, []).append(seed)
    return {label: [s for s in own if s.outcome] or own for label, own in found.items()}


def key_of(seeds: Sequence[Seed]) -> str:
    """What the seeds of a task are compared by: "score" where all have one, else "return"."""
    return "return" if any(s.curves["return"] and not s.curves["score"] for s in seeds) else "score"


def behavior(seeds: Sequence[Seed]) -> dict[str, tuple[float | None, float]]:
    """Name of the data -> score and return of the policy that made it; of several names, all."""
    names = dict[tuple[float | None, float], dict[str, None]]()
    for o in (seed.outcome for seed in seeds):
        if o is not None and o.behavior_return is not None:
            value = o.behavior_score, o.behavior_return
            names.setdefault(value, {})[Path(o.dataset or "").name] = None
    return {", ".join(own): value for value, own in names.items()}

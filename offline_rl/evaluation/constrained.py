"""Results of constrained tasks: normalized cost, share of unsafe episodes, and their table.

A cost limit is the highest allowed mean of the undiscounted cost of an episode. The normalized cost
is the mean cost divided by the limit. A method is safe if the mean of its normalized cost over
training seeds is at most 1 (Liu et al., arXiv:2306.09303). Rewards are compared among safe methods
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.text import (
    format_count,
    format_fitting_table,
    format_mean_std,
    format_range,
    terminal_width,
    wrap_text,
)

BEST_SAFE = "best_safe.bundle"  # policy of a training seed's best safe evaluation
HEADER = ["algorithm", "limit", "safe", "score", "normalized cost", "return", "cost", "unsafe %"]
HEADER += ["worst cost", "length", "success %", "target cost", "episodes", "best safe"]
# columns that are hidden, in this order, if the table is wider than the terminal
LESS_NEEDED = ["episodes", "best safe", "success %", "worst cost", "target cost", "return", "cost"]
LESS_NEEDED += ["length"]
LEGEND = {
    "limit": "cost limit: highest allowed mean of the undiscounted cost of an episode. The rows "
    "`mean` have means over all limits, in which each limit has the same weight.",
    "safe": "`yes`: the normalized cost is at most 1. `best`: the highest score, or return without "
    "scores, of all safe rows with this limit. Unsafe rows are listed below the safe ones. Their "
    "scores cannot be compared with those of safe rows. In the rows `mean`: number of limits.",
    "normalized cost": "mean cost divided by the limit, or (cost + 1) / (limit + 1) for the limit "
    "0, mean ± standard deviation over seeds.",
    "unsafe %": "share of the episodes of all seeds whose cost exceeds the limit. The limit is for "
    "the mean, so a safe method can have unsafe episodes.",
    "worst cost": "highest cost of an episode of all seeds.",
    "length": "steps of an episode, mean ± standard deviation over seeds. A policy that ends its "
    "episodes early, for example by a fall, has low costs.",
    "target cost": "cost limit that the policy was trained for or received. `none`: the method "
    "uses no cost limit.",
    "best safe": "score, or return without scores, and normalized cost of the best safe evaluation "
    "during training, mean over seeds. This is the evaluation with the highest score whose cost is "
    "within the limit or, without one, that of lowest cost. It is selected by its own episodes, so "
    "its score is biased upward.",
}


def normalized_cost(costs: np.ndarray | float, limit: float) -> np.ndarray:
    """Return costs of episodes divided by the limit; (cost + 1) / (limit + 1) for the limit 0."""
    offset = 0.0 if limit else 1.0
    return (np.asarray(costs, np.float64) + offset) / (limit + offset)


def cost_metrics(costs: np.ndarray, limit: float | None) -> dict[str, float]:
    """Return the metrics of an evaluation with these costs of its episodes, [B].

    limit: None without a cost limit.
    """
    metrics = {"eval/cost": float(costs.mean())}
    if limit is not None:
        metrics["eval/normalized_cost"] = float(normalized_cost(costs.mean(), limit))
        metrics["eval/unsafe_share"] = float((costs > limit).mean())
    return metrics


def best_safe(values: Sequence[float], costs: Sequence[float], limit: float) -> int | None:
    """Return the index of the best safe candidate; None if no candidate is finite.

    This is the candidate of highest value among those whose mean cost is at most the limit or, if
    there are none, the candidate of lowest cost.
    """
    pairs = enumerate(zip(values, costs, strict=True))
    finite = [(k, value, cost) for k, (value, cost) in pairs if np.isfinite([value, cost]).all()]
    safe = [candidate for candidate in finite if candidate[2] <= limit]
    if safe:
        return max(safe, key=lambda candidate: candidate[1])[0]
    return min(finite, key=lambda candidate: candidate[2])[0] if finite else None


class Limits(NamedTuple):
    """Cost limits by which a policy is judged."""

    target_cost: float | None  # limit that it was trained for or received; None: it uses none
    task: tuple[float, ...]  # published limits of the task; () if it is not constrained

    @property
    def all(self) -> tuple[float, ...]:
        """The target cost or, for a policy that uses no limit, all limits of the task."""
        return self.task if self.target_cost is None else (self.target_cost,)

    @property
    def single(self) -> float | None:
        """The target cost or, for a policy that uses no limit, the middle limit of the task."""
        return self.all[(len(self.all) - 1) // 2] if self.all else None

    def to_json(self) -> dict[str, Any]:
        """Return the entries of result.json; {} for a task without cost limits."""
        if not self.all:
            return {}
        return {"target_cost": self.target_cost, "cost_limits": list(self.task)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """Return the limits in result.json, a bundle's provenance or a saved evaluation."""
        target, task = values.get("target_cost"), values.get("cost_limits") or ()
        return cls(None if target is None else float(target), tuple(map(float, task)))


UNLIMITED = Limits(None, ())


@dataclass(frozen=True)
class Result:
    """Result of one method at one cost limit, over its training seeds."""

    label: str
    limit: float
    target_cost: float | None  # see `Limits`
    episodes: Sequence[Episodes]  # one evaluation of each seed, with costs
    scores: Sequence[float | None]  # score of each seed; None: no score references
    best_safe: str = ""  # cell of the best safe evaluation during training

    @property
    def costs(self) -> np.ndarray:
        """The costs of all episodes."""
        return np.concatenate([np.asarray(e.costs) for e in self.episodes])

    @property
    def num_episodes(self) -> int:
        """The number of episodes of all seeds."""
        return sum(len(e.returns) for e in self.episodes)

    @property
    def normalized_costs(self) -> list[float]:
        """The normalized cost of each seed."""
        return [float(normalized_cost(np.mean(e.costs), self.limit)) for e in self.episodes]  # type: ignore[arg-type]

    @property
    def is_safe(self) -> bool:
        """True if the mean over seeds of the normalized cost is at most 1."""
        return float(np.mean(self.normalized_costs)) <= 1

    @property
    def unsafe_share(self) -> float:
        """The share of episodes whose cost exceeds the limit."""
        return float((self.costs > self.limit).mean())

    @property
    def value(self) -> float:
        """The mean score, or the mean return without scores; -inf for a diverged seed."""
        scores = [score for score in self.scores if score is not None]
        values = scores or [float(e.returns.mean()) for e in self.episodes]
        mean = float(np.mean(values))
        return mean if math.isfinite(mean) else -math.inf

    def numbers(self) -> dict[str, Any]:
        """Return the measures as numbers."""
        return {
            "cost_limit": self.limit,
            "normalized_cost": float(np.mean(self.normalized_costs)),
            "unsafe_share": self.unsafe_share,
            "worst_cost": float(self.costs.max()),
            "safe": self.is_safe,
        }

    def cells(self, verdict: str) -> list[str]:
        """Return the cells of the method's row. verdict: the cell of the column `safe`."""
        played = self.episodes
        success = [e.success for e in played if e.success is not None]
        return [
            self.label,
            f"{self.limit:g}",
            verdict,
            format_mean_std(self.scores, 1),
            format_mean_std(self.normalized_costs, 2),
            format_mean_std([float(e.returns.mean()) for e in played]),
            format_mean_std([float(np.mean(e.costs)) for e in played], 1),  # type: ignore[arg-type]
            f"{100 * self.unsafe_share:.0f}",
            f"{self.costs.max():,.1f}",
            format_mean_std([float(e.lengths.mean()) for e in played], 0),
            f"{100 * np.concatenate(success).mean():.0f}" if success else "",
            "none" if self.target_cost is None else f"{self.target_cost:g}",
            f"{format_range(len(e.returns) for e in played)} × {format_count(len(played), 'seed')}",
            self.best_safe,
        ]


@dataclass(frozen=True)
class DataResult:
    """Result of the policy that collected the data, at one cost limit."""

    label: str
    limit: float
    score: float | None
    mean_return: float | None
    cost: float  # mean cost of an episode

    def cells(self) -> list[str]:
        """Return the cells of the row of the data."""
        share = float(normalized_cost(self.cost, self.limit))
        values = format_mean_std([self.score], 1), f"{share:.2f}"
        means = format_mean_std([self.mean_return]), f"{self.cost:,.1f}"
        cells = [self.label, f"{self.limit:g}", "yes" if share <= 1 else "no", *values, *means]
        return [*cells, *[""] * (len(HEADER) - len(cells))]


def rows_of(results: Sequence[Result], data: Sequence[DataResult] = ()) -> list[list[str]]:
    """Return the rows of the table, sorted by limit, with safe rows above unsafe ones.

    An empty row separates limits. A row with the word `unsafe` is above the unsafe rows. The rows
    of the data are the first ones of their limit, and are not compared. The last rows are means
    over the limits.
    """
    body, empty = list[list[str]](), [""] * (len(HEADER) - 1)
    for limit, group in groupby(sorted(results, key=lambda r: r.limit), lambda r: r.limit):
        of_limit = sorted(group, key=lambda r: -r.value)
        safe = [r for r in of_limit if r.is_safe]
        unsafe = [r for r in of_limit if not r.is_safe]
        best = max((r.value for r in safe if math.isfinite(r.value)), default=None)
        body += [["", *empty]] if body else []
        body += [each.cells() for each in data if each.limit == limit]
        body += [r.cells("best" if r.value == best else "yes") for r in safe]
        if unsafe:
            body += [[f"unsafe for the limit {limit:g}:", *empty]]
            body += [r.cells("no") for r in unsafe]
    means = mean_rows(results)
    return [*body, *([["", *empty]] if means else []), *means]


def mean_rows(results: Sequence[Result]) -> list[list[str]]:
    """Return a row for each method that was evaluated at all of several limits.

    A method that is trained for each limit separately has several runs, whose labels differ only in
    the name in parentheses. The highest score or return is first.
    """
    limits, groups = sorted({r.limit for r in results}), dict[str, list[Result]]()
    for r in results:
        name = r.label if r.target_cost is None else r.label.partition(" (")[0]
        groups.setdefault(name, []).append(r)
    complete = {k: v for k, v in groups.items() if sorted(r.limit for r in v) == limits}
    if len(limits) < 2:
        return []
    rows = []
    for name, of_method in complete.items():
        scores = [np.mean(r.scores) for r in of_method if None not in r.scores]  # type: ignore[arg-type]
        cells = dict.fromkeys(HEADER, "")
        cells |= {"algorithm": name, "limit": "mean"}
        cells["safe"] = f"{sum(r.is_safe for r in of_method)} of {len(limits)}"
        cells["score"] = format_mean_std([float(np.mean(scores))] if scores else [], 1)
        share = np.mean([np.mean(r.normalized_costs) for r in of_method])
        cells["normalized cost"] = f"{share:.2f}"
        returns = [np.mean([e.returns.mean() for e in r.episodes]) for r in of_method]
        cells["return"] = format_mean_std([float(np.mean(returns))])
        cells["unsafe %"] = f"{100 * np.mean([r.unsafe_share for r in of_method]):.0f}"
        rows.append((float(np.mean([r.value for r in of_method])), list(cells.values())))
    return [cells for _, cells in sorted(rows, key=lambda row: -row[0])]


def terminal_lines(results: Sequence[Result]) -> list[str]:
    """Return the table of `results` and the meaning of its columns as lines for the terminal."""
    names = "limit", "safe", "normalized cost", "unsafe %", "target cost"
    shown = format_fitting_table(HEADER, rows_of(results), terminal_width(), LESS_NEEDED)
    return [shown, "", *(wrap_text(f"{name}: {LEGEND[name]}") for name in names)]

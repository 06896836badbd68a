"""Table of the results on a constrained task: score and cost side by side, at each cost limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.evaluation import constrained
from offline_rl.evaluation.constrained import DataResult, Result, best_safe, normalized_cost
from offline_rl.evaluation.saved import saved_evaluations
from offline_rl.reporting.numbers import mean_and_std
from offline_rl.reporting.runs import BEHAVIOR, Seed, groups, key_of
from offline_rl.runs.folder import BUNDLE
from offline_rl.utils.text import format_mean_std

HEADER, LESS_NEEDED, LEGEND = constrained.HEADER, constrained.LESS_NEEDED, constrained.LEGEND
# columns of the file with all results; means and standard deviations (ddof 0) are over seeds
COLUMNS = ["task", "algorithm", "cost_limit", "target_cost", "safe", "seeds", "episodes", "score"]
COLUMNS += ["score_std", "return", "return_std", "normalized_cost", "normalized_cost_std", "cost"]
COLUMNS += ["unsafe_share", "worst_cost", "length"]


def rows_of(seeds: Sequence[Seed]) -> list[list[str]]:
    """Return the rows of a task's table; [] without cost limits."""
    results = results_of(seeds)
    limits = dict.fromkeys(result.limit for result in results)
    return constrained.rows_of(results, data_results(seeds, list(limits)))


def results_of(seeds: Sequence[Seed]) -> list[Result]:
    """Return the results of a task's finished runs at each cost limit; [] without cost limits.

    They are those of the last evaluation during training. If `offline-rl evaluate` saved an
    evaluation with the same limit and more episodes next to all bundles of a run, it replaces them.
    A policy that takes a target cost has a result for each one with which it was evaluated.
    """
    results, key = list[Result](), key_of(seeds)
    for label, group in groups(seeds).items():
        done = [seed for seed in group if seed.outcome and seed.last]
        by_limit = dict[float, Result]()
        for limit in done[0].limits.all if done else ():
            scores = [seed.outcome.score for seed in done if seed.outcome]
            played = [seed.last for seed in done if seed.last]
            best = best_cell([best_of(seed, key, limit) for seed in done], limit)
            target = done[0].limits.target_cost
            by_limit[limit] = Result(label, limit, target, played, scores, best)
        for result in saved_results(label, done):
            other = by_limit.get(result.limit)
            if other is None or result.num_episodes > other.num_episodes:
                best = "" if other is None else other.best_safe
                by_limit[result.limit] = replace(result, best_safe=best)
        results += by_limit.values()
    return results


def saved_results(label: str, seeds: Sequence[Seed]) -> list[Result]:
    """Return the saved evaluations of a run on its own task, if all seeds have them."""
    found: dict[tuple[float | None, str], list[Any]] = {}
    for seed in seeds:
        for saved in saved_evaluations(seed.path / BUNDLE):
            plain = saved.keys.keys() <= {"task", "episodes", "target_cost"}
            own = plain and saved.keys["task"] == seed.task and saved.is_current
            if own and saved.episodes.costs is not None:
                found.setdefault((saved.limits.target_cost, saved.file.name), []).append(saved)
    complete = [each for each in found.values() if len(each) == len(seeds)]
    return [
        Result(
            label,
            limit,
            each[0].limits.target_cost,
            [saved.episodes for saved in each],
            [saved.score for saved in each],
        )
        for each in complete
        for limit in each[0].limits.all
    ]


def data_results(seeds: Sequence[Seed], limits: Sequence[float]) -> list[DataResult]:
    """Return the results of the policy that collected the data, at each limit."""
    outcomes = [seed.outcome for seed in seeds if seed.outcome is not None]
    costs = {
        (Path(o.dataset or "").name, o.behavior_score, o.behavior_return, o.behavior_cost): None
        for o in outcomes
        if o.behavior_cost is not None
    }
    several = len({name for name, *_ in costs}) > 1
    return [
        DataResult(BEHAVIOR + (f" ({name})" if several else ""), limit, score, mean, cost)
        for limit in limits
        for name, score, mean, cost in costs
        if cost is not None
    ]


def best_of(seed: Seed, key: str, limit: float) -> tuple[float, float] | None:
    """Return value and cost of a seed's best safe evaluation; None without costs.

    key: "score" or "return".
    """
    clocks = [t for t in seed.curves[key] if t in seed.curves["cost"]]
    values, costs = ([seed.curves[k][t] for t in clocks] for k in (key, "cost"))
    index = best_safe(values, costs, limit)
    return None if index is None else (values[index], costs[index])


def best_cell(found: Sequence[tuple[float, float] | None], limit: float) -> str:
    """Return value and normalized cost of the best safe evaluations, means over seeds."""
    pairs = [pair for pair in found if pair is not None]
    if not pairs:
        return ""
    values, costs = zip(*pairs, strict=True)
    share = float(np.mean(normalized_cost(np.array(costs), limit)))
    return f"{format_mean_std([float(np.mean(values))], 1)} at {share:.2f}"


def numbers_of(seeds: Sequence[Seed]) -> list[dict[str, Any]]:
    """Return a row of numbers, with the names in COLUMNS, for each result of a task."""
    return [
        {
            "task": seeds[0].task,
            "algorithm": result.label,
            "target_cost": result.target_cost,
            "seeds": len(result.episodes),
            "episodes": result.num_episodes,
            **mean_and_std("score", result.scores),
            **mean_and_std("return", [float(e.returns.mean()) for e in result.episodes]),
            **result.numbers(),
            **mean_and_std("normalized_cost", result.normalized_costs),
            "cost": float(np.mean([np.mean(e.costs) for e in result.episodes])),  # type: ignore[arg-type]
            "length": float(np.mean([e.lengths.mean() for e in result.episodes])),
        }
        for result in results_of(seeds)
    ]

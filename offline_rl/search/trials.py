"""Results of a search: value of each setting, ranking, and environment usage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from offline_rl.runs.folder import SeedFolder
from offline_rl.search.space import Setting
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import format_value
from offline_rl.utils.text import format_count, format_mean_std, table
from offline_rl.utils.trees import to_json_values

DIRECTIONS = {
    "score": "maximize",
    "return": "maximize",
    "success": "maximize",
    "cost": "minimize",
}
FROM_EPISODES = tuple(DIRECTIONS)  # objectives that are computed from evaluation episodes


@dataclass(frozen=True)
class Objective:
    """Quantity by which settings are compared."""

    name: str  # a key of DIRECTIONS, or a metric of training
    direction: str  # maximize or minimize
    limit: float | None  # cost limit; settings above it rank below all others

    def value(self, folder: SeedFolder) -> float | None:
        """Return the value of a finished seed; None if it diverged or is not finite.

        Raises UserError if the run does not report the quantity.
        """
        result = folder.outcome()
        if result["diverged_at"] is not None:
            return None
        name = self.name
        if name == "score" and result["score"] is None:
            name = "return"  # the task has no score references
        if name in ("score", "return"):
            value = result["score" if name == "score" else "mean_return"]
        elif name in FROM_EPISODES:
            values = result["success" if name == "success" else "costs"]
            if values is None:
                raise UserError(
                    f"objective={name}: {result['task']} reports no {name}. Use objective=score."
                )
            value = fmean(float(v) for v in values)
        else:
            rows = folder.rows("metrics")
            logged = [row[f"train/{name}"] for row in rows if f"train/{name}" in row]
            value = logged[-1] if logged else None
        return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Trial:
    """One setting with its results."""

    setting: Setting
    run: str  # folder of the setting's run
    values: list[float | None]  # value of each training seed; None: it diverged
    cost: float | None = None  # mean cost of an episode; None without costs
    evaluations: int = 0  # number of evaluations in the environment, over all training seeds
    episodes: int = 0  # episodes of these evaluations
    env_steps: int = 0  # environment steps of these episodes
    training_env_steps: int = 0  # environment steps of online training

    @property
    def value(self) -> float | None:
        """Mean over the training seeds; None if one of them diverged."""
        values = [value for value in self.values if value is not None]
        return fmean(values) if values and len(values) == len(self.values) else None


def read_trial(setting: Setting, folders: Sequence[SeedFolder], objective: Objective) -> Trial:
    """Read the results of a setting's finished seeds. Raises UserError."""
    results = [folder.outcome() for folder in folders]
    rows = [row for folder in folders for row in folder.rows("evaluations")]
    costs = [fmean(result["costs"]) for result in results if result["costs"]]
    return Trial(
        setting,
        str(folders[0].path.parent),
        [objective.value(folder) for folder in folders],
        cost=fmean(costs) if len(costs) == len(results) else None,
        evaluations=len(rows),
        episodes=sum(len(row["lengths"]) for row in rows),
        env_steps=sum(sum(row["lengths"]) for row in rows),
        training_env_steps=sum(result["num_env_steps"] for result in results),
    )


def violation(trial: Trial, limit: float | None) -> float:
    """Return mean cost minus limit; 0 without a limit or without costs."""
    return 0.0 if limit is None or trial.cost is None else trial.cost - limit


def ranked(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return the trials, best first: safe by value, then unsafe by cost, then diverged.

    If two trials are equal, the earlier one is first.
    """
    sign = -1.0 if objective.direction == "maximize" else 1.0

    def key(trial: Trial) -> tuple[bool, bool, float]:
        if trial.value is None:
            return True, False, 0.0
        excess = violation(trial, objective.limit)
        return False, excess > 0, excess if excess > 0 else sign * trial.value

    return sorted(trials, key=key)


def online_use(trials: Sequence[Trial]) -> dict[str, int]:
    """Return the environment usage of the search.

    The comparison uses the last evaluation of each training seed.
    """
    totals = {
        name: sum(getattr(trial, name) for trial in trials)
        for name in ("evaluations", "episodes", "env_steps", "training_env_steps")
    }
    compared = sum(len(trial.values) for trial in trials if trial.evaluations)
    return {"compared_evaluations": compared, **totals}


def expected_best(values: Sequence[float], direction: str) -> list[float]:
    """Return the expected best value of k = 1, …, n settings, chosen at random from n settings.

    It is the expected online performance (Kurenkov and Kolesnikov, ICML 2022, arXiv:2110.04156):
    the expected value of the best of k policies that are evaluated online.
    """
    sign = 1.0 if direction == "maximize" else -1.0
    ordered = np.sort(sign * np.asarray(values, np.float64))
    n = len(ordered)
    best = list[float]()
    for k in range(1, n + 1):
        # value i is the best of k if the other k - 1 values are among the i lower ones
        weights = [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
        best.append(sign * float(np.dot(weights, ordered)))
    return best


def results_table(trials: Sequence[Trial], objective: Objective, *, markdown: bool = False) -> str:
    """Return the table of the trials in the given order."""
    keys = [*trials[0].setting]
    has_limit = objective.limit is not None
    header = ["rank", *keys, objective.name, "cost", "safe", "run"]
    body = []
    for rank, trial in enumerate(trials, 1):
        value = "diverged" if trial.value is None else format_mean_std(trial.values)
        cost = "" if trial.cost is None else f"{trial.cost:,.1f}"
        safe = ("no" if violation(trial, objective.limit) > 0 else "yes") if has_limit else ""
        settings = [short_value(trial.setting[key]) for key in keys]
        run = trial.run.rpartition("/")[2]
        body.append([str(rank), *settings, value, cost, safe, run])
    return table(header, body, markdown=markdown, left=0)


def short_value(value: Any) -> str:
    """Format a setting's value with at most four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else format_value(value) or "null"


def use_text(use: Mapping[str, int]) -> str:
    """Return the environment usage as text."""
    if not use["evaluations"] and not use["training_env_steps"]:
        return "No environment was used."
    text = (
        f"Online evaluations: {format_count(use['compared_evaluations'], 'policy')} compared, "
        f"{use['evaluations']:,} evaluations in all with {use['episodes']:,} episodes and "
        f"{use['env_steps']:,} environment steps."
    ).replace("policys", "policies")
    if use["training_env_steps"]:
        text += f" Online training: {use['training_env_steps']:,} environment steps."
    return text


def to_json(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as JSON values."""
    return [to_json_values({**asdict(trial), "value": trial.value}) for trial in trials]

"""Table of the evaluations that `offline-rl evaluate` saved next to the bundles of runs."""

from __future__ import annotations

from collections.abc import Sequence

from offline_rl.evaluation import specifications
from offline_rl.evaluation.decisions.frequency import fas_cell
from offline_rl.evaluation.saved import SavedEvaluation, saved_evaluations
from offline_rl.reporting.runs import Seed
from offline_rl.reporting.summary import share_of, share_text
from offline_rl.runs.folder import BUNDLE
from offline_rl.utils.text import format_mean_std

# `keys` are the options of the evaluation.
HEADER = ["algorithm", "task", "score", "return", "success %", "cost", "satisfied %", "FAS"]
HEADER += ["episodes", "keys"]
# columns that are hidden, in this order, if the table is wider than the terminal
LESS_NEEDED = ["cost", "return", "keys", "task", "episodes"]
LEGEND = {
    "satisfied %": "share of episodes that satisfy the formula `stl`.",
    "FAS": "score averaged over the intervals of decision_every=, with a 95 % interval.",
    "keys": "options of `offline-rl evaluate` other than `task` and `episodes`.",
}


def rows_of(seeds: Sequence[Seed]) -> list[list[str]]:
    """Return a row for each evaluation of a task's runs, averaged over training seeds.

    An evaluation is left out if its bundle no longer contains the policy that was evaluated.
    """
    evaluations: dict[tuple[str, str], list[SavedEvaluation]] = {}
    for seed in seeds:
        for saved in saved_evaluations(seed.path / BUNDLE):
            if saved.is_current:
                evaluations.setdefault((seed.label, saved.file.name), []).append(saved)
    return [row(label, saved) for (label, _), saved in sorted(evaluations.items())]


def row(label: str, saved: Sequence[SavedEvaluation]) -> list[str]:
    """Return the cells for one run.

    saved: evaluations with the same keys, one for each training seed.
    """
    keys, played = saved[0].keys, [each.episodes for each in saved]
    success = [s for e in played if e.success is not None for s in e.success.tolist()]
    return [
        label,
        keys["task"],
        format_mean_std([each.score for each in saved], 1),
        format_mean_std([float(e.returns.mean()) for e in played]),
        share_text(share_of(success)) if success else "",
        format_mean_std([None if e.costs is None else float(e.costs.mean()) for e in played], 1),
        specifications.satisfied_cell(played),
        fas_cell([each.frequency for each in saved]),
        f"{len(played[0].returns)} × {len(saved)} seed{'s' * (len(saved) > 1)}",
        " ".join(f"{k}={v}" for k, v in keys.items() if k not in ("task", "episodes")),
    ]

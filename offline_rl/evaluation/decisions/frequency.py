"""Decision frequency: scores of a policy at several decision intervals.

`offline-rl evaluate decision_every=[1,2,4,8,16,30]` plays all episodes at each interval. The
frequency-averaged score (FAS) is the mean of the score over the intervals, with linear
interpolation between them (trapezoid rule):

    FAS = sum_k (x[k+1] - x[k]) (s[k] + s[k+1]) / 2 / (x[K] - x[1])

x: intervals in steps, in increasing order.  s: mean scores, or mean returns of a task without score
references. The FAS has the unit of the score. Patel, Siegelmann, ICLR 2025, arXiv:2410.08979,
divide by x[K] instead of x[K] - x[1], and by the best return. Their values are 29/3000 of ours if
the intervals are 1 to 30, and if their references are those of the score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs import Reference, VectorEnv
from offline_rl.evaluation.decisions.player import Pace
from offline_rl.evaluation.options import EvaluateOptions
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import format_value
from offline_rl.utils.text import format_mean_std, table, wrap_text

OPTIONS = ("decision_every", "decision_random", "decision_delay")
RESAMPLES = 2000  # number of bootstrap resamples
LEGEND = (
    "Columns: {what} if the policy decides every so many steps. In between, it executes the "
    "actions of its chunk and then repeats the last one; a recurrent plan continues instead. "
    "{more}FAS: frequency-averaged score, the "
    "mean over the intervals from {first} to {last} with linear interpolation, and its 95 % "
    "bootstrap interval over episodes, and over bundles if there are several."
)
Played = Mapping[Pace, Episodes]  # episodes of one policy for each `Pace`


def paces_of(options: EvaluateOptions) -> list[Pace]:
    """Return the paces of an evaluation: the intervals, the random intervals and the delay.

    Raises UserError for invalid options.
    """
    value = options.decision_every
    if value is None:
        for name in OPTIONS[1:]:
            if getattr(options, name) is not None:
                raise UserError(f"{name}= needs decision_every=. Add decision_every=[1,2,4,8].")
        return []
    intervals = value if isinstance(value, list) else [value]
    if not intervals or len(set(intervals)) < len(intervals):
        raise UserError(
            f"decision_every={format_value(intervals)} must have at least one interval, and each "
            "interval only once."
        )
    if options.backup is not None:
        raise UserError("decision_every= does not work with backup=. Remove one of them.")
    paces = [Pace(every) for every in sorted(intervals)]
    if options.decision_random is not None:
        paces.append(Pace(options.decision_random, random=True))
    if options.decision_delay is not None:
        paces.append(Pace(delay=options.decision_delay))
    return paces


def check_lengths(paces: Sequence[Pace], task: str, env: VectorEnv) -> None:
    """Raise UserError if an interval or the delay is longer than an episode of the task."""
    for pace in paces:
        steps = max(pace.every, pace.delay)
        if steps > env.max_episode_steps:
            name = OPTIONS[2 if pace.delay else 1 if pace.random else 0]
            raise UserError(
                f"{name}={steps} is longer than an episode of {task} ({env.max_episode_steps} "
                f"steps). Use at most {env.max_episode_steps}."
            )


def saved_keys(options: EvaluateOptions) -> dict[str, Any]:
    """Return the options to save with an evaluation."""
    return {name: getattr(options, name) for name in OPTIONS}


@dataclass(frozen=True)
class Frequency:
    """Results of one policy at several decision intervals, in score or return."""

    intervals: tuple[int, ...]  # in increasing order
    values: np.ndarray  # [E, K], value of each episode at each interval
    others: Mapping[str, np.ndarray]  # name of another pace -> value of each episode, [E]

    @classmethod
    def of(cls, played: Played, reference: Reference | None) -> Frequency:
        """Compute the values. reference: score references; without them, values are returns."""
        values = {
            pace: e.returns if reference is None else reference.score(e.returns, e.success)
            for pace, e in played.items()
        }
        regular = [pace for pace in values if not pace.random and not pace.delay]
        others = {str(pace): x for pace, x in values.items() if pace not in regular}
        at = np.stack([values[pace] for pace in regular], 1)
        return cls(tuple(pace.every for pace in regular), at, others)

    @property
    def fas(self) -> np.ndarray | None:
        """The frequency-averaged score of each episode, [E]; None for a single interval."""
        return averaged(self.values, self.intervals) if len(self.intervals) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return the results for JSON output."""
        means = {str(x): v for x, v in zip(self.intervals, self.values.mean(0), strict=True)}
        means |= {name: v.mean() for name, v in self.others.items()}
        fas = self.fas
        low, high = (None, None) if fas is None else bootstrap_interval([fas])
        mean = None if fas is None else fas.mean()
        return {"decision_every": means, "fas": mean, "fas_interval": [low, high]}


def averaged(values: np.ndarray, intervals: Sequence[int]) -> np.ndarray:
    """Return the mean of piecewise linear functions, [...].

    values: [..., K], at the K intervals, which are in increasing order.
    """
    widths = np.diff(np.asarray(intervals, np.float64))
    middles = (values[..., 1:] + values[..., :-1]) / 2
    mean: np.ndarray = (middles * widths).sum(-1) / widths.sum()
    return mean


def bootstrap_interval(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over S policies and their episodes.

    values: S arrays, value of each episode, [E]. Episode e has the same initial state for every
    policy. Each resample therefore draws E episodes with replacement for all policies together, and
    then S policies.
    """
    rng, stacked = np.random.default_rng(0), np.stack(values)
    count, episodes = stacked.shape
    means = stacked[:, rng.integers(episodes, size=(RESAMPLES, episodes))].mean(-1)  # [S, N]
    if count > 1:
        means = np.take_along_axis(means, rng.integers(count, size=means.shape), 0)
    low, high = np.quantile(means.mean(0), (0.025, 0.975))
    return float(low), float(high)


def fas_cell(results: Sequence[Frequency | None]) -> str:
    """Return the FAS of one or more policies with its bootstrap interval; "" if there is none."""
    values = [r.fas for r in results if r is not None]
    known = [v for v in values if v is not None]
    if not known or len(known) < len(results):
        return ""
    low, high = bootstrap_interval(known)
    mean = float(np.mean([v.mean() for v in known]))
    decimals = 1 if max(map(abs, (low, high, mean))) >= 1 else 3
    return f"{mean:,.{decimals}f} [{low:,.{decimals}f}, {high:,.{decimals}f}]"


def lines_of(
    by_target: Mapping[float | None, Mapping[Path, Frequency]],
    runs: Mapping[str, Sequence[Path]],
    unit: str,
) -> list[str]:
    """Return the lines of the table of decision intervals, one row per bundle; [] without any.

    by_target: target cost -> bundle -> results.  runs: run -> its bundles; a run with several has a
    row of its mean.  unit: what the values are, "score" or "return".
    """
    results = [r for by_path in by_target.values() for r in by_path.values()]
    if not results:
        return []
    first, body = results[0], list[list[str]]()
    for target, by_path in by_target.items():
        suffix = "" if target is None else f", target_cost={target:g}"
        body += [[f"{path}{suffix}", *cells([r])] for path, r in by_path.items()]
        for run, paths in runs.items():
            if len(paths) > 1:
                of_run = [by_path[path] for path in paths]
                where = f" in {run}" if len(runs) > 1 else ""
                body.append([f"mean of {len(paths)} bundles{where}{suffix}", *cells(of_run)])
    header = ["bundle", *map(str, first.intervals), *first.others, "FAS"]
    more = {
        "1 to": "1 to n: each interval is sampled uniformly from this range. ",
        "delay": "delay n: decisions at every step, from the observation n steps earlier. ",
    }
    shown = "".join(text for k, text in more.items() if any(o.startswith(k) for o in first.others))
    ends = {"first": first.intervals[0], "last": first.intervals[-1]}
    legend = LEGEND if len(first.intervals) > 1 else LEGEND.partition("FAS:")[0]
    note = wrap_text(legend.format(what=f"mean {unit}", more=shown, **ends).strip())
    return ["", "decision_every", "", table(header, body), "", note]


def cells(results: Sequence[Frequency]) -> list[str]:
    """Return the cells of a row: means at each pace, and the FAS. results: one for each policy."""
    means = [r.values.mean(0) for r in results]
    shown = [format_mean_std(column, 1) for column in zip(*means, strict=True)]
    others = [format_mean_std([r.others[k].mean() for r in results], 1) for k in results[0].others]
    return [*shown, *others, fas_cell(results)]

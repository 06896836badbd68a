"""Comparison of runs that were evaluated in the same environment.

If the environment uses its seed, episode k of every run has the same initial state. Differences are
then paired by episode, which removes the variation between initial states. If the environment
ignores its seed, or has a single initial state, differences are not paired. Two 95 % intervals
answer two questions:

    over episodes        Do these trained policies differ? A t interval of E differences, one per
                         episode: the mean over training seeds of one run minus that of the other.
                         The policies are fixed. Without pairing: Welch's interval.
    over training seeds  Would training again give a difference? A t interval of S differences, one
                         per training seed: the mean over episodes of one policy minus that of the
                         other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95
PAIRING = {  # how episodes start (a key of `evaluate.STARTS`) -> note for the user
    "seeded": "Differences are paired: episode k of every run starts from the same seed.",
    "random": "Differences are not paired: the environment ignores its seed.",
    "alike": "Differences are not paired: the environment has a single initial state.",
}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """Mean of a run minus the mean of the reference run, in one measure."""

    run: str
    reference: str
    measure: str  # score, return, success % or cost; of several target costs, with its target cost
    value: float
    over_episodes: Interval | None  # None: one episode per policy, or the same one repeated
    over_seeds: Interval | None  # None: the runs' seeds differ, or there are fewer than two


def difference(
    run: str,
    reference: str,
    measure: str,
    values: Mapping[int, np.ndarray],
    reference_values: Mapping[int, np.ndarray],
    *,
    start_kind: str = "seeded",
) -> Difference:
    """Compare two runs.

    values, reference_values: training seed -> value of each episode, [E], for the same episodes.
    start_kind: a key of PAIRING.
    """
    ours, theirs = (np.stack([*v.values()]) for v in (values, reference_values))  # [S, E]
    by_episode = ours.mean(0) - theirs.mean(0)
    by_seed = None
    if values.keys() == reference_values.keys():
        by_seed = mean_interval(
            [float(np.mean(v - reference_values[s])) for s, v in values.items()]
        )
    by_episodes = mean_interval(by_episode)
    if start_kind != "seeded":
        by_episodes = unpaired_interval(ours, theirs)
    if start_kind == "alike" and not any(np.ptp(x, axis=1).any() for x in (ours, theirs)):
        by_episodes = None  # the same episode, repeated
    return Difference(run, reference, measure, float(by_episode.mean()), by_episodes, by_seed)


def note_on(differences: Sequence[Difference], start_kind: str, *, every: bool = False) -> str:
    """Return an explanation of the table of differences.

    every: True if the episodes start once from each initial state of the task.
    """
    episodes = any(d.over_episodes is not None for d in differences)
    seeds = any(d.over_seeds is not None for d in differences)
    lines = [
        "Differences are paired: every run plays each initial state once."
        if every
        else PAIRING[start_kind]
    ]
    if every:
        lines.append("'Over episodes' is exact: there are no other initial states.")
    elif not episodes and start_kind == "alike":
        lines.append("All episodes of a policy are equal, so there is no interval over episodes.")
    if seeds or (episodes and not every):
        welch = " (Welch's over episodes)" if start_kind != "seeded" and episodes else ""
        lines.append(f"Intervals are 95 % t intervals{welch}.")
    if episodes and not every:
        lines.append("'Over episodes' is the uncertainty for these policies.")
    if seeds:
        lines.append(
            "'Over training seeds' is the uncertainty if you train again; it needs two or more "
            "common seeds."
        )
    if seeds or (episodes and not every):
        lines.append("An interval that contains 0 shows no difference.")
    return " ".join(lines)


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval | None:
    """Return the 95 % t interval of the mean of independent values; None for fewer than two."""
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return None
    half = t_quantile(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


def unpaired_interval(ours: np.ndarray, theirs: np.ndarray) -> Interval | None:
    """Return Welch's 95 % interval of the difference of two runs' means; None for one episode.

    ours, theirs: [S, E], values of independent episodes of S policies. The mean of a run is over
    its policies and episodes.
    """
    if ours.shape[1] < 2:
        return None
    terms = [x.var(axis=1, ddof=1) / (x.shape[1] * len(x) ** 2) for x in (ours, theirs)]
    variance = float(sum(term.sum() for term in terms))
    mean = float(ours.mean() - theirs.mean())
    if variance == 0:
        return mean, mean
    weights = [term / variance for term in terms]
    pairs = zip(weights, (ours, theirs), strict=True)
    degrees = 1 / sum(float((w**2).sum()) / (x.shape[1] - 1) for w, x in pairs)
    half = t_quantile(degrees) * math.sqrt(variance)
    return mean - half, mean + half


@cache
def t_quantile(degrees: float, level: float = LEVEL) -> float:
    """Return t such that a Student variable lies in [-t, t] with probability `level`.

    With t = sqrt(degrees) tan(angle), the density of the angle is cos(angle)^(degrees - 1).
    """
    max_angle = min(math.pi / 2, 40 / math.sqrt(degrees))  # the density beyond it is negligible
    angle = np.linspace(0, max_angle, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    cumulative = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(np.interp(level, cumulative / cumulative[-1], angle))

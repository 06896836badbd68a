"""Paired comparison of runs that were evaluated on the same episodes.

Episode k of every run starts from the same seed, so its difference between two runs is free of the
luck of the start. Two 95 % intervals answer two questions:

    over episodes        Are these trained policies different? t interval of the E differences, each
                         between the runs' means over training seeds; it conditions on the policies.
    over training seeds  Would training again give a difference? t interval of the S differences,
                         each between the two policies of one training seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95
NOTE = (
    "Differences are paired: episode k of every run starts from the same seed. Intervals are 95 % "
    "t intervals. Over episodes: for these trained policies, over the choice of episodes. Over "
    "training seeds: for training again, over the choice of seeds; given where both runs have the "
    "same two or more seeds. An interval that contains 0 shows no difference."
)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """The mean of one run minus that of the reference run, in one measure."""

    run: str
    reference: str
    measure: str  # score, return or success %
    value: float
    over_episodes: Interval | None  # None: fewer than two episodes
    over_seeds: Interval | None  # None: other seeds, or fewer than two


def difference(
    run: str,
    reference: str,
    measure: str,
    values: Mapping[int, np.ndarray],
    reference_values: Mapping[int, np.ndarray],
) -> Difference:
    """Compare two runs. values, reference_values: training seed -> [E], of the same episodes."""
    ours, theirs = (np.stack([*v.values()]) for v in (values, reference_values))  # [S, E]
    by_episode = ours.mean(0) - theirs.mean(0)
    by_seed = None
    if values.keys() == reference_values.keys():
        by_seed = mean_interval(
            [float(np.mean(v - reference_values[s])) for s, v in values.items()]
        )
    mean = float(by_episode.mean())
    return Difference(run, reference, measure, mean, mean_interval(by_episode), by_seed)


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval | None:
    """Return the 95 % t interval of the mean of independent values; None for fewer than two."""
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return None
    half = t_quantile(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Return t such that a Student variable lies in [-t, t] with probability `level`.

    With t = sqrt(degrees) tan(angle), the density of the angle is cos(angle)^(degrees - 1).
    """
    widest = min(math.pi / 2, 40 / math.sqrt(degrees))  # beyond it nothing is left
    angle = np.linspace(0, widest, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    below = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(np.interp(level, below / below[-1], angle))

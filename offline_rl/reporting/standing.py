"""What the seeds of one algorithm on one task came to together, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offline_rl.reporting.runs import Outcome, Seed, updates_before
from offline_rl.reporting.statistics import (
    FORMED,
    evaluation_error,
    formed_share,
    last_mean,
    wilson,
)


@dataclass(frozen=True)
class Standing:
    """Means are over seeds, of the score where the task has one, else of the return."""

    seeds: list[Seed]
    values: list[float]  # of each seed that has one: its last evaluation's mean
    lasts: list[float]  # the mean of its last five evaluations
    error: float | None  # standard error over the last evaluation's episodes
    exact: bool  # these are all the starts there are, so that the error is 0
    formed: float | None  # share to which values have formed; None where there are none
    target: float | None  # the mean target at the end, in the rewards that were learned from
    success: tuple[float, float, float] | None  # share of episodes, and its 95 % interval

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def deviation(self) -> float:
        """Over seeds (ddof 0)."""
        return float(np.std(self.values)) if self.values else 0.0

    @property
    def finished(self) -> bool:
        """Whether the result can be compared: values have formed far enough, or nothing rises."""
        return not self.rising if self.formed is None else self.formed >= FORMED

    @property
    def rising(self) -> bool:
        """Whether what learns no values from data ended surely above its last five evaluations."""
        if self.formed is not None or self.mean is None or not self.lasts:
            return False
        acts = any(seed.moments for seed in self.seeds)
        return not acts and self.mean - float(np.mean(self.lasts)) > self.doubt

    @property
    def doubt(self) -> float:
        """The deviation over seeds and the error over episodes together."""
        return self.deviation + (self.error or 0)

    @property
    def error_text(self) -> str:
        """For tables."""
        return "exact" if self.exact else "" if self.error is None else f"{self.error:.1f}"

    def above(self, bar: float, error: float = 0.0) -> bool:
        """Whether it is finished, and surely above `bar`, at the end and over the last five.

        Surely: by more than the deviation over seeds, the error over episodes and the bar's own
        `error` together.
        """
        means = [float(np.mean(values)) for values in (self.values, self.lasts) if values]
        return self.finished and bool(means) and min(means) - self.doubt > bar + error


def standing(seeds: Sequence[Seed], key: str) -> Standing:
    """Of the seeds that have finished; key: "score" or "return"."""
    done = [(seed, seed.outcome) for seed in seeds if seed.outcome is not None]
    if not done:
        return Standing([], [], [], None, False, None, None, None)
    values = [o.score if key == "score" else o.mean_return for _, o in done]
    lasts = [last_mean(seed.curves[key]) for seed, _ in done]
    targets = [seed.target for seed, _ in done if seed.target is not None]
    successes = [s for _, o in done for s in o.success or ()]
    first, outcome = done[0]
    exact = all(seed.config.get("eval_episodes") == "all" for seed, _ in done)
    hyper = {k.removeprefix("hyper."): v for k, v in first.config.items()}
    return Standing(
        seeds=[seed for seed, _ in done],
        values=[v for v in values if v is not None],
        lasts=[v for v in lasts if v is not None],
        error=0.0 if exact else _error([o for _, o in done], key),
        exact=exact,
        formed=formed_share(hyper, updates_before(first.config) + outcome.updates),
        target=float(np.mean(targets)) if targets else None,
        success=share_of(successes) if successes else None,
    )


def share_of(successes: Sequence[bool]) -> tuple[float, float, float]:
    """The share of episodes that succeeded, and Wilson's interval of it."""
    return (sum(successes) / len(successes), *wilson(sum(successes), len(successes)))


def share_text(interval: tuple[float, float, float]) -> str:
    """Return a share and its interval in per cent."""
    share, low, high = (100 * x for x in interval)
    return f"{share:.0f} [{low:.0f}, {high:.0f}]"


def _error(outcomes: Sequence[Outcome], key: str) -> float | None:
    """The standard error over episodes; episode k of every seed begins alike."""
    sound = [o.returns for o in outcomes if o.returns and None not in o.returns]
    if not sound:
        return None
    count = min(map(len, sound))
    error = evaluation_error(np.array([returns[:count] for returns in sound], np.float64))
    reference = outcomes[0].score_reference
    if error is None or key == "return" or reference is None:
        return error
    return 100 * error / (reference.max - reference.min)

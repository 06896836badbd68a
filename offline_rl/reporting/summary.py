"""Results of one algorithm on one task over its seeds, with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offline_rl.reporting.runs import Outcome, Seed, updates_before
from offline_rl.reporting.statistics import (
    MIN_CONVERGENCE,
    convergence_after,
    evaluation_error,
    last_mean,
    wilson,
)


@dataclass(frozen=True)
class Summary:
    """Result of one algorithm on one task over its finished seeds.

    Values are scores if the task has score references, otherwise returns.
    """

    seeds: list[Seed]
    values: list[float]  # per seed: the mean of the last evaluation
    last_five: list[float]  # per seed: the mean of the last five evaluations
    error: float | None  # standard error over the last evaluation's episodes
    exact: bool  # True: the episodes are all initial states of the task, so the error is 0
    critic_convergence: float | None  # None without a critic that bootstraps
    target: float | None  # the critics' mean target at the end, in transformed rewards
    success: tuple[float, float, float] | None  # share of episodes, and its 95 % interval

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def std(self) -> float:
        """The standard deviation over seeds (ddof 0)."""
        return float(np.std(self.values)) if self.values else 0.0

    @property
    def finished(self) -> bool:
        """True if the result can be compared with other results.

        With a critic, its convergence must be at least MIN_CONVERGENCE. Without a critic, the
        result must not be `rising`.
        """
        share = self.critic_convergence
        return not self.rising if share is None else share >= MIN_CONVERGENCE

    @property
    def rising(self) -> bool:
        """True if the result of an offline run without a critic still improves.

        This means that the last evaluation exceeds the mean of the last five by more than
        `uncertainty`.
        """
        if self.critic_convergence is not None or self.mean is None or not self.last_five:
            return False
        acts = any(seed.moments for seed in self.seeds)
        return not acts and self.mean - float(np.mean(self.last_five)) > self.uncertainty

    @property
    def uncertainty(self) -> float:
        """The standard deviation over seeds plus the standard error over episodes."""
        return self.std + (self.error or 0)

    @property
    def error_text(self) -> str:
        """The standard error as a table shows it."""
        return "exact" if self.exact else "" if self.error is None else f"{self.error:.1f}"

    def above(self, bar: float, error: float = 0.0) -> bool:
        """Return True if the result is finished and significantly above `bar`.

        Both the last evaluation and the last five must exceed `bar` by more than the sum of the
        standard deviation over seeds, the standard error over episodes, and `error`, which is the
        standard error of `bar`.
        """
        means = [float(np.mean(values)) for values in (self.values, self.last_five) if values]
        return self.finished and bool(means) and min(means) - self.uncertainty > bar + error


def summarize(seeds: Sequence[Seed], key: str) -> Summary:
    """Return the result of those `seeds` that have finished. key: "score" or "return"."""
    done = [(seed, seed.outcome) for seed in seeds if seed.outcome is not None]
    if not done:
        return Summary([], [], [], None, False, None, None, None)
    values = [o.score if key == "score" else o.mean_return for _, o in done]
    last_five = [last_mean(seed.curves[key]) for seed, _ in done]
    targets = [seed.target for seed, _ in done if seed.target is not None]
    successes = [s for _, o in done for s in o.success or ()]
    first, outcome = done[0]
    updates = updates_before(first.config) + outcome.updates
    trains = updates or outcome.mean_return is not None  # else it only fits a dynamics model
    exact = all(seed.config.get("eval_episodes") == "all" for seed, _ in done)
    hyper = {k.removeprefix("hyper."): v for k, v in first.config.items()}
    return Summary(
        seeds=[seed for seed, _ in done],
        values=[v for v in values if v is not None],
        last_five=[v for v in last_five if v is not None],
        error=0.0 if exact else _error([o for _, o in done], key),
        exact=exact,
        critic_convergence=convergence_after(hyper, updates) if trains else None,
        target=float(np.mean(targets)) if targets else None,
        success=share_of(successes) if successes else None,
    )


def share_of(successes: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of episodes that succeeded, and its Wilson interval."""
    return (sum(successes) / len(successes), *wilson(sum(successes), len(successes)))


def share_text(interval: tuple[float, float, float]) -> str:
    """Return a share and its interval in per cent."""
    share, low, high = (100 * x for x in interval)
    return f"{share:.0f} [{low:.0f}, {high:.0f}]"


def _error(outcomes: Sequence[Outcome], key: str) -> float | None:
    """Return the standard error over episodes. Episode k has the same start for every seed."""
    reference = outcomes[0].score_reference
    finite = [o.returns for o in outcomes if o.returns and None not in o.returns]
    if reference is not None and reference.success and key == "score":
        finite = [[100.0 * s for s in o.success] for o in outcomes if o.success]
    if not finite:
        return None
    count = min(map(len, finite))
    error = evaluation_error(np.array([returns[:count] for returns in finite], np.float64))
    if error is None or key == "return" or reference is None or reference.success:
        return error
    return 100 * error / (reference.max - reference.min)

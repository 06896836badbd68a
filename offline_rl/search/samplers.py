"""Samplers: grid and random search, and Optuna's samplers through ask and tell.

Samplers are deterministic: the same results lead to the same settings. A continued search repeats
all proposals, and does not repeat the training of finished settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np

from offline_rl.search.space import Choices, Parameter, Setting, space_size
from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import import_extra

OPTUNA = ("tpe", "gp", "cmaes", "qmc")
LEARNING = ("tpe", "gp", "cmaes")  # samplers that use the results of earlier settings
MAX_GRID = 100_000


class Sampler(Protocol):
    """Protocol of a sampler, which proposes settings."""

    def ask(self) -> list[Setting]:
        """Return the next settings, which can be trained in parallel; [] at the end."""

    def tell(self, values: Sequence[float | None], violations: Sequence[float]) -> None:
        """Report the value of each setting of the last `ask`; None if the policy diverged.

        violations: mean cost minus the cost limit; at most 0 for a safe policy.
        """


class Fixed:
    """Sampler whose settings do not depend on results: a grid or random settings."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._rest = list(settings)

    def ask(self) -> list[Setting]:
        """Return all settings, once."""
        settings, self._rest = self._rest, []
        return settings

    def tell(self, values: Sequence[float | None], violations: Sequence[float]) -> None:
        """Ignore the values."""


def grid(space: Sequence[Parameter], trials: int | None) -> list[Setting]:
    """Return all combinations; the last option varies fastest. Raises UserError."""
    axes = list[tuple[Any, ...]]()
    for parameter in space:
        if not isinstance(parameter, Choices):
            raise UserError(
                f"sampler=grid: {parameter.key} is an interval, not a list of values. Use "
                "choice(…), range(…) or another sampler."
            )
        axes.append(parameter.values)
    size = space_size(list(space)) or 0
    if trials is not None and trials < size:
        raise UserError(
            f"trials={trials}: the grid has {size:,} settings. Remove trials=, or use "
            "sampler=random."
        )
    if size > MAX_GRID:
        raise UserError(f"the grid has {size:,} settings. Use sampler=random with trials=.")
    keys = [parameter.key for parameter in space]
    return [dict(zip(keys, values, strict=True)) for values in product(*axes)]


def random_settings(space: Sequence[Parameter], trials: int, seed: int) -> list[Setting]:
    """Return up to `trials` different random settings.

    Fewer are returned if no more exist. A longer list starts with the settings of a shorter one,
    for any order of the options.
    """
    size, settings, draw = space_size(list(space)), list[Setting](), 0
    while len(settings) < (trials if size is None else min(trials, size)):
        random = np.random.default_rng([seed, draw])
        values = {p.key: p.draw(random) for p in sorted(space, key=lambda p: p.key)}
        setting = {parameter.key: values[parameter.key] for parameter in space}
        if setting not in settings:
            settings.append(setting)
        draw += 1
    return settings


def import_optuna(sampler: str) -> Any:
    """Return the module optuna. Raises UserError if it is not installed."""
    return import_extra("optuna", "search", f"sampler={sampler}")


class Study:
    """Optuna sampler that proposes rounds of settings."""

    def __init__(
        self,
        space: Sequence[Parameter],
        name: str,
        *,
        trials: int,
        round_size: int,
        seed: int,
        direction: str,
        constrained: bool,
    ) -> None:
        """Create the study. For the arguments, see `SearchOptions`.

        constrained: policies above a cost limit rank below all others (tpe and gp).
        """
        self._optuna = import_optuna(name)
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._space, self._left, self._round_size = list(space), trials, round_size
        self._asked = list[Any]()
        with self._without_warnings():
            sampler = self._make_sampler(name, seed, constrained)
            self._study = self._optuna.create_study(direction=direction, sampler=sampler)

    def ask(self) -> list[Setting]:
        """Return the settings of the next round."""
        count = min(self._round_size, self._left)
        self._left -= count
        distributions = {p.key: self._distribution(p) for p in self._space}
        with self._without_warnings():
            self._asked = [self._study.ask(distributions) for _ in range(count)]
        return [self._setting(trial) for trial in self._asked]

    def tell(self, values: Sequence[float | None], violations: Sequence[float]) -> None:
        """Report the values of the round to the sampler."""
        for trial, value, violation in zip(self._asked, values, violations, strict=True):
            trial.set_user_attr("violation", violation)
            with self._without_warnings():
                if value is None:
                    self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                else:
                    self._study.tell(trial, value)

    def _setting(self, trial: Any) -> Setting:
        return {
            p.key: p.values[trial.params[p.key]] if isinstance(p, Choices) else trial.params[p.key]
            for p in self._space
        }

    def _distribution(self, parameter: Parameter) -> Any:
        """Return Optuna's distribution of a number, or of the index into a list of values."""
        kinds = self._optuna.distributions
        if isinstance(parameter, Choices):
            last = len(parameter.values) - 1
            if parameter.ordered:
                return kinds.IntDistribution(0, last)
            return kinds.CategoricalDistribution(range(last + 1))
        kind = kinds.IntDistribution if parameter.integer else kinds.FloatDistribution
        return kind(*parameter.limits, log=parameter.log)

    def _make_sampler(self, name: str, seed: int, constrained: bool) -> Any:
        samplers = self._optuna.samplers
        constraints = {"constraints_func": violation_of} if constrained else {}
        try:
            if name == "tpe":  # spreads the settings of one round
                return samplers.TPESampler(seed=seed, constant_liar=True, **constraints)
            if name == "gp":
                return samplers.GPSampler(seed=seed, **constraints)
            if name == "cmaes":
                return samplers.CmaEsSampler(seed=seed)
            return samplers.QMCSampler(seed=seed, scramble=True)
        except ImportError as error:  # a package that only this sampler needs
            import_extra(error.name or "optuna", "search", f"sampler={name}")
            raise

    def _without_warnings(self) -> Any:
        """Return a context without Optuna's warnings of experimental options."""
        return warnings.catch_warnings(action="ignore")


def violation_of(trial: Any) -> tuple[float]:
    """Return the amount by which a trial of Optuna exceeds the cost limit."""
    return (float(trial.user_attrs["violation"]),)

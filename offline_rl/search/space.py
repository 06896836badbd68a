"""Hydra's sweep grammar: `choice(…)`, `a,b`, `range(…)`, `interval(…)`, `tag(log, interval(…))`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from offline_rl.runs.options import aliases
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import coerce, override_values, parse_overrides, unknown

Setting = dict[str, Any]  # option -> value
MAX_VALUES = 10_000  # of one range


@dataclass(frozen=True)
class Choices:
    """An option with a list of values."""

    key: str
    values: tuple[Any, ...]
    ordered: bool  # the values of a range are ordered

    def draw(self, random: np.random.Generator) -> Any:
        """Return a uniformly random value."""
        return self.values[int(random.integers(len(self.values)))]

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def limits(self) -> tuple[Any, ...]:
        """Values to check before training: all of them."""
        return self.values


@dataclass(frozen=True)
class Interval:
    """A number between `low` and `high`, both included."""

    key: str
    low: float
    high: float
    log: bool  # uniform in the logarithm
    integer: bool

    def draw(self, random: np.random.Generator) -> float | int:
        """Return a random value, uniform in the interval or in its logarithm."""
        if self.integer and not self.log:
            return int(random.integers(int(self.low), int(self.high) + 1))
        margin = 0.5 if self.integer else 0.0  # the ends are as likely as other integers
        low, high = self.low - margin, self.high + margin
        if self.log:
            value = math.exp(random.uniform(math.log(low), math.log(high)))
        else:
            value = random.uniform(low, high)
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else float(value)

    @property
    def size(self) -> int | None:
        """Number of values; None for a real number."""
        return int(self.high) - int(self.low) + 1 if self.integer else None

    @property
    def limits(self) -> tuple[Any, ...]:
        """Values to check before training: both ends."""
        kind = int if self.integer else float
        return kind(self.low), kind(self.high)


Parameter = Choices | Interval


def parse_space(texts: Mapping[str, str], types: Mapping[str, Any]) -> list[Parameter]:
    """Return the searched options. texts: option -> sweep. types: option of `train` -> its type.

    Raises UserError for an option that cannot be searched, and for an empty or invalid sweep.
    """
    for key in texts:
        searchable = key.startswith(("algorithm.", "online.")) or key in ("batch_size", "utd")
        if searchable and key not in types:
            raise UserError(unknown("option", key, types))
        if not searchable:
            raise UserError(
                f"{key}={texts[key]}: {key} cannot be searched. Search algorithm.<field>, "
                "online.<field>, batch_size or utd; for one run per value, use `train -m`."
            )
    for alias, key in aliases().items():
        if alias in texts and key in texts:
            raise UserError(f"{alias} and {key} are the same option. Search one of them.")
    if not texts:
        raise UserError(
            "search needs an option with several values. Add one, for example "
            "'algorithm.actor_lr=choice(1e-4,3e-4)'."
        )
    return [parse_sweep(key, text, types[key]) for key, text in texts.items()]


def parse_sweep(key: str, text: str, hint: Any) -> Parameter:
    """Return the values that a sweep describes. hint: the option's type. Raises UserError."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    shown = f"{key}={text}"
    (override,) = parse_overrides([shown])
    sweep = override.value()
    if not isinstance(sweep, ChoiceSweep | RangeSweep | IntervalSweep):
        raise UserError(
            f"{shown} is not a sweep. Use choice(a,b), range(start,stop,step), "
            "interval(low,high) or tag(log,interval(low,high))."
        )
    is_interval = isinstance(sweep, IntervalSweep)
    if wrong := sweep.tags - ({"log"} if is_interval else set()):
        raise UserError(
            f"{shown}: the tag {min(wrong)} is not supported here. The only tag is log, for an "
            "interval: tag(log,interval(low,high))."
        )
    if isinstance(sweep, IntervalSweep):
        return make_interval(shown, key, sweep, hint)
    if sweep.shuffle:
        raise UserError(f"{shown}: shuffle has no effect. Use sampler=random for a random order.")
    ordered = isinstance(sweep, RangeSweep)
    raw = range_values(shown, sweep) if ordered else choice_values(key, sweep)
    values = [coerce(value, hint, key) for value in raw]
    distinct = [value for k, value in enumerate(values) if value not in values[:k]]
    return Choices(key, tuple(distinct), ordered)


def range_values(shown: str, sweep: Any) -> list[Any]:
    """Return the values of Hydra's RangeSweep. shown: the argument. Raises UserError."""
    steps = (sweep.stop - sweep.start) / sweep.step if sweep.step else 0
    if steps <= 0:
        raise UserError(f"{shown} is an empty range. Use range(start,stop) with start < stop.")
    if steps > MAX_VALUES:
        raise UserError(f"{shown} has more than {MAX_VALUES:,} values. Use interval(low,high).")
    return list(sweep.range())


def choice_values(key: str, sweep: Any) -> list[Any]:
    """Return the values of Hydra's ChoiceSweep, each read as on the command line."""
    lines = (f"{key}={element_text(element)}" for element in sweep.list)
    return [override_values(parse_overrides([line]))[key] for line in lines]


def element_text(element: Any) -> str:
    """Return one value of a choice as text on the command line."""
    from hydra.core.override_parser.types import Override

    return str(Override._get_value_element_as_str(element))


def make_interval(shown: str, key: str, sweep: Any, hint: Any) -> Interval:
    """Return the interval of Hydra's IntervalSweep. shown: the argument. Raises UserError."""
    low, high, log = float(sweep.start), float(sweep.end), "log" in sweep.tags
    kinds = {hint, *get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}
    if not kinds & {int, float}:
        raise UserError(f"{shown}: {key} is not a number. Use {key}=choice(…).")
    integer = float not in kinds
    if not low < high:
        raise UserError(f"{shown} is an empty range. Use interval(low,high) with low < high.")
    if log and low <= 0:
        raise UserError(f"{shown}: a logarithmic interval must start above 0. Increase {low:g}.")
    if integer and (low != int(low) or high != int(high)):
        raise UserError(f"{shown}: {key} is an integer. Use integers as the ends of the interval.")
    return Interval(key, low, high, log, integer)


def space_size(space: list[Parameter]) -> int | None:
    """Return the number of settings; None if an option is a real number."""
    sizes = [parameter.size for parameter in space]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)

"""What stands beside the fields of an algorithm's Config: types that know their range.

    expectile: Expectile = 0.7  # what it means, in a comment: `train algorithm=iql --help` shows it

Another range is `Annotated[float, Range(high=0)]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from typing import Annotated, get_type_hints

from offline_rl.data.transform import Preprocessing
from offline_rl.utils.options import Count, Range, notes

BUILT = "one value for all seeds"  # of a number that networks or data are made with
OFFLINE = "offline alone"  # of what no phase in an environment reads

Bound = Annotated[float, Range(-inf, inf)]
Discount = Annotated[float, Range(0, below=1)]
Dropout = Annotated[float, Range(0, below=1), BUILT]  # share of units
Ensemble = Annotated[int, Range(2), BUILT]  # members
Expectile = Annotated[float, Range(0.5, below=1)]
Fraction = Annotated[float, Range(above=0, high=1)]
Preliminary = Annotated[int, Range(0), OFFLINE]  # updates
Rate = Annotated[float, Range(0)]  # of learning
Sizes = Annotated[tuple[int, ...], Range(1), BUILT]  # of hidden layers
Switch = Annotated[bool, BUILT]  # of how networks are built
Tau = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class BaseConfig(Preprocessing):
    """The options that every algorithm has."""

    batch_size: Count = 256  # transitions in an update; `batch_size=` is the same

    def refuse_unread(self, choice: str, *names: str) -> None:
        """Raises ValueError for a field of `names` that was set: `choice` does not read it."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            value, default = getattr(self, name), defaults[name]
            if not isinstance(value, int | float | str | tuple) or value != default:  # or stacked
                chosen = f"{choice}={getattr(self, choice)}"
                remedy = f"set it to its default, {default}, also where a table set it"
                raise ValueError(f"{name} is not read by {chosen}: leave it out, or {remedy}")


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(BaseConfig):
    """And those of learners with critics of which some may be drawn, as WSRL goes on from."""

    num_critics: Ensemble = 2  # E
    num_min_critics: Count | None = None  # critics drawn where several judge; default: all
    layer_norm: Switch = False  # in policy and critics


@cache
def built(config: type) -> frozenset[str]:
    """The fields that networks or data are made with: the same in every phase of a run."""
    hints = get_type_hints(config, include_extras=True)
    always = {"batch_size", "activation"} | {f.name for f in fields(Preprocessing)}
    return frozenset(
        f.name for f in fields(config) if f.name in always or BUILT in notes(hints[f.name])
    )


@cache
def stackable(config: type) -> frozenset[str]:
    """The fields that may have one value for each of the seeds that train side by side.

    Such are all numbers but those that networks or data are made with, and those of Preprocessing,
    which shape the data that all seeds share.
    """
    hints, kinds = get_type_hints(config, include_extras=True), get_type_hints(config)
    shared = {f.name for f in fields(Preprocessing)}
    return frozenset(
        name
        for name in (f.name for f in fields(config))
        if kinds[name] is float and name not in shared and BUILT not in notes(hints[name])
    )


def check_stackable(config: type, names: Iterable[str]) -> None:
    """Raises ValueError for a field that is not `stackable`."""
    for name in names:
        if name not in stackable(config):
            raise ValueError(f"{name} cannot be stacked: one value serves all seeds of a program")

"""Types of Config fields with their valid range, and the options that all algorithms have.

    expectile: Expectile = 0.7  # the meaning; `train algorithm=iql --help` shows it

Another range is `Annotated[float, Range(high=0)]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from math import inf
from typing import Annotated, Any, Literal, get_type_hints

from offline_rl.data.transform import Preprocessing
from offline_rl.utils.options import Count, NonNegative, Range, frozen, type_metadata

# Annotation of fields that define networks or data. Stacked seeds must have the same value.
BUILT = "one value for all seeds"
SHARED = ("noise_scale",)  # fields that define the environment; see `Algorithm.composition`
# Annotation of fields that stacked seeds must share, but that a continued run does not inherit
SAME = "the same value"
OFFLINE = "offline alone"  # annotation of fields that online training does not use

Bound = Annotated[float, Range(-inf, inf)]
Discount = Annotated[float, Range(0, below=1)]
Dropout = Annotated[float, Range(0, below=1), BUILT]  # dropout rate
Ensemble = Annotated[int, Range(2), BUILT]  # number of ensemble members
Expectile = Annotated[float, Range(0.5, below=1)]
Fraction = Annotated[float, Range(above=0, high=1)]
Preliminary = Annotated[int, Range(0), OFFLINE]  # number of preliminary updates
Rate = Annotated[float, Range(0)]  # learning rate
Sizes = Annotated[tuple[int, ...], Range(1), BUILT]  # units of hidden layers
Switch = Annotated[bool, BUILT]  # defines networks
Tau = Annotated[float, Range(0, 1)]


@frozen
class BaseConfig(Preprocessing):
    """Options that every algorithm has."""

    batch_size: Count = 256  # transitions per update; `batch_size=` sets it too

    @classmethod
    def small(cls) -> dict[str, Any]:
        """Return options for fast tests: small networks and batches.

        Subclasses add the options that they define.
        """
        sizes: dict[str, Any] = dict.fromkeys(
            ("hidden", "policy_hidden", "critic_hidden", "vae_hidden"), (16, 16)
        )
        values = sizes | {"batch_size": 32, "num_critics": 3, "num_samples": 3}
        values |= {"exploration_noise": 0.1}
        return {f.name: values[f.name] for f in fields(cls) if f.name in values}

    def refuse_unread(self, choice: str, *names: str) -> None:
        """Raise ValueError if a field of `names` was set that `choice` does not use."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            value, default = getattr(self, name), defaults[name]
            if not isinstance(value, int | float | str | tuple) or value != default:  # or a tensor
                raise ValueError(
                    f"{name} is not used with {choice}={getattr(self, choice)}. Remove it, or set "
                    f"it to its default, {default}, if a per-task table sets it."
                )


@frozen
class AggregateConfig(BaseConfig):
    """Options of how the values of an ensemble of critics are combined."""

    q_aggregate: Annotated[Literal["mean", "min"], BUILT] = (
        "min"  # how the critics' values are combined. mean: minus rho standard deviations
    )
    rho: NonNegative = 0.0  # q_aggregate=mean: mean - rho * standard deviation of the critics

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.q_aggregate == "min":
            self.refuse_unread("q_aggregate", "rho")


@frozen
class CriticConfig(AggregateConfig):
    """Options of methods with bootstrapped critics and target networks."""

    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the critics mixed into their targets
    critic_lr: Rate = 3e-4  # learning rate of the critics


@frozen
class EnsembleConfig(CriticConfig):
    """Options of methods with a critic ensemble, such as those that WSRL continues."""

    num_critics: Ensemble = 2  # number of critics (E)
    num_min_critics: Count | None = None  # critics sampled for the minimum; null: all
    layer_norm: Switch = False  # layer normalization in policy and critics


@cache
def structural_fields(config: type) -> frozenset[str]:
    """Return the fields that define networks or data, which are fixed for all phases of a run."""
    hints = get_type_hints(config, include_extras=True)
    always = {"batch_size", "activation", *SHARED} | {f.name for f in fields(Preprocessing)}
    return frozenset(
        f.name for f in fields(config) if f.name in always or BUILT in type_metadata(hints[f.name])
    )


@cache
def stackable_fields(config: type) -> frozenset[str]:
    """Return the fields that may have a different value for each stacked seed.

    These are all numbers except those that define networks or data, and those of Preprocessing,
    which shape the data that all seeds share.
    """
    hints, kinds = get_type_hints(config, include_extras=True), get_type_hints(config)
    shared = {f.name for f in fields(Preprocessing)} | {*SHARED}
    return frozenset(
        name
        for name in (f.name for f in fields(config))
        if kinds[name] is float
        and name not in shared
        and not {BUILT, SAME} & {x for x in type_metadata(hints[name]) if isinstance(x, str)}
    )


def check_stackable(config: type, names: Iterable[str]) -> None:
    """Raise ValueError for a field that is not `stackable_fields`."""
    for name in names:
        if name not in stackable_fields(config):
            raise ValueError(f"{name} cannot differ between stacked seeds. Use one value.")

"""What a policy sees and does: what data, environments, bundles and robots compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from math import isfinite, prod
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from policies.arrays import as_array
from policies.channels import is_picture

VECTOR = "observation"  # the one channel of a task that sees but one vector
SAME_RANGE = 1e-3  # two limits are equal within this share of their range: files round them


class Conversion(NamedTuple):
    """Affine map of actions from [-1, 1] of one range to [-1, 1] of another: the same units."""

    scale: np.ndarray  # [A] float64
    offset: np.ndarray  # [A] float64

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions [..., A]; float32, clipped to [-1, 1]."""
        converted: np.ndarray = self.offset + self.scale * np.asarray(actions, np.float64)
        return converted.astype(np.float32).clip(-1, 1)

    def stays_within(self, actions: np.ndarray) -> bool:
        """True if every converted action [..., A] is in [-1, 1], to rounding."""
        converted = self.offset + self.scale * np.asarray(actions, np.float64)
        return bool((np.abs(converted) <= 1 + 2 * SAME_RANGE).all())


@dataclass(frozen=True)
class Channel:
    """A part of what is observed, by name: a vector of float32 or a picture [H, W, C] of uint8."""

    name: str
    shape: tuple[int, ...]
    kind: Literal["vector", "picture"] = "vector"
    units: tuple[str, ...] = ()  # one for all numbers or one for each; empty: not said
    names: tuple[str, ...] = ()  # of its numbers, which are taken in C order; empty: not said

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(f"Spec: {self.name!r} is no name for a channel")
        if not self.shape or min(self.shape) < 1 or (self.kind == "picture") > (self.ndim == 3):
            raise ValueError(
                f"Spec: {list(self.shape)} is no shape for the {self.kind} {self.name}"
            )
        if len(self.names) not in (0, self.size) or len(self.units) not in (0, 1, self.size):
            raise ValueError(
                f"Spec: {self.name} of {self.size} numbers has {len(self.names)} names and "
                f"{len(self.units)} units"
            )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return prod(self.shape)

    @property
    def each_unit(self) -> tuple[str, ...]:
        """Of each number; empty: not said."""
        return self.units * self.size if len(self.units) == 1 else self.units

    @property
    def dtype(self) -> type[np.generic]:
        return np.uint8 if self.kind == "picture" else np.float32


@dataclass(frozen=True)
class Spec:
    """Shapes and meaning of what is observed and of one action.

    Policies act in [-1, 1]; `action_low` and `action_high` are those in the environment's units.
    """

    channels: tuple[Channel, ...]  # or a shape, for the one vector; or shapes by name, for several
    action_dim: int
    action_low: tuple[float, ...] = ()  # [A], in `action_units`; empty: -1
    action_high: tuple[float, ...] = ()  # [A]; empty: 1
    n_obs_steps: int = 1  # observations a policy sees at once
    chunk_size: int = 1  # actions it answers with: the chunk
    n_action_steps: int = 1  # of them, before it is asked again
    rate_hz: float | None = None  # actions a second, where time is real
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()  # one for all or one for each; empty: not said
    action_mode: Literal["absolute", "delta"] = "absolute"  # delta: to what was commanded last
    temporal_ensemble_coeff: float | None = (
        None  # m of `policies.chunks.Queue`; None: chunks are not blended
    )
    # steps from an observation to when its own action is reached; None: not said
    action_offset: float | None = None

    def __post_init__(self) -> None:
        if self.channels and all(type(n) is int for n in self.channels):
            vector = Channel(VECTOR, tuple(self.channels))  # type: ignore[arg-type]
            object.__setattr__(self, "channels", (vector,))
        if isinstance(self.channels, Mapping):
            several = (
                Channel(name, tuple(shape), "picture" if is_picture(shape) else "vector")
                for name, shape in self.channels.items()
            )
            object.__setattr__(self, "channels", tuple(several))
        names = [channel.name for channel in self.channels]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Spec: channels of different names are expected, found {names}")
        sizes = (self.action_dim, self.n_obs_steps, self.chunk_size, self.n_action_steps)
        if min(sizes) < 1 or (self.rate_hz is not None and self.rate_hz <= 0):
            raise ValueError(f"Spec: sizes must be positive, found {self}")
        if self.n_action_steps > self.chunk_size:
            raise ValueError(
                f"Spec: of {self.chunk_size} actions {self.n_action_steps} cannot be executed"
            )
        if self.temporal_ensemble_coeff is not None and (
            self.n_action_steps > 1 or self.temporal_ensemble_coeff < 0
        ):
            raise ValueError(
                f"Spec: temporal_ensemble_coeff={self.temporal_ensemble_coeff}, at least 0, takes one action of each chunk, "
                f"found n_action_steps={self.n_action_steps}"
            )
        for name in ("action_low", "action_high", "action_names", "action_units"):
            given = len(getattr(self, name))
            if given not in (0, self.action_dim) and (name != "action_units" or given != 1):
                raise ValueError(f"Spec: {name} has {given} entries for {self.action_dim} actions")
        low, high = self.action_bounds
        if not (low < high).all():
            raise ValueError(f"Spec: action_low {low.tolist()} is not below {high.tolist()}")

    @property
    def vectors(self) -> tuple[Channel, ...]:
        """The channels that are no pictures."""
        return tuple(channel for channel in self.channels if channel.kind == "vector")

    @property
    def lone(self) -> Channel | None:
        """The one vector that is all there is to see, as a plain array; None where more is."""
        return self.channels[0] if len(self.channels) == len(self.vectors) == 1 else None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Of the one vector. Raises ValueError where there is more to see."""
        if self.lone is None:
            names = ", ".join(channel.name for channel in self.channels)
            raise ValueError(f"what is observed is no vector but {names}")
        return self.lone.shape

    @property
    def observation_dim(self) -> int:
        """Numbers in the one vector, flattened."""
        return prod(self.observation_shape)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Of all vectors' numbers, one after the other; empty where any is not named."""
        names = [channel.names for channel in self.vectors]
        return sum(names, ()) if all(names) else ()

    @property
    def observation_units(self) -> tuple[str, ...]:
        """Of all vectors' numbers, as `observation_names`."""
        units = [channel.each_unit for channel in self.vectors]
        return sum(units, ()) if all(units) else ()

    @property
    def each_action_unit(self) -> tuple[str, ...]:
        """Of each action; empty: not said."""
        return self.action_units * (self.action_dim if len(self.action_units) == 1 else 1)

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """What -1 and 1 stand for, [A] float64 each."""
        ones = np.ones(self.action_dim)
        return (
            np.array(self.action_low) if self.action_low else -ones,
            np.array(self.action_high) if self.action_high else ones,
        )

    def in_units(self, actions: np.ndarray) -> np.ndarray:
        """Actions [..., A] in [-1, 1] -> in the environment's units, float32, never beyond."""
        low, high = self.action_bounds
        scaled = (low + high) / 2 + as_array(actions, np.float64) * ((high - low) / 2)
        return scaled.astype(np.float32).clip(low.astype(np.float32), high.astype(np.float32))

    def over(self, other: Spec) -> Spec:
        """What this says, and where it is silent what `other`, of the same channels, says."""
        mine = self if self.action_low else other
        known = {theirs.name: theirs for theirs in other.channels}
        channels = [
            replace(
                ours,
                names=ours.names or known[ours.name].names,
                units=ours.units or known[ours.name].units,
            )
            for ours in self.channels
        ]
        return replace(
            self,
            channels=tuple(channels),
            action_low=mine.action_low,
            action_high=mine.action_high,
            action_names=self.action_names or other.action_names,
            action_units=self.action_units or other.action_units,
            rate_hz=self.rate_hz or other.rate_hz,
            action_offset=other.action_offset if self.action_offset is None else self.action_offset,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        found: dict[str, Any] = listed(asdict(self))
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`.

        Raises ValueError naming a field that is unknown, missing or of another type.
        """
        made: Spec = build(cls, values, "policy specification: ")
        return made

    def mismatch(self, other: Spec) -> str | None:
        """Why a policy of this spec cannot serve `other`, in words; None where it can."""
        for name in ("seen", "action_dim"):
            if getattr(self, name) != getattr(other, name):
                mine, theirs = getattr(self, name), getattr(other, name)
                what = "observation_shape" if name == "seen" else name
                return f"{what}: the policy has {mine}, here it is {theirs}"
        if not self.same_rate(other):
            return f"rate_hz: the policy has {self.rate_hz:g}, here it is {other.rate_hz:g}"
        if (problem := self.contradiction(other)) is not None:
            name, mine, theirs = problem
            return f"{name}: the policy has {mine}, here it is {theirs}"
        return None

    def contradiction(self, other: Spec) -> tuple[str, Any, Any] | None:
        """Return the field whose units or order of names differ, and both values.

        None if there is none. A field that one of them leaves empty is not compared.
        """
        units = {"action_units": "each_action_unit", "observation_units": "observation_units"}
        for name, field in units.items():
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine and theirs and mine != theirs:
                return name, mine, theirs
        for name in ("action_names", "observation_names"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and sorted(mine) == sorted(theirs):
                return name, mine, theirs
        return None

    @property
    def is_normalized(self) -> bool:
        """True if -1 and 1 mean themselves: no range is stated, or it is [-1, 1]."""
        low, high = self.action_bounds
        return bool((low == -1).all() and (high == 1).all())

    @property
    def action_range(self) -> str:
        """What -1 and 1 stand for, to print: `[low, high]`, lists where the actions differ."""
        low, high = ([float(f"{x:.4g}") for x in bound] for bound in self.action_bounds)
        same = len({*low}) == len({*high}) == 1
        return f"[{low[0]:g}, {high[0]:g}]" if same else f"[{low}, {high}]"

    def conversion(self, other: Spec, actions: np.ndarray | None = None) -> Conversion | None:
        """Return the map of this spec's actions to those of `other` in the same units.

        None if no map is needed: the ranges are equal, one is not stated, or this one is [-1, 1].
        Actions of a policy or a file that states [-1, 1] are normalized, shares of any range.
        actions: [N, A] in [-1, 1], those that occur. Default: any.
        Raises ValueError, with both ranges, if an action would leave the range of `other`, or if
        that is [-1, 1], which may mean units or normalized actions.
        """
        if not (self.action_low and other.action_low) or self.is_normalized:
            return None
        (low, high), (to_low, to_high) = self.action_bounds, other.action_bounds
        room = SAME_RANGE * (to_high - to_low)
        if (np.abs([low - to_low, high - to_high]) <= room).all():
            return None
        half = (to_high - to_low) / 2
        found = Conversion((high - low) / 2 / half, (low + high - to_low - to_high) / 2 / half)
        ends = np.array([[-1.0], [1.0]]) if actions is None else actions
        if other.is_normalized or not found.stays_within(ends):
            raise ValueError(
                f"actions of -1 and 1 stand for {self.action_range}, here for {other.action_range}"
            )
        return found

    def same_rate(self, other: Spec) -> bool:
        """Whether their rates are alike, to a hundredth; also where one of them says none."""
        both = self.rate_hz and other.rate_hz
        return not both or abs(other.rate_hz / self.rate_hz - 1) <= 0.01  # type: ignore[operator]

    @property
    def seen(self) -> Any:
        """What must be alike where a policy is to serve: a shape, or each channel's."""
        if self.lone is not None:
            return self.lone.shape
        return {channel.name: channel.shape for channel in self.channels}


def listed(tree: Any) -> Any:
    """`tree` with lists for tuples."""
    if isinstance(tree, dict):
        return {key: listed(value) for key, value in tree.items()}
    return [listed(value) for value in tree] if isinstance(tree, list | tuple) else tree


def build(kind: type, values: Any, where: str) -> Any:
    """The dataclass `kind` of JSON's values. Raises ValueError."""
    hints = get_type_hints(kind)
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}{values!r}")
    for name, value in values.items():
        if name in hints and not of_type(value, hints[name]):
            raise ValueError(f"{where}{name} is {value!r}")
    try:
        return kind(**{k: made(v, hints[k], where) if k in hints else v for k, v in values.items()})
    except TypeError as error:
        raise ValueError(f"{where}{error}") from None


def made(value: Any, hint: Any, where: str) -> Any:
    """A JSON value that is of type `hint`, as that type."""
    if isinstance(value, list):
        return tuple(made(item, get_args(hint)[0], where) for item in value)
    return build(hint, value, where) if is_dataclass(hint) else value  # type: ignore[arg-type]


def of_type(value: object, hint: Any) -> bool:
    """Whether a JSON value is of type `hint`: as it is, but that lists are tuples."""
    if get_origin(hint) is UnionType:
        return any(of_type(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, list) and all(of_type(v, item) for v in value)
    if hint is float:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    return isinstance(value, dict) if is_dataclass(hint) else type(value) is hint

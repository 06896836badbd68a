"""The specification of observations and actions, shared by data, environments and policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from math import isfinite, prod
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from policies.arrays import as_array
from policies.channels import is_image

VECTOR = "observation"  # channel name of an observation that is a single vector
# two limits count as equal if they differ by at most this share of the range: files round limits
SAME_RANGE = 1e-3


class Conversion(NamedTuple):
    """An affine map of normalized actions between two action ranges in the same units."""

    scale: np.ndarray  # [A] float64
    offset: np.ndarray  # [A] float64

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Return converted actions [..., A], float32, clipped to [-1, 1]."""
        converted: np.ndarray = self.offset + self.scale * np.asarray(actions, np.float64)
        return converted.astype(np.float32).clip(-1, 1)

    def stays_within(self, actions: np.ndarray) -> bool:
        """Return True if every converted action [..., A] is in [-1, 1], up to rounding."""
        converted = self.offset + self.scale * np.asarray(actions, np.float64)
        return bool((np.abs(converted) <= 1 + 2 * SAME_RANGE).all())


@dataclass(frozen=True)
class Channel:
    """A named part of the observation: a float32 vector or a uint8 image [H, W, C]."""

    name: str
    shape: tuple[int, ...]
    kind: Literal["vector", "image"] = "vector"
    units: tuple[str, ...] = ()  # one unit for all values, or one per value; empty if unknown
    names: tuple[str, ...] = ()  # one name per value, in C order; empty if unknown

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(
                f"Spec: {self.name!r} is not a valid channel name. Choose a name without /"
            )
        if not self.shape or min(self.shape) < 1 or (self.kind == "image") > (self.ndim == 3):
            raise ValueError(
                f"Spec: {list(self.shape)} is not a valid shape for the {self.kind} {self.name}. "
                "Use [height, width, channels] for an image, and sizes of at least 1"
            )
        if len(self.names) not in (0, self.size) or len(self.units) not in (0, 1, self.size):
            raise ValueError(
                f"Spec: {self.name} has {self.size} numbers, but {len(self.names)} names and "
                f"{len(self.units)} units"
            )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def expanded_units(self) -> tuple[str, ...]:
        """One unit per value; empty if unknown."""
        return self.units * self.size if len(self.units) == 1 else self.units

    @property
    def dtype(self) -> type[np.generic]:
        return np.uint8 if self.kind == "image" else np.float32


@dataclass(frozen=True)
class Spec:
    """Shapes and meaning of the observations and actions of a policy, data set or environment.

    Policies act in [-1, 1]. `action_low` and `action_high` are the actions -1 and 1, converted to
    the environment's units.
    """

    # also accepted: the shape of a single vector, or a mapping from channel names to shapes
    channels: tuple[Channel, ...]
    action_dim: int
    action_low: tuple[float, ...] = ()  # [A], in `action_units`; empty: all -1
    action_high: tuple[float, ...] = ()  # [A], in `action_units`; empty: all 1
    n_obs_steps: int = 1  # number of consecutive observations in the policy's input
    chunk_size: int = 1  # number of predicted actions; the first is for the present step
    n_action_steps: int = 1  # number of executed actions per chunk, before the next prediction
    rate_hz: float | None = None  # actions per second; None if unknown or not in real time
    action_names: tuple[str, ...] = ()  # one name per action dimension; empty if unknown
    action_units: tuple[str, ...] = ()  # one unit for all actions, or one each; empty if unknown
    # delta: actions are relative to the previous command
    action_mode: Literal["absolute", "delta"] = "absolute"
    # coefficient m of temporal ensembling; None turns it off. See `policies.episodes`
    temporal_ensemble_coeff: float | None = None
    # time from an observation until its action is due, in steps; None if unknown
    action_offset: float | None = None

    def __post_init__(self) -> None:
        if self.channels and all(type(n) is int for n in self.channels):
            vector = Channel(VECTOR, tuple(self.channels))  # type: ignore[arg-type]
            object.__setattr__(self, "channels", (vector,))
        if isinstance(self.channels, Mapping):
            several = (
                Channel(name, tuple(shape), "image" if is_image(shape) else "vector")
                for name, shape in self.channels.items()
            )
            object.__setattr__(self, "channels", tuple(several))
        names = [channel.name for channel in self.channels]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Spec: need at least one channel and unique names, found {names}")
        sizes = (self.action_dim, self.n_obs_steps, self.chunk_size, self.n_action_steps)
        if min(sizes) < 1 or (self.rate_hz is not None and self.rate_hz <= 0):
            raise ValueError(f"Spec: sizes must be positive, found {self}")
        if self.n_action_steps > self.chunk_size:
            raise ValueError(
                f"Spec: n_action_steps={self.n_action_steps} is more than "
                f"chunk_size={self.chunk_size}"
            )
        if self.temporal_ensemble_coeff is not None and (
            self.n_action_steps > 1 or self.temporal_ensemble_coeff < 0
        ):
            raise ValueError(
                f"Spec: temporal_ensemble_coeff={self.temporal_ensemble_coeff} must be at least 0, "
                f"and requires n_action_steps=1, not {self.n_action_steps}"
            )
        for name in ("action_low", "action_high", "action_names", "action_units"):
            count = len(getattr(self, name))
            if count not in (0, self.action_dim) and (name != "action_units" or count != 1):
                raise ValueError(f"Spec: {name} has {count} entries for {self.action_dim} actions")
        low, high = self.action_bounds
        if not (low < high).all():
            raise ValueError(
                f"Spec: action_low={low.tolist()} must be below action_high={high.tolist()}"
            )

    @property
    def vectors(self) -> tuple[Channel, ...]:
        """The channels that are vectors, not images."""
        return tuple(channel for channel in self.channels if channel.kind == "vector")

    @property
    def single_vector(self) -> Channel | None:
        """The channel of an observation that is a single vector. None for any other observation.

        Such an observation is passed as an array, and any other as a mapping of channels.
        """
        return self.channels[0] if len(self.channels) == len(self.vectors) == 1 else None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation that is a single vector. Raises ValueError for any other."""
        if self.single_vector is None:
            names = ", ".join(channel.name for channel in self.channels)
            raise ValueError(f"the observation is not a single vector, it has channels {names}")
        return self.single_vector.shape

    @property
    def observation_dim(self) -> int:
        """Size of an observation that is a single vector. Raises ValueError for any other."""
        return prod(self.observation_shape)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the values of all vector channels; empty if any name is unknown."""
        names = [channel.names for channel in self.vectors]
        return sum(names, ()) if all(names) else ()

    @property
    def observation_units(self) -> tuple[str, ...]:
        """Units of the values of all vector channels; empty if any unit is unknown."""
        units = [channel.expanded_units for channel in self.vectors]
        return sum(units, ()) if all(units) else ()

    @property
    def expanded_action_units(self) -> tuple[str, ...]:
        """One unit per action dimension; empty if unknown."""
        return self.action_units * (self.action_dim if len(self.action_units) == 1 else 1)

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The actions -1 and 1 in the environment's units, [A] float64 each."""
        ones = np.ones(self.action_dim)
        return (
            np.array(self.action_low) if self.action_low else -ones,
            np.array(self.action_high) if self.action_high else ones,
        )

    def to_units(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions [..., A] in [-1, 1] to the environment's units: float32, clipped."""
        low, high = self.action_bounds
        scaled = (low + high) / 2 + as_array(actions, np.float64) * ((high - low) / 2)
        return scaled.astype(np.float32).clip(low.astype(np.float32), high.astype(np.float32))

    def from_units(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions [..., A] in the environment's units to [-1, 1]: float64, not clipped."""
        low, high = self.action_bounds
        return 2 * (np.asarray(actions, np.float64) - low) / (high - low) - 1

    def filled_from(self, other: Spec) -> Spec:
        """Return this spec with unknown fields taken from `other`, which has the same channels."""
        bounds = self if self.action_low else other
        others = {channel.name: channel for channel in other.channels}
        channels = [
            replace(
                channel,
                names=channel.names or others[channel.name].names,
                units=channel.units or others[channel.name].units,
            )
            for channel in self.channels
        ]
        return replace(
            self,
            channels=tuple(channels),
            action_low=bounds.action_low,
            action_high=bounds.action_high,
            action_names=self.action_names or other.action_names,
            action_units=self.action_units or other.action_units,
            rate_hz=self.rate_hz or other.rate_hz,
            action_offset=other.action_offset if self.action_offset is None else self.action_offset,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain lists, strings and numbers."""
        values: dict[str, Any] = to_lists(asdict(self))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spec:
        """Return the specification from the output of `to_json`.

        Raises ValueError with the name of a field that is unknown, missing or of another type.
        """
        spec: Spec = build(cls, values, "policy specification: ")
        return spec

    def mismatch(self, other: Spec) -> str | None:
        """Return why a policy of this spec cannot act in an environment of spec `other`.

        None if it can.
        """
        for name in ("observation_shapes", "action_dim"):
            if getattr(self, name) != getattr(other, name):
                mine, theirs = getattr(self, name), getattr(other, name)
                label = "observation_shape" if name == "observation_shapes" else name
                return f"{label}: the policy has {mine}, here it is {theirs}"
        if not self.has_same_rate(other):
            return f"rate_hz: the policy has {self.rate_hz:g}, here it is {other.rate_hz:g}"
        if (problem := self.contradiction(other)) is not None:
            name, mine, theirs = problem
            return f"{name}: the policy has {mine}, here it is {theirs}"
        return None

    def contradiction(self, other: Spec) -> tuple[str, Any, Any] | None:
        """Return the first field that contradicts `other`, with both values. None if none does.

        Two specs contradict each other if their units differ, or if they have the same names in a
        different order. A field that is empty in either spec is not compared.
        """
        units = {"action_units": "expanded_action_units", "observation_units": "observation_units"}
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
        """True if the action range is [-1, 1] or not stated."""
        low, high = self.action_bounds
        return bool((low == -1).all() and (high == 1).all())

    @property
    def action_range(self) -> str:
        """The action bounds as text: `[low, high]`; lists if they differ between dimensions."""
        low, high = ([float(f"{x:.4g}") for x in bound] for bound in self.action_bounds)
        are_equal = len({*low}) == len({*high}) == 1
        return f"[{low[0]:g}, {high[0]:g}]" if are_equal else f"[{low}, {high}]"

    def conversion(self, other: Spec, actions: np.ndarray | None = None) -> Conversion | None:
        """Return the conversion of this spec's actions to actions of `other`, in the same units.

        Return None if no conversion is needed:
          - The two action ranges are equal.
          - One of the two specs states no action range.
          - This spec states [-1, 1]. Its actions are normalized, and fit any range.

        actions: [N, A] in [-1, 1], all actions to be converted. Default: any action in [-1, 1].
        Raises ValueError, with both ranges, if an action would leave the range of `other`. Also
        raises ValueError if `other` states [-1, 1] and a conversion is needed. It is then unknown
        whether the actions of `other` are normalized or in units.
        """
        if not (self.action_low and other.action_low) or self.is_normalized:
            return None
        (low, high), (to_low, to_high) = self.action_bounds, other.action_bounds
        tolerance = SAME_RANGE * (to_high - to_low)
        if (np.abs([low - to_low, high - to_high]) <= tolerance).all():
            return None
        half = (to_high - to_low) / 2
        conversion = Conversion((high - low) / 2 / half, (low + high - to_low - to_high) / 2 / half)
        extremes = np.array([[-1.0], [1.0]]) if actions is None else actions
        if other.is_normalized or not conversion.stays_within(extremes):
            raise ValueError(
                f"the action range {self.action_range} does not fit {other.action_range}"
            )
        return conversion

    def has_same_rate(self, other: Spec) -> bool:
        """Return True if the rates differ by at most 1 %, or one of them is unknown."""
        both = self.rate_hz and other.rate_hz
        return not both or abs(other.rate_hz / self.rate_hz - 1) <= 0.01  # type: ignore[operator]

    @property
    def observation_shapes(self) -> Any:
        """Shape of an observation that is a single vector; otherwise the channel shapes by name."""
        if self.single_vector is not None:
            return self.single_vector.shape
        return {channel.name: channel.shape for channel in self.channels}


def to_lists(tree: Any) -> Any:
    """Return `tree`, nested dicts and sequences, with tuples replaced by lists."""
    if isinstance(tree, dict):
        return {key: to_lists(value) for key, value in tree.items()}
    return [to_lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


def build(kind: type, values: Any, where: str) -> Any:
    """Build the dataclass `kind` from JSON values. Raises ValueError.

    where: start of the error message.
    """
    hints = get_type_hints(kind)
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}expected a JSON object, found {values!r}")
    for name, value in values.items():
        if name in hints and not has_type(value, hints[name]):
            raise ValueError(f"{where}{name} is {value!r}, which has the wrong type or value")
    try:
        return kind(
            **{k: convert(v, hints[k], where) if k in hints else v for k, v in values.items()}
        )
    except TypeError as error:
        raise ValueError(f"{where}{error}") from None


def convert(value: Any, hint: Any, where: str) -> Any:
    """Convert a JSON value to the type `hint`: lists to tuples, objects to dataclasses."""
    if isinstance(value, list):
        return tuple(convert(item, get_args(hint)[0], where) for item in value)
    return build(hint, value, where) if is_dataclass(hint) else value  # type: ignore[arg-type]


def has_type(value: object, hint: Any) -> bool:
    """Return True if a JSON value matches the type `hint`. A list matches a tuple."""
    if get_origin(hint) is UnionType:
        return any(has_type(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, list) and all(has_type(v, item) for v in value)
    if hint is float:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    return isinstance(value, dict) if is_dataclass(hint) else type(value) is hint

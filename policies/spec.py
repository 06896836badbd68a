"""What a policy sees and does: what data, environments, bundles and robots compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, prod
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Spec:
    """Shapes and meaning of one observation and one action.

    Policies act in [-1, 1]; `action_low` and `action_high` are those in the environment's units.
    """

    observation_shape: tuple[int, ...]
    action_dim: int
    action_low: tuple[float, ...] = ()  # [A], the environment's units; empty means -1
    action_high: tuple[float, ...] = ()  # [A]; empty means 1
    history: int = 1  # observations a policy sees at once
    horizon: int = 1  # actions it answers with: the chunk
    executed: int = 1  # of these, taken before it is asked again
    rate_hz: float | None = None  # actions a second, where time is real
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = (*self.observation_shape, self.action_dim, self.history, self.horizon)
        if min(sizes) < 1 or (self.rate_hz is not None and self.rate_hz <= 0):
            raise ValueError(f"Spec: sizes must be positive, found {self}")
        for name in ("action_low", "action_high", "action_names"):
            if (given := len(getattr(self, name))) not in (0, self.action_dim):
                raise ValueError(f"Spec: {name} has {given} entries for {self.action_dim} actions")

    @property
    def observation_dim(self) -> int:
        """Numbers in one flattened observation."""
        return prod(self.observation_shape)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`.

        Raises ValueError naming a field that is unknown, missing or of another type.
        """
        hints = get_type_hints(cls)
        for name, value in values.items():
            if name in hints and not of_type(value, hints[name]):
                raise ValueError(f"policy specification: {name} is {value!r}")
        try:
            fields: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
            }
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"policy specification: {error}") from None

    def mismatch(self, other: Spec) -> str | None:
        """Why a policy of this spec cannot serve `other`, in words; None where it can."""
        for name in ("observation_shape", "action_dim"):
            if getattr(self, name) != getattr(other, name):
                mine, theirs = getattr(self, name), getattr(other, name)
                return f"{name}: the policy has {mine}, here it is {theirs}"
        return None


def of_type(value: object, hint: Any) -> bool:
    """Whether a JSON value is of type `hint`: as it is, but that lists are tuples."""
    if get_origin(hint) is UnionType:
        return any(of_type(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, list) and all(of_type(v, item) for v in value)
    if hint is float:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    return type(value) is hint

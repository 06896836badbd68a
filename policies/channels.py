"""What is observed: one vector, as a plain array, or a mapping of named channels.

A channel is a vector of float32 or a picture [H, W, C] of uint8, and stays so until the network
that looks at it. Whatever indexes, stacks or stores observations does it by the functions here: an
array in, an array out; a mapping in, a mapping out. They need nothing of torch and take tensors
all the same. Where columns have names, as in files, buffers and checkpoints, those of a channel are
`observations/<channel>`, `next_observations/<channel>` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.normalizer import Normalizer

Observations = Any  # [N, *obs], or {channel: [N, *obs]}; of arrays or of tensors
BASE_ACTION = "base_action"  # the channel of what a frozen base would do; the last one
PICTURE_AXES = 3  # a channel of so many axes is a picture


def each(function: Callable[..., Any], *observations: Observations) -> Observations:
    """`function` of the observations, channel by channel; the first ones say which there are."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {name: function(*(every[name] for every in observations)) for name in first}
    return function(*observations)


def parts(observations: Observations) -> list[Any]:
    """The array, or those of all channels."""
    return [*observations.values()] if isinstance(observations, Mapping) else [observations]


def size(observations: Observations) -> int:
    """How many there are."""
    return len(parts(observations)[0])


def take(observations: Observations, rows: Any) -> Observations:
    """Some of them, by an index of any kind."""
    return each(lambda x: x[rows], observations)


def put(observations: Observations, rows: Any, values: Observations) -> None:
    """Writes `values` in the place of some."""

    def write(into: Any, value: Any) -> None:
        into[rows] = value

    each(write, observations, values)


def anywhere(observations: Observations) -> np.ndarray:
    """[N] bool of one for each channel: whether it holds in any."""
    return np.any(parts(observations), axis=0)


def stack(every: Sequence[Observations]) -> Observations:
    """Single observations as rows."""
    return each(lambda *xs: np.stack(xs), *every)


def concatenate(every: Sequence[Observations]) -> Observations:
    """One after the other."""
    return each(lambda *xs: np.concatenate(xs), *every)


def shapes(observations: Observations) -> Any:
    """Of one observation, or of each of its channels."""
    return each(lambda x: tuple(x.shape[1:]), observations)


def is_picture(shape: Sequence[int]) -> bool:
    """Whether a channel of this shape is one: uint8, where all else is float32."""
    return len(shape) == PICTURE_AXES


def dtype(shape: Sequence[int]) -> type[np.generic]:
    """Of a channel of this shape."""
    return np.uint8 if is_picture(shape) else np.float32


def flat(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with every mapping of channels as columns of their own, `<word>/<channel>`."""
    found: dict[str, Any] = {}
    for word, values in columns.items():
        if isinstance(values, Mapping):
            found |= {f"{word}/{name}": value for name, value in values.items()}
        else:
            found[word] = values
    return found


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    found: dict[str, Any] = {}
    for name, values in columns.items():
        word, _, channel = name.partition("/")
        if channel:
            found.setdefault(word, {})[channel] = values
        else:
            found[word] = values
    return found


def of(columns: Mapping[str, Any], word: str) -> Observations:
    """What `flat` columns hold of `word`; None where it is not there."""
    if word in columns:
        return columns[word]
    start = f"{word}/"
    return {k.removeprefix(start): v for k, v in columns.items() if k.startswith(start)} or None


@dataclass(frozen=True)
class Normalizers:
    """A normalizer for each channel that is a vector; pictures are their encoder's to scale."""

    of: Mapping[str, Normalizer]

    def __call__(self, observations: Observations) -> Observations:
        """{channel: [..., *obs]} -> the same, the vectors normalized."""
        of = self.of
        return {k: of[k](v) if k in of else v for k, v in observations.items()}

    def inverse(self, observations: Observations) -> Observations:
        """What `__call__` makes them of."""
        of = self.of
        return {k: of[k].inverse(v) if k in of else v for k, v in observations.items()}


def identity(shapes: Any) -> Normalizer | Normalizers:
    """Leaves observations of `shapes` as they are."""
    if not isinstance(shapes, Mapping):
        return Normalizer.identity(shapes)
    vectors = {name: shape for name, shape in shapes.items() if not is_picture(shape)}
    return Normalizers({name: Normalizer.identity(shape) for name, shape in vectors.items()})


def fit(
    observations: Observations, *, by_range: bool = False, least: float | None = None
) -> Normalizer | Normalizers:
    """Of observations [N, …], by `Normalizer.fit` or `fit_range`; an action stays as it is.

    least: see `Normalizer.fit`.
    """

    def one(x: Any) -> Normalizer:
        return Normalizer.fit_range(x) if by_range else Normalizer.fit(x, least=least)

    if not isinstance(observations, Mapping):
        return one(observations)
    vectors = {name: x for name, x in observations.items() if not is_picture(x.shape[1:])}
    made = {name: one(x) for name, x in vectors.items()}
    if BASE_ACTION in made:
        made[BASE_ACTION] = Normalizer.identity(made[BASE_ACTION].mean.shape)
    return Normalizers(made)

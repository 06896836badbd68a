"""Functions on observations, which are an array (a single vector) or a mapping of named channels.

A channel is a float32 vector or a uint8 image [H, W, C]. Images stay uint8 until they reach the
network. The functions below index, stack or store observations. They map arrays to arrays, and
mappings to mappings. They also accept tensors, without importing torch. In files, buffers and
checkpoints, the columns of a channel are called `observations/<channel>`,
`next_observations/<channel>` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.normalizer import Normalizer

Observations = Any  # [N, *obs] or {channel: [N, *obs]}, arrays or tensors
BASE_ACTION = "base_action"  # channel with the action of a frozen base policy; the last channel
IMAGE_AXES = 3  # number of axes of an image; vectors have any other number


def map_channels(function: Callable[..., Any], *observations: Observations) -> Observations:
    """Apply `function` to each channel. All arguments need the channels of the first one."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {name: function(*(every[name] for every in observations)) for name in first}
    return function(*observations)


def parts(observations: Observations) -> list[Any]:
    """Return the arrays of all channels as a list."""
    return [*observations.values()] if isinstance(observations, Mapping) else [observations]


def size(observations: Observations) -> int:
    """Return the number of observations."""
    return len(parts(observations)[0])


def take(observations: Observations, rows: Any) -> Observations:
    """Return the observations at `rows`, an index of any kind."""
    return map_channels(lambda x: x[rows], observations)


def assign(observations: Observations, rows: Any, values: Observations) -> None:
    """Overwrite the observations at `rows` with `values`, in place."""

    def write(into: Any, value: Any) -> None:
        into[rows] = value

    map_channels(write, observations, values)


def any_channel(observations: Observations) -> np.ndarray:
    """Combine one bool array [N] per channel into one array [N] by logical or."""
    return np.any(parts(observations), axis=0)


def stack(every: Sequence[Observations]) -> Observations:
    """Stack single observations along a new first axis."""
    return map_channels(lambda *xs: np.stack(xs), *every)


def concatenate(every: Sequence[Observations]) -> Observations:
    """Concatenate observations along the first axis."""
    return map_channels(lambda *xs: np.concatenate(xs), *every)


def shapes(observations: Observations) -> Any:
    """Return the shape of one observation, or of each of its channels."""
    return map_channels(lambda x: tuple(x.shape[1:]), observations)


def is_image(shape: Sequence[int]) -> bool:
    """Return True if a channel of this shape is a uint8 image. All others are float32 vectors."""
    return len(shape) == IMAGE_AXES


def dtype(shape: Sequence[int]) -> type[np.generic]:
    """Return the dtype of a channel of this shape."""
    return np.uint8 if is_image(shape) else np.float32


def flatten(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return `columns`, with each mapping replaced by one column `<name>/<channel>` per channel."""
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, Mapping):
            flat |= {f"{name}/{channel}": value for channel, value in values.items()}
        else:
            flat[name] = values
    return flat


def unflatten(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`: collect columns `<name>/<channel>` in mappings."""
    nested: dict[str, Any] = {}
    for key, values in columns.items():
        name, _, channel = key.partition("/")
        if channel:
            nested.setdefault(name, {})[channel] = values
        else:
            nested[name] = values
    return nested


def get(columns: Mapping[str, Any], name: str) -> Observations:
    """Return the observations called `name` from flat columns. None if there are none."""
    if name in columns:
        return columns[name]
    start = f"{name}/"
    return {k.removeprefix(start): v for k, v in columns.items() if k.startswith(start)} or None


@dataclass(frozen=True)
class Normalizers:
    """Normalizers of all vector channels. Images stay unchanged; the image encoder scales them."""

    by_channel: Mapping[str, Normalizer]

    def __call__(self, observations: Observations) -> Observations:
        """Return `observations`, {channel: [..., *obs]}, with normalized vectors."""
        by = self.by_channel
        return {k: by[k](v) if k in by else v for k, v in observations.items()}

    def inverse(self, observations: Observations) -> Observations:
        """Undo the normalization."""
        by = self.by_channel
        return {k: by[k].inverse(v) if k in by else v for k, v in observations.items()}


def identity(shapes: Any) -> Normalizer | Normalizers:
    """Return a normalizer that leaves observations of `shapes` unchanged."""
    if not isinstance(shapes, Mapping):
        return Normalizer.identity(shapes)
    vectors = {name: shape for name, shape in shapes.items() if not is_image(shape)}
    return Normalizers({name: Normalizer.identity(shape) for name, shape in vectors.items()})


def fit(
    observations: Observations, *, by_range: bool = False, min_std: float | None = None
) -> Normalizer | Normalizers:
    """Fit normalizers to observations [N, …]. The channel `base_action` gets the identity.

    by_range: use `Normalizer.fit_range` instead of `Normalizer.fit`.
    min_std: see `Normalizer.fit`.
    """

    def one(x: Any) -> Normalizer:
        return Normalizer.fit_range(x) if by_range else Normalizer.fit(x, min_std=min_std)

    if not isinstance(observations, Mapping):
        return one(observations)
    vectors = {name: x for name, x in observations.items() if not is_image(x.shape[1:])}
    normalizers = {name: one(x) for name, x in vectors.items()}
    if BASE_ACTION in normalizers:
        normalizers[BASE_ACTION] = Normalizer.identity(normalizers[BASE_ACTION].mean.shape)
    return Normalizers(normalizers)

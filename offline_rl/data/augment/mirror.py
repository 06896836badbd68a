"""Left-right mirror images of a data set's episodes (GR-RL, arXiv:2512.01801).

A mirror lists, for `actions` and for each observation channel, how its columns change:

    observations: {negate: [2, 3, 7], swap: [[4, 5]], center: {7: 0.75}}
    actions: {negate: [0]}
    front: {flip: columns}                               an image
    left_wrist: {source: right_wrist, flip: columns}     the mirrored image of the other camera
    right_wrist: {source: left_wrist, flip: columns}

`observations` is the name of a single vector. A channel that is not listed stays unchanged. The
mirror of a task is in its dataset card.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offline_rl.data.augment.join import join
from offline_rl.data.dataset import Dataset
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.options import build
from policies import channels

ACTIONS, VECTOR = "actions", "observations"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Mirror of the actions or of one channel, applied in the order of the fields."""

    source: str | None = None  # channel to mirror into this one; default: this channel
    swap: tuple[tuple[int, int], ...] = ()  # pairs of columns to exchange
    negate: tuple[int, ...] = ()  # columns whose sign changes
    center: dict | None = None  # negated column -> its center: x becomes 2 * center - x
    flip: Literal["columns", "rows"] | None = None  # images: left-right or up-down

    def apply(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the mirrored values, [N, columns] or [N, H, W, C]. Raises UserError."""
        if channels.is_image(values.shape[1:]):
            if self.swap or self.negate or self.center:
                raise UserError(f"mirror of {name}: an image can only be flipped. Set only flip.")
            columns = -1 if self.flip == "columns" else 1
            return values[:, :: -1 if self.flip == "rows" else 1, ::columns]
        center, size = self.center or {}, values.shape[1]
        if self.flip is not None:
            raise UserError(f"mirror of {name}: only images can be flipped. Remove flip.")
        used = {*self.negate, *center, *(k for pair in self.swap for k in pair)}
        if outside := sorted(k for k in used if not 0 <= k < size):
            raise UserError(
                f"mirror of {name}: column {outside[0]} does not exist. Use 0 to {size - 1}."
            )
        if wrong := [pair for pair in self.swap if len(pair) != 2]:
            raise UserError(f"mirror of {name}: swap has {[*wrong[0]]}. Use pairs of columns.")
        if without := sorted(center.keys() - {*self.negate}):
            raise UserError(f"mirror of {name}: column {without[0]} has a center. Negate it too.")
        order = np.arange(size)
        for i, j in self.swap:
            order[[i, j]] = order[[j, i]]
        mirrored = values[:, order]
        mirrored[:, [*self.negate]] *= -1
        for k, value in center.items():
            mirrored[:, k] += 2 * value
        return mirrored


def parse_mirror(values: Mapping[str, Any], where: str) -> dict[str, Part]:
    """Return the parts of a mirror. Raises UserError if an entry is not valid."""
    for name, part in values.items():
        if not isinstance(part, Mapping):
            raise UserError(
                f"{where}: {name}={part!r} is not a mapping. Use {name}: {{negate: [0]}}."
            )
    return {name: build(Part, part, f"{where}: {name}.") for name, part in values.items()}


def read_mirror(path: str | Path) -> dict[str, Part]:
    """Return the mirror in a YAML file. Raises UserError."""
    return parse_mirror(read_yaml(Path(path)), str(path))


def mirror(data: Dataset, parts: Mapping[str, Part]) -> Dataset:
    """Return the mirror images of all episodes. Rewards, flags and extra columns are unchanged.

    Raises UserError if a part names a channel that the data do not have, or does not fit it.
    """
    single = not isinstance(data.observations, Mapping)
    named = {VECTOR: data.observations} if single else data.observations
    observed = {name: np.asarray(values) for name, values in named.items()}  # decodes videos
    names = {*parts, *(part.source for part in parts.values() if part.source)}
    if missing := sorted(names - observed.keys() - {ACTIONS}):
        raise UserError(
            f"{data.path or data.name}: the mirror names {missing[0]!r}, but the data have "
            f"{', '.join(observed)} and actions. Correct the mirror."
        )
    mirrored = {
        name: part.apply(observed[part.source or name], name)
        for name, part in ((name, parts.get(name, Part())) for name in observed)
    }
    for name, values in mirrored.items():
        if values.shape != observed[name].shape:
            raise UserError(
                f"mirror of {name}: its source has another shape, {list(values.shape[1:])} instead "
                f"of {list(observed[name].shape[1:])}. Correct source."
            )
    return replace(
        data,
        observations=mirrored[VECTOR] if single else mirrored,
        actions=parts.get(ACTIONS, Part()).apply(data.actions, ACTIONS),
        sha256=None,
    )


def with_mirror(data: Dataset, parts: Mapping[str, Part]) -> Dataset:
    """Return the episodes, followed by their mirror images. Raises UserError; see `mirror`."""
    return join([data, mirror(data, parts)])

"""Everything that is wrong, or looks wrong, with a data set, found in one pass."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from offline_rl.data.containers.raw import open_raw
from offline_rl.data.dataset import Dataset
from offline_rl.data.doubts import columns_of, doubts
from offline_rl.data.faults import faults
from offline_rl.data.formats.common import Bounds, ReadOptions
from offline_rl.data.formats.recognise import gather
from offline_rl.data.read import check_options, limits, scaled
from offline_rl.utils.errors import UserError


class Problem(NamedTuple):
    severity: Literal["error", "warning"]  # an error is refused by `read`, a warning is not
    sentence: str


def validate(
    source: str | Path | Dataset,
    *,
    max_episode_steps: int | None = None,
    options: ReadOptions | None = None,
) -> list[Problem]:
    """All problems of a file or a data set, errors first; an empty list is a clean bill.

    max_episode_steps: longer episodes are then reported.  options: how the file is to be read.
    """
    names: Mapping[str, str] = {}
    problems: list[Problem] = []
    notes: Sequence[str] = ()
    bounds: Bounds | None = None
    if isinstance(source, Dataset):
        where, columns, notes = source.path or source.name, columns_of(source), source.notes
    else:
        where = str(source)
        columns, names, notes, bounds, sentences = _gather(Path(source), options or ReadOptions())
        problems += [Problem("error", sentence) for sentence in sentences]
    problems += [Problem("error", sentence) for sentence in faults(columns, where, names, bounds)]
    if not problems:
        found = dict.fromkeys([*notes, *doubts(columns, names, max_episode_steps)])
        problems += [Problem("warning", f"{where}: {doubt}") for doubt in found]
    return problems


def unreadable(path: Path) -> list[str]:
    """Why a file is not, or not wholly, a data set: damage, another layout, a missing array."""
    return _gather(path, ReadOptions())[-1]


def _gather(
    path: Path, options: ReadOptions
) -> tuple[dict[str, np.ndarray], Mapping[str, str], Sequence[str], Bounds | None, list[str]]:
    """Return the arrays that can be read, the file's names for them, notes, the actions' limits,
    and why other arrays cannot be read.
    """
    sentences: list[str] = []
    try:
        check_options(options)
        with open_raw(path) as raw:
            found = gather(raw, options, sentences.append)
            columns, bounds = scaled(raw.where, found, options), limits(raw.where, found, options)
        return columns, found.keys, found.notes, bounds, sentences
    except UserError as error:
        return {}, {}, (), None, [*sentences, str(error)]

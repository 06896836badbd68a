"""Everything that is wrong, or looks wrong, with a data set, found in one pass."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from offline_rl.data.containers.raw import open_raw
from offline_rl.data.dataset import Dataset
from offline_rl.data.doubts import columns_of, doubts
from offline_rl.data.faults import faults
from offline_rl.data.formats.common import Bounds, Found, ReadOptions
from offline_rl.data.formats.recognize import gather
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
    problems: list[Problem] = []
    bounds: Bounds | None = None
    if isinstance(source, Dataset):
        where = source.path or source.name
        found = Found("data", columns_of(source), {}, notes=source.notes)
    else:
        where = str(source)
        found, bounds, sentences = _gather(Path(source), options or ReadOptions())
        problems += [Problem("error", sentence) for sentence in sentences]
    columns, names = found.columns, found.keys
    sentences = [*faults(columns, where, names, bounds, found.observation_names)]
    problems += [Problem("error", sentence) for sentence in sentences]
    if not problems:
        said = dict.fromkeys(
            [*found.notes, *doubts(columns, names, max_episode_steps, found.notes)]
        )
        problems += [Problem("warning", f"{where}: {doubt}") for doubt in said]
    return problems


def unreadable(path: Path) -> list[str]:
    """Why a file is not, or not wholly, a data set: damage, another layout, a missing array."""
    return _gather(path, ReadOptions())[-1]


def _gather(path: Path, options: ReadOptions) -> tuple[Found, Bounds | None, list[str]]:
    """Return what can be read, the actions' limits, and why other arrays cannot be read."""
    sentences: list[str] = []
    try:
        check_options(options)
        with open_raw(path) as raw:
            found = gather(raw, options, sentences.append)
            columns, bounds = scaled(raw.where, found, options), limits(raw.where, found, options)
        return replace(found, columns=columns), bounds, sentences
    except UserError as error:
        return Found("unknown", {}, {}), None, [*sentences, str(error)]

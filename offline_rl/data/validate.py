"""Everything that is wrong, or looks wrong, with a data set, found in one pass."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from offline_rl.data.containers.raw import open_raw
from offline_rl.data.dataset import Dataset, differs
from offline_rl.data.faults import faults
from offline_rl.data.formats.common import ReadOptions
from offline_rl.data.formats.flat import jumps
from offline_rl.data.formats.recognise import gather
from offline_rl.data.read import check_options, scaled
from offline_rl.utils.errors import UserError
from policies import channels


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
    if isinstance(source, Dataset):
        where, columns, notes = source.path or source.name, _columns(source), source.notes
    else:
        where = str(source)
        columns, names, notes, sentences = _gather(Path(source), options or ReadOptions())
        problems += [Problem("error", sentence) for sentence in sentences]
    problems += [Problem("error", sentence) for sentence in faults(columns, where, names)]
    if not problems:
        doubts = [*notes, *_doubts(columns, names, max_episode_steps)]
        problems += [Problem("warning", f"{where}: {doubt}") for doubt in doubts]
    return problems


def unreadable(path: Path) -> list[str]:
    """Why a file is not, or not wholly, a data set: damage, another layout, a missing array."""
    return _gather(path, ReadOptions())[3]


def _columns(data: Dataset) -> dict[str, np.ndarray]:
    columns: dict[str, Any] = {
        "observations": channels.take(data.observations, slice(data.num_rows)),
        "actions": data.actions,
        "rewards": data.rewards,
        "terminated": data.terminated,
        "truncated": data.truncated,
    }
    columns |= {"next_observations": data.next_observations} if data.usable.all() else {}
    return channels.flat(columns)


def _gather(
    path: Path, options: ReadOptions
) -> tuple[dict[str, np.ndarray], Mapping[str, str], Sequence[str], list[str]]:
    """The arrays that can be read, the file's names for them, notes, and why others cannot be."""
    sentences: list[str] = []
    try:
        check_options(options)
        with open_raw(path) as raw:
            found = gather(raw, options, sentences.append)
        return scaled(raw.where, found, options), found.keys, found.notes, sentences
    except UserError as error:
        return {}, {}, (), [*sentences, str(error)]


def _doubts(
    columns: Mapping[str, np.ndarray], names: Mapping[str, str], max_episode_steps: int | None
) -> Iterator[str]:
    """What sound arrays still make one doubt."""
    ended = columns["terminated"] != 0
    cut = columns["truncated"] != 0 if "truncated" in columns else np.zeros_like(ended)
    last = ended | cut
    terminals = names.get("terminated", "terminated")
    if "truncated" not in columns:
        yield (
            f"there are no time-outs (timeouts or truncated), so episodes end only at {terminals}. "
            f"If the environment has a time limit, give max_episode_steps=..."
        )
    if not last.any():
        yield f"no row is flagged as an end: all {len(ended):,} rows count as one episode."
    elif not last[-1]:
        begun = len(last) - 1 - int(np.flatnonzero(last)[-1])
        yield f"the last episode has no flag after its {begun:,} rows: it counts as timed out."
    yield from _continuity(columns, names, last)

    lengths = np.diff(np.concatenate([[-1], np.flatnonzero(last), [len(last) - 1]]))
    if max_episode_steps is not None and lengths.max() > max_episode_steps:
        yield (
            f"{(lengths > max_episode_steps).sum():,} episodes are longer than the limit of "
            f"{max_episode_steps:,} steps, the longest has {lengths.max():,}: ends are missing."
        )
    for word, array in columns.items():
        if word.partition("/")[0] not in ("observations", "actions", "rewards") or array.ndim == 4:
            continue  # pictures have margins
        flat = array.reshape(len(last), -1)
        constant = np.flatnonzero((flat == flat[0]).all(axis=0))
        if len(constant) and len(flat) > 1:
            shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
            yield (
                f"{names.get(word, word)}: {len(constant)} of {flat.shape[1]} columns never change "
                f"({shown}). Is a sensor dead, or a field unset?"
            )


def _continuity(
    columns: Mapping[str, np.ndarray], names: Mapping[str, str], last: np.ndarray
) -> Iterator[str]:
    """Stored next observations against the next rows, where the flags say what to expect."""
    if (final := channels.of(columns, "final_observations")) is not None:
        found, expected = channels.size(final), int(last.sum() + (not last[-1]))
        if found != expected:
            yield f"final_observations has {found:,} rows for {expected:,} episodes."
    stored = channels.of(columns, "next_observations")
    observations = channels.of(columns, "observations")
    if stored is None:
        return
    key = names.get("next_observations", "next_observations")
    jumped = jumps(observations, stored) & ~last
    if jumped.any():
        yield (
            f"{key} in row {int(jumped.argmax()):,} is not the observation of the row after it, "
            f"and no end is flagged ({jumped.sum():,} such rows): a time-out or a terminal is "
            f"missing, or rows are."
        )
    runs_on = ~differs(stored, observations) & last
    if runs_on.any():
        yield (
            f"the end flagged in row {int(runs_on.argmax()):,} is none: {key} is the observation "
            f"of the row after it ({runs_on.sum():,} such rows)."
        )

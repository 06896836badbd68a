"""Validation of a data set: all errors and warnings in one pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from offline_rl.data.action_range import check_options, limits, scale_actions
from offline_rl.data.checks import describe_overshoot, find_errors
from offline_rl.data.containers.raw import open_raw
from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.dataset import NO_REWARDS, Dataset, differs_from_next
from offline_rl.data.formats.common import Bounds, ParsedFile, ReadOptions
from offline_rl.data.formats.flat import find_jumps
from offline_rl.data.formats.recognize import parse
from offline_rl.utils.errors import UserError
from policies import channels

HUGE = 1e8  # larger numbers give a warning: squares and sums of them can overflow in training


class Problem(NamedTuple):
    """An error or a warning, as one sentence."""

    severity: Literal["error", "warning"]  # `read` raises errors and returns warnings as notes
    sentence: str


def validate(
    source: str | Path | Dataset,
    *,
    max_episode_steps: int | None = None,
    options: ReadOptions | None = None,
) -> list[Problem]:
    """Return all problems of a file or a data set, errors first.

    max_episode_steps: longer episodes are reported.  options: options of reading the file.
    """
    problems: list[Problem] = []
    bounds: Bounds | None = None
    if isinstance(source, Dataset):
        where = source.path or source.name
        parsed = ParsedFile("data", columns_of(source), {}, notes=source.notes)
    else:
        where = str(source)
        parsed, bounds, sentences = _parse_readable(Path(source), options or ReadOptions())
        problems += [Problem("error", sentence) for sentence in sentences]
    columns, names = parsed.columns, parsed.keys
    sentences = [*find_errors(columns, where, names, bounds, parsed.observation_names)]
    sentences += damaged_videos(columns)
    problems += [Problem("error", sentence) for sentence in sentences]
    if not problems:
        warnings = [*parsed.notes, *find_warnings(columns, names, max_episode_steps, parsed.notes)]
        problems += [Problem("warning", f"{where}: {line}") for line in dict.fromkeys(warnings)]
    return problems


def find_read_errors(path: Path) -> list[str]:
    """Return the reasons why a file cannot be read: damage, an unknown layout, a missing array."""
    return _parse_readable(path, ReadOptions())[-1]


def _parse_readable(
    path: Path, options: ReadOptions
) -> tuple[ParsedFile, Bounds | None, list[str]]:
    """Return the readable arrays, the actions' limits, and why other arrays cannot be read."""
    sentences: list[str] = []
    try:
        check_options(options)
        with open_raw(path) as raw:
            parsed = parse(raw, options, sentences.append)
            columns = scale_actions(raw.where, parsed, options)
            bounds = limits(raw.where, parsed, options)
        return replace(parsed, columns=columns), bounds, sentences
    except UserError as error:
        return ParsedFile("unknown", {}, {}), None, [*sentences, str(error)]


def columns_of(data: Dataset) -> dict[str, np.ndarray]:
    """Return the arrays of a data set by the argument names of `Dataset.from_arrays`."""
    columns: dict[str, Any] = {
        "observations": channels.take(data.observations, slice(data.num_rows)),
        "actions": data.actions,
        "rewards": data.rewards,
        "terminated": data.terminated,
        "truncated": data.truncated,
    }
    columns |= {} if data.continues is None else {"continues": data.continues}
    streamed = any(isinstance(x, VideoFrames) for x in channels.parts(data.observations))
    if data.usable.all() and not streamed:
        columns["next_observations"] = data.next_observations
    return channels.flatten(columns)


def damaged_videos(columns: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each column with images of a video that cannot be decoded."""
    for values in columns.values():
        if isinstance(values, VideoFrames):
            try:
                values.check()
            except UserError as error:
                yield str(error)


def find_warnings(
    columns: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    max_episode_steps: int | None,
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a warning for each suspicious property of valid arrays, for `data check` and `train`.

    names: column -> the file's name of it.  max_episode_steps: longer episodes are reported.
    notes: notes from reading the file.
    """
    if (note := describe_overshoot(columns["actions"])) is not None:
        yield f"{names.get('actions', 'actions')} {note}"
    is_terminated = columns["terminated"] != 0
    is_truncated = (
        columns["truncated"] != 0 if "truncated" in columns else np.zeros_like(is_terminated)
    )
    last = is_terminated | is_truncated
    last &= ~columns.get("continues", np.zeros_like(last))
    terminals = names.get("terminated", "terminated")
    if "truncated" not in columns and max_episode_steps is None:
        yield (
            f"no time-outs are stored (timeouts or truncated), so episodes end only at "
            f"{terminals}. If the environment has a time limit, give max_episode_steps=..."
        )
    if not last.any():
        yield f"no row is flagged as an end: all {len(is_terminated):,} rows count as one episode."
    elif not last[-1]:
        length = len(last) - 1 - int(np.flatnonzero(last)[-1])
        yield f"the last episode has no flag after its {length:,} rows: it counts as timed out."
    yield from _check_continuity(columns, names, last)

    lengths = np.diff(np.concatenate([[-1], np.flatnonzero(last), [len(last) - 1]]))
    if max_episode_steps is not None and lengths.max() > max_episode_steps:
        yield (
            f"{(lengths > max_episode_steps).sum():,} episodes are longer than the limit of "
            f"{max_episode_steps:,} steps (the longest has {lengths.max():,}). Check for missing "
            "terminal and time-out flags."
        )
    for column, array in columns.items():
        checked = column.partition("/")[0] in ("observations", "actions", "rewards")
        absent = column == "rewards" and NO_REWARDS in notes
        if not checked or array.dtype == np.uint8 or absent:
            continue
        flat = array.reshape(len(last), -1)
        low, high = flat.min(), flat.max()
        if max(-low, high) > HUGE:
            worst = low if -low > high else high
            row = int((flat == worst).any(axis=1).argmax())
            yield (
                f"{names.get(column, column)} reach {worst:.3g} in row {row:,}. Training on such "
                f"numbers overflows. Check for a sensor error or a wrong unit."
            )
        constant = np.flatnonzero((flat == flat[0]).all(axis=0))
        if len(constant) and len(flat) > 1 and flat.shape[1] == 1:
            yield (
                f"{names.get(column, column)}: {flat[0, 0]:g} in every row. Check for a dead "
                f"sensor or a field that was never set."
            )
        elif len(constant) and len(flat) > 1:
            shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
            yield (
                f"{names.get(column, column)}: {len(constant)} of {flat.shape[1]} columns never "
                f"change ({shown}). Check for a dead sensor or a field that was never set."
            )


def _check_continuity(
    columns: Mapping[str, np.ndarray], names: Mapping[str, str], last: np.ndarray
) -> Iterator[str]:
    """Compare stored next observations with the next rows; yield a warning if flags disagree."""
    if (final := channels.get(columns, "final_observations")) is not None:
        count, expected = channels.size(final), int(last.sum() + (not last[-1]))
        if count != expected:
            yield (
                f"final_observations has {count:,} rows for {expected:,} episodes. It needs one "
                "row for each episode."
            )
    stored = channels.get(columns, "next_observations")
    observations = channels.get(columns, "observations")
    if stored is None:
        return
    key = names.get("next_observations", "next_observations")
    jumped = find_jumps(observations, stored) & ~last
    if jumped.any():
        yield (
            f"{key} in row {int(jumped.argmax()):,} is not the observation of the next row, and "
            f"the row is not flagged as an end ({jumped.sum():,} such rows). A time-out flag, a "
            f"terminal flag or rows are missing."
        )
    continues = ~differs_from_next(stored, observations) & last
    if continues.any():
        yield (
            f"row {int(continues.argmax()):,} is flagged as an end, but its {key} is the "
            f"observation of the next row ({continues.sum():,} such rows). Check the flag."
        )

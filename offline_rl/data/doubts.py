"""What looks wrong with sound data: said, not refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offline_rl.data.dataset import NO_REWARDS, Dataset, differs
from offline_rl.data.faults import overshoot
from offline_rl.data.formats.flat import jumps
from policies import channels

HUGE = 1e8  # its square still fits float32; values of several such steps do not


def columns_of(data: Dataset) -> dict[str, np.ndarray]:
    """Its arrays, as a file would hold them."""
    columns: dict[str, Any] = {
        "observations": channels.take(data.observations, slice(data.num_rows)),
        "actions": data.actions,
        "rewards": data.rewards,
        "terminated": data.terminated,
        "truncated": data.truncated,
    }
    columns |= {"next_observations": data.next_observations} if data.usable.all() else {}
    return channels.flat(columns)


def doubts(
    columns: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    max_episode_steps: int | None,
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a sentence for whatever looks wrong in sound arrays, for `data check` and `train`.

    names: what the file calls the arrays. max_episode_steps: longer episodes are then reported.
    notes: those of reading the file.
    """
    if (note := overshoot(columns["actions"])) is not None:
        yield f"{names.get('actions', 'actions')} {note}"
    ended = columns["terminated"] != 0
    cut = columns["truncated"] != 0 if "truncated" in columns else np.zeros_like(ended)
    last = ended | cut
    terminals = names.get("terminated", "terminated")
    if "truncated" not in columns and max_episode_steps is None:
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
        known = word.partition("/")[0] in ("observations", "actions", "rewards")
        absent = word == "rewards" and NO_REWARDS in notes
        if not known or array.dtype == np.uint8 or absent:
            continue
        flat = array.reshape(len(last), -1)
        low, high = flat.min(), flat.max()
        if max(-low, high) > HUGE:
            worst = low if -low > high else high
            row = int((flat == worst).any(axis=1).argmax())
            yield (
                f"{names.get(word, word)} reach {worst:.3g} in row {row:,}: what is learned from "
                f"such numbers overflows. Is it a sensor's error, or another unit?"
            )
        constant = np.flatnonzero((flat == flat[0]).all(axis=0))
        if len(constant) and len(flat) > 1 and flat.shape[1] == 1:
            yield (
                f"{names.get(word, word)}: {flat[0, 0]:g} in every row. Is a sensor dead, or a "
                f"field unset?"
            )
        elif len(constant) and len(flat) > 1:
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

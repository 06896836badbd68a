"""Conversion of a data set from one layout to another."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.data.formats.common import Reading
from offline_rl.data.info import describe_action_range
from offline_rl.data.load import load
from offline_rl.data.writers.d4rl import Following, write, write_npz
from offline_rl.data.writers.lerobot import write_lerobot
from offline_rl.data.writers.minari import write_minari
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import FileFormat
from offline_rl.utils.words import unknown

Format = Literal["d4rl", "npz", "minari", "lerobot"]
BY_ENDING: dict[str, Format] = {".hdf5": "d4rl", ".h5": "d4rl", ".npz": "npz"}


@dataclass(frozen=True, kw_only=True)
class Options(Reading):
    """Options of reading and writing a data set."""

    format: Format | None = None  # convert: layout to write; info, check: layout of the file
    source_format: FileFormat | None = None  # layout of the file; default: recognized by content
    dataset_id: str | None = None  # convert to minari: the data set's id; the path must end with it
    drop_unusable: bool = False  # convert: leave out time-outs without a next observation


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: Format | None = None,
    data_dir: str | Path | None = None,
    source_format: FileFormat | None = None,
    dataset_id: str | None = None,
    drop_unusable: bool = False,
    **options: Any,
) -> str:
    """Write the data set of a file, folder, card or task in another layout; return a summary.

    format: layout to write; default: d4rl for .hdf5 and .h5, npz for .npz, else minari (a folder).
    source_format: layout of the source; passed to `read` as `format`.
    drop_unusable: leave out time-out rows whose next observation is unknown. The observation of
    such a row becomes the next observation of the row before it.
    options: options of `read`.
    Raises UserError, also if the target exists.
    """
    target, layout = new_target(target, format, dataset_id)
    if source_format is not None:
        options["format"] = source_format
    data = load(source, data_dir, **options)
    return save(data, target, layout, dataset_id=dataset_id, drop_unusable=drop_unusable)


def new_target(
    target: str | Path, format: str | None = None, dataset_id: str | None = None
) -> tuple[Path, str]:
    """Return the path and the layout of a data set to write; see `convert`. Raises UserError."""
    path = Path(target).expanduser()
    if path.exists():
        raise UserError(f"{path} already exists. Choose another file, or remove it.")
    layout = format or BY_ENDING.get(path.suffix, "minari")
    if layout not in get_args(Format):
        raise UserError(unknown("format", layout, get_args(Format)))
    if layout != "minari" and dataset_id is not None:
        raise UserError(f"dataset_id is only for format=minari, not {layout}. Leave it out.")
    return path, layout


def save(
    data: Dataset,
    target: Path,
    layout: str,
    *,
    dataset_id: str | None = None,
    drop_unusable: bool = False,
) -> str:
    """Write a data set to the new file or folder `target`; return a summary. See `convert`."""
    source, notes = data.path or data.name, list(data.notes)
    if data.continues is not None:
        raise UserError(
            f"{source}: {data.continues.sum():,} rows terminate while their episode continues, "
            f"which no layout can store. Convert the file itself, without a task: {data.path}."
        )
    if drop_unusable and (unusable := int((~data.usable).sum())):
        notes.append(f"{unusable:,} time-out rows without a next observation left out")
        data = data.take(np.flatnonzero(data.usable))
    # A gap is a row in the middle of an episode whose next observation is unknown.
    gaps = ~data.usable & ~data.terminated & ~data.truncated
    if gaps.any():
        data = replace(data, truncated=data.truncated | gaps)
        notes.append(f"{gaps.sum():,} gaps end an episode: no layout can store gaps (missing rows)")
    if layout == "minari":
        if unusable := int((~data.usable).sum()):
            raise UserError(
                f"{source}: {unusable:,} rows have no next observation, and Minari's layout needs "
                f"one after each episode. Leave these rows out with drop_unusable=true."
            )
        write_minari(data, target, dataset_id=dataset_id)
        if lost := [key for key in data.extras if key != "costs"]:
            notes.append(f"not in Minari's layout, left out: {', '.join(lost)}")
    elif layout == "lerobot":
        if data.spec is None or data.spec.rate_hz is None:
            raise UserError(
                f"{source} does not state the number of steps per second, which LeRobot's layout "
                "needs. For the data of a script, use offline-rl generate … format=lerobot."
            )
        write_lerobot(data, target, fps=round(data.spec.rate_hz, 6), task=data.name)
        if data.extras:
            notes.append(f"not in LeRobot's layout, left out: {', '.join(data.extras)}")
    else:
        writer = write if layout == "d4rl" else write_npz
        writer(data, target, next_observations=required_next(data))
    summary = f"{target}: {data.num_rows:,} rows, {data.num_episodes:,} episodes as {layout}"
    if action_range := describe_action_range(data):
        notes.insert(0, f"actions are written in [-1, 1]: {action_range}")
    return "\n".join([summary, *notes])


def required_next(data: Dataset) -> Following:
    """Return which next observations a D4RL file must store, so that reading it gives `data`.

    Raises UserError if no such file exists, because only some time-out rows have a next
    observation.
    """
    if data.usable.all():
        return "all"
    last = data.terminated | data.truncated
    follows = data.next_index == np.arange(1, data.num_rows + 1)
    if data.usable[data.truncated].any() or not follows[~last].all():
        raise UserError(
            f"{data.path or data.name}: {(~data.usable).sum():,} rows have no next observation, "
            f"and others have one. D4RL's layout cannot store both kinds. Leave out rows without "
            f"one: drop_unusable=true."
        )
    return "none"

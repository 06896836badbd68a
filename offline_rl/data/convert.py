"""A data set from one layout to another."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.data.formats.common import Reading
from offline_rl.data.info import stands_for
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
    """How a data set is to be read and written."""

    format: Format | None = None  # of convert: layout to write; of info, check: as source_format
    source_format: FileFormat | None = None  # layout of the file; default: recognized
    dataset_id: str | None = None  # of convert: Minari's name, which the folder's path ends with
    drop_unusable: bool = False  # of convert: leave out time-outs without a next observation


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
    """Write the data set of a file, folder, card or task in another layout; return what was done.

    format: default by the target's ending: d4rl for .hdf5, npz for .npz, else minari (a folder).
    source_format: layout of the source, the `format` of `read`.
    drop_unusable: leave out the time-out rows whose next observation is unknown; the observation of
    such a row then is the one after the row before.
    options: of `read`.  Raises UserError where the target is there already, with nothing written.
    """
    target = Path(target).expanduser()
    if target.exists():
        raise UserError(f"{target} is there already; name another file, or remove it.")
    form = format or BY_ENDING.get(target.suffix, "minari")
    if form not in get_args(Format):
        raise UserError(unknown("format", form, get_args(Format)))
    if form != "minari" and dataset_id is not None:
        raise UserError(f"dataset_id is Minari's; the format is {form}. Leave it out.")
    if source_format is not None:
        options["format"] = source_format
    data = load(source, data_dir, **options)
    notes = list(data.notes)
    if drop_unusable and (unusable := int((~data.usable).sum())):
        notes.append(f"{unusable:,} time-out rows without a next observation left out")
        data = data.take(np.flatnonzero(data.usable))
    gaps = ~data.usable & ~data.terminated & ~data.truncated
    if gaps.any():
        data = replace(data, truncated=data.truncated | gaps)
        notes.append(f"{gaps.sum():,} gaps end an episode here: no layout of ours tells of them")
    if form == "minari":
        if unusable := int((~data.usable).sum()):
            raise UserError(
                f"{source}: {unusable:,} rows have no next observation, and Minari's layout needs "
                f"one after each episode. Leave these rows out with drop_unusable=true."
            )
        write_minari(data, target, dataset_id=dataset_id)
        if lost := [key for key in data.extras if key != "costs"]:
            notes.append(f"not in Minari's layout, left out: {', '.join(lost)}")
    elif form == "lerobot":
        if data.spec is None or data.spec.rate_hz is None:
            raise UserError(
                f"{source} does not say how many steps a second; LeRobot's layout does. A "
                "script's sets are written so by offline-rl generate … format=lerobot."
            )
        write_lerobot(data, target, fps=round(data.spec.rate_hz, 6), task=data.name)
        if data.extras:
            notes.append(f"not in LeRobot's layout, left out: {', '.join(data.extras)}")
    else:
        writer = write if form == "d4rl" else write_npz
        writer(data, target, next_observations=following(data))
    told = f"{target}: {data.num_rows:,} rows, {data.num_episodes:,} episodes as {form}"
    if mapped := stands_for(data):
        notes.insert(0, f"actions are written in [-1, 1]: {mapped}")
    return "\n".join([told, *notes])


def following(data: Dataset) -> Following:
    """Which next observations a file in D4RL's words must hold to be read as this data set.

    Raises UserError where it cannot be: only some of the time-out rows have one.
    """
    if data.usable.all():
        return "all"
    last = data.terminated | data.truncated
    follows = data.next_index == np.arange(1, data.num_rows + 1)
    if data.usable[data.truncated].any() or not follows[~last].all():
        raise UserError(
            f"{data.path or data.name}: {(~data.usable).sum():,} rows have no next observation and "
            f"others have one of their own, which no file in D4RL's words can tell. Leave the "
            f"former out with drop_unusable=true."
        )
    return "none"

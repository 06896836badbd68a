"""A data set as a D4RL-layout HDF5 file: complete under its name, or not there at all."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.errors import UserError
from offline_rl.files import write_atomically

Scalar = str | int | float | bool


def write(
    data: Dataset,
    path: str | Path,
    *,
    next_observations: Literal["all", "final", "none"] = "all",
    metadata: Mapping[str, Scalar] | None = None,
) -> Path:
    """Writes `data` as HDF5 in D4RL's layout and returns the path.

    next_observations: "all" as D4RL's gym files; "final" only those after each episode's last row,
    as `final_observations`, the others being the next rows' observations; "none" leaves them out,
    so that time-out rows are no transitions when read again.
    metadata: scalars, written below metadata/ as D4RL does.
    The same data give the same bytes (with the same HDF5 and zlib).
    Raises UserError if the file cannot be written; nothing is left behind then.
    """
    if next_observations not in ("all", "final", "none"):
        raise UserError(f"next_observations={next_observations!r}: all, final or none is expected.")
    rows = data.num_rows
    arrays = {
        "observations": data.observations[:rows],
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "timeouts": data.truncated,
        **data.extras,
    }
    if next_observations == "all":
        arrays["next_observations"] = data.next_observations
    elif next_observations == "final":
        arrays["final_observations"] = _final_observations(data)

    buffer = io.BytesIO()  # compressed in memory, so that only plain writes can fail
    with h5py.File(buffer, "w", libver=("earliest", "v110")) as file:
        for key, array in arrays.items():
            file.create_dataset(
                key, data=array, compression="gzip", shuffle=True, track_times=False
            )
        for key, value in (metadata or {}).items():
            file.create_dataset(f"metadata/{key}", data=value, track_times=False)
    path = Path(path)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    return path


def _final_observations(data: Dataset) -> np.ndarray:
    """[E, *obs]: what follows each episode's last row. Raises UserError if that is not all."""
    ends = data.episode_ends
    inside = np.ones(data.num_rows, bool)
    inside[ends] = False
    if (data.next_index != np.arange(1, data.num_rows + 1))[inside].any():
        raise UserError(
            f"{data.path or data.name}: a next observation inside an episode is not the next row's "
            f'observation; only next_observations="all" keeps it.'
        )
    return data.next_observations[ends]

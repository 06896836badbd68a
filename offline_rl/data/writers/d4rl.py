"""Writer of data sets in D4RL's layout: one HDF5 or NPZ file, written atomically."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from policies import channels
from policies.channels import Observations

Scalar = str | int | float | bool
Following = Literal["all", "final", "none"]


def write(
    data: Dataset,
    path: str | Path,
    *,
    next_observations: Following = "all",
    metadata: Mapping[str, Scalar] | None = None,
) -> Path:
    """Write `data` as HDF5 in D4RL's layout; return the path.

    next_observations: "all": store the next observation of every row, as in D4RL's gym files.
    "final": store only the observation after each episode's last row, as `final_observations`; all
    others must be the next rows' observations. "none": store none; time-out rows are then not
    transitions when the file is read.
    metadata: scalars, written below metadata/ as in D4RL.
    Equal data give equal bytes (with the same versions of HDF5 and zlib).
    Raises UserError if the file cannot be written; then no partial file remains.
    """
    columns = to_d4rl(data, next_observations)
    buffer = io.BytesIO()  # compressed in memory, so that only the final write can fail
    with h5py.File(buffer, "w", libver=("earliest", "v110")) as file:
        for key, array in columns.items():
            file.create_dataset(
                key, data=array, compression="gzip", shuffle=True, track_times=False
            )
        for key, value in (metadata or {}).items():
            file.create_dataset(f"metadata/{key}", data=value, track_times=False)
    path = Path(path)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    return path


def write_npz(data: Dataset, path: str | Path, *, next_observations: Following = "all") -> Path:
    """Write the arrays of D4RL's layout as a compressed NPZ archive; return the path."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **to_d4rl(data, next_observations))  # type: ignore[arg-type]
    path = Path(path)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    return path


def to_d4rl(data: Dataset, next_observations: Following) -> dict[str, np.ndarray]:
    """Return the arrays of a data set by D4RL's names; see `write`."""
    if next_observations not in ("all", "final", "none"):
        raise UserError(f"next_observations={next_observations!r}. Use all, final or none.")
    columns: dict[str, Any] = {
        "observations": channels.take(data.observations, slice(data.num_rows)),
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "timeouts": data.truncated,
        **data.extras,
    }
    if next_observations == "all":
        columns["next_observations"] = data.next_observations
    elif next_observations == "final":
        columns["final_observations"] = final_observations(data)
    return channels.flatten(columns)


def final_observations(data: Dataset) -> Observations:
    """Return the observation after each episode's last row, [E, *obs].

    Raises UserError if a next observation within an episode is not the next row's observation.
    """
    inside = ~(data.terminated | data.truncated)
    if (data.next_index != np.arange(1, data.num_rows + 1))[inside].any():
        raise UserError(
            f"{data.path or data.name}: a next observation inside an episode is not the next row's "
            f"observation. Only D4RL's layout with all next observations can store this."
        )
    return channels.take(data.next_observations, data.episode_ends)

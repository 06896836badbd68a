"""A data set as one file in D4RL's words, HDF5 or NPZ: complete under its name, or not there."""

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
    """Writes `data` as HDF5 in D4RL's layout and returns the path.

    next_observations: "all" as D4RL's gym files; "final" only those after each episode's last row,
    as `final_observations`, the others being the next rows' observations; "none" leaves them out,
    so that time-out rows are no transitions when read again.
    metadata: scalars, written below metadata/ as D4RL does.
    The same data give the same bytes (with the same HDF5 and zlib).
    Raises UserError if the file cannot be written; nothing is left behind then.
    """
    found = arrays(data, next_observations)
    buffer = io.BytesIO()  # compressed in memory, so that only plain writes can fail
    with h5py.File(buffer, "w", libver=("earliest", "v110")) as file:
        for key, array in found.items():
            file.create_dataset(
                key, data=array, compression="gzip", shuffle=True, track_times=False
            )
        for key, value in (metadata or {}).items():
            file.create_dataset(f"metadata/{key}", data=value, track_times=False)
    path = Path(path)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    return path


def write_npz(data: Dataset, path: str | Path, *, next_observations: Following = "all") -> Path:
    """Writes the same arrays as a compressed NPZ archive and returns the path."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays(data, next_observations))  # type: ignore[arg-type]
    path = Path(path)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()))
    return path


def arrays(data: Dataset, next_observations: Following) -> dict[str, np.ndarray]:
    """The data set in D4RL's words."""
    if next_observations not in ("all", "final", "none"):
        raise UserError(f"next_observations={next_observations!r}: all, final or none is expected.")
    found: dict[str, Any] = {
        "observations": channels.take(data.observations, slice(data.num_rows)),
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "timeouts": data.truncated,
        **data.extras,
    }
    if next_observations == "all":
        found["next_observations"] = data.next_observations
    elif next_observations == "final":
        found["final_observations"] = final_observations(data)
    return channels.flatten(found)


def final_observations(data: Dataset) -> Observations:
    """[E, *obs]: what follows each episode's last row. Raises UserError if that is not all."""
    inside = ~(data.terminated | data.truncated)
    if (data.next_index != np.arange(1, data.num_rows + 1))[inside].any():
        raise UserError(
            f"{data.path or data.name}: a next observation inside an episode is not the next row's "
            f"observation, which only a column of all next observations keeps."
        )
    return channels.take(data.next_observations, data.episode_ends)

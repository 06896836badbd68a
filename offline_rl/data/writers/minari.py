"""Writer of data sets in Minari's HDF5 layout, which the `minari` package reads.

    <path>/data/main_data.hdf5   episode_<n>: T + 1 observations, T actions, rewards and flags
    <path>/data/metadata.json    spaces, counts, id

`Farama-Foundation/Minari:minari/dataset/{minari_storage,_storages/hdf5_storage}.py`.
"""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.data.writers.d4rl import Scalar, final_observations
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_folder_atomically, write_text
from policies import channels
from policies.channels import Observations

IDENTITY = re.compile(r"([-\w]+/)*[-\w]+-v\d+")
FORMAT, WITH_RAW_IMAGES = "0.5.0", "0.5.4"  # first Minari versions that read the file


def write_minari(
    data: Dataset,
    path: str | Path,
    *,
    dataset_id: str | None = None,
    metadata: Mapping[str, Scalar] | None = None,
) -> Path:
    """Write `data` as a Minari data set to the new folder `path`; return the path.

    dataset_id: [namespace/]name-v<number>; `path` must end with this id. Default: the folder's
    name. minari.load_dataset(dataset_id) reads the data set if MINARI_DATASETS_PATH is the part of
    `path` before the id.
    metadata: additional entries of metadata.json, such as algorithm_name.
    Of the extras, only costs are written, as infos/cost. Images are stored raw, not as JPEG.
    Raises UserError if the folder exists or cannot be written, or if the observation after an
    episode is not stored; then no partial folder remains.
    """
    path = Path(path)
    name = path.name if dataset_id is None else dataset_id
    if not IDENTITY.fullmatch(name):
        raise UserError(
            f"{name} is not a Minari id, such as name-v0 or namespace/name-v0. Rename the folder, "
            f"or set dataset_id=."
        )
    if path.absolute().parts[-len(Path(name).parts) :] != Path(name).parts:
        raise UserError(
            f"{path}: Minari looks for {name} in a folder of that name. End the path with {name}."
        )
    final = final_observations(data)
    has_images = any(part.dtype == np.uint8 for part in channels.parts(data.observations))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("earliest", "v110"), track_order=True) as file:
        spans = zip(data.episode_starts, data.episode_ends + 1, strict=True)
        for number, (start, stop) in enumerate(spans):
            inside, after = slice(start, stop), slice(number, number + 1)
            observations = channels.concatenate(
                (channels.take(data.observations, inside), channels.take(final, after))
            )
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": stop - start})
            arrays = channels.flatten({"observations": observations}) | {
                "actions": data.actions[start:stop],
                "rewards": data.rewards[start:stop],
                "terminations": data.terminated[start:stop],
                "truncations": data.truncated[start:stop],
            }
            if "costs" in data.extras:  # the first row of infos is that of the reset
                costs = data.extras["costs"][start:stop]
                arrays["infos/cost"] = np.concatenate([np.zeros(1, costs.dtype), costs])
            else:
                group.create_group("infos")
            for key, array in arrays.items():
                group.create_dataset(key, data=array, chunks=True, compression="gzip")
    facts = {
        "total_episodes": data.num_episodes,
        "total_steps": data.num_rows,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_observation_space(data.observations)),
        "action_space": json.dumps(_box((data.actions.shape[1],), "float32", -1.0, 1.0)),
        "dataset_id": name,
        "minari_version": WITH_RAW_IMAGES if has_images else FORMAT,
        "dataset_size": round(buffer.getbuffer().nbytes / 1e6, 1),  # MB
        **(metadata or {}),
    }

    def fill(folder: Path) -> None:
        write_atomically(
            folder / "data" / "main_data.hdf5", lambda part: part.write_bytes(buffer.getbuffer())
        )
        write_text(folder / "data" / "metadata.json", json.dumps(facts))  # Minari accepts Infinity

    write_folder_atomically(path, fill)
    return path


def _observation_space(observations: Observations) -> dict[str, object]:
    if isinstance(observations, Mapping):
        inner = {name: _observation_space(part) for name, part in sorted(observations.items())}
        return {"type": "Dict", "subspaces": inner}
    shape = observations.shape[1:]
    if observations.dtype == np.uint8:
        return _box(shape, "uint8", 0, 255)
    return _box(shape, "float32", -np.inf, np.inf)


def _box(shape: tuple[int, ...], dtype: str, low: float, high: float) -> dict[str, object]:
    """Return a Box in the format of `minari/serialization.py`."""
    bounds = {"low": np.full(shape, low).tolist(), "high": np.full(shape, high).tolist()}
    return {"type": "Box", "dtype": dtype, "shape": list(shape), **bounds}

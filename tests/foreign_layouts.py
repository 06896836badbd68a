"""Builders of small data sets in the layouts of other projects, without their libraries."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Arrays = dict[str, np.ndarray]


def episodes(lengths: Sequence[int], *, obs: int = 3, act: int = 2, seed: int = 0) -> list[Arrays]:
    """Return random episodes of T steps; even ones terminate, odd ones time out."""
    rng = np.random.default_rng(seed)
    all_episodes = []
    for number, steps in enumerate(lengths):
        last = np.arange(steps) == steps - 1
        all_episodes.append(
            {
                "observations": rng.normal(size=(steps + 1, obs)).astype(np.float32),
                "actions": rng.uniform(-1, 1, (steps, act)).astype(np.float32),
                "rewards": rng.normal(size=steps),
                "terminations": last & (number % 2 == 0),
                "truncations": last & (number % 2 == 1),
            }
        )
    return all_episodes


def column(all_episodes: list[Arrays], key: str) -> np.ndarray:
    """Concatenate an array of all episodes."""
    return np.concatenate([episode[key] for episode in all_episodes])


def observations_before(all_episodes: list[Arrays]) -> np.ndarray:
    """Return the observation before each step of all episodes."""
    return np.concatenate([episode["observations"][:-1] for episode in all_episodes])


def observations_after(all_episodes: list[Arrays]) -> np.ndarray:
    """Return the observation after each step of all episodes."""
    return np.concatenate([episode["observations"][1:] for episode in all_episodes])


def box(shape: Sequence[int], low: float, high: float, dtype: str = "float32") -> dict[str, Any]:
    bounds = {"low": np.full(shape, low).tolist(), "high": np.full(shape, high).tolist()}
    return {"type": "Box", "dtype": dtype, "shape": list(shape), **bounds}


def minari(
    folder: Path,
    all_episodes: list[dict[str, Any]],
    *,
    observation_space: dict[str, Any] | None = None,
    action_space: dict[str, Any] | None = None,
    **metadata: Any,
) -> Path:
    """Write `folder`/data/{main_data.hdf5, metadata.json}; a dict in an episode is a group."""
    data = folder / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(all_episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"] = number
            group.attrs["total_steps"] = len(episode.get("rewards", ()))
            write_group(group, episode)
    facts = {
        "total_episodes": len(all_episodes),
        "total_steps": sum(len(episode.get("rewards", ())) for episode in all_episodes),
        "data_format": "hdf5",
        "observation_space": json.dumps(observation_space or box([3], -np.inf, np.inf)),
        "action_space": json.dumps(action_space or box([2], -1, 1)),
        "dataset_id": folder.name,
        "minari_version": "0.5.3",
    }
    (data / "metadata.json").write_text(json.dumps(facts | metadata))
    return folder


def write_group(group: h5py.Group, arrays: dict[str, Any]) -> None:
    for key, value in arrays.items():
        if isinstance(value, dict):
            write_group(group.create_group(key), value)
        elif isinstance(value, list) and isinstance(
            value[0], np.ndarray
        ):  # arrays of different sizes
            dataset = group.create_dataset(key, len(value), h5py.vlen_dtype(np.uint8))
            for place, item in enumerate(value):
                dataset[place] = item
        else:
            group.create_dataset(key, data=value)


def d3rlpy(path: Path, lengths: Sequence[int] = (3, 2), **others: Any) -> Path:
    """Write episodes of these lengths like d3rlpy 2; the first one terminates."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = len(lengths), "2.1"
        for n, rows in enumerate(lengths):
            file[f"observations_{n}"] = rng.normal(size=(rows, 4))
            file[f"actions_{n}"] = rng.uniform(-1, 1, (rows, 2))
            file[f"rewards_{n}"] = np.full((rows, 1), n + 1.0)
            file[f"terminated_{n}"] = n == 0
        for key, value in others.items():
            if key in file:
                del file[key]
            file[key] = value
    return path


def robomimic(path: Path, demos: dict[str, dict[str, Any]], **masks: Sequence[str]) -> Path:
    """Write one HDF5 file; demos: {"demo_0": {"actions": …, "obs": {…}, …}, …}."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(len(demo["actions"]) for demo in demos.values())
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {}})
        for name, demo in demos.items():
            group = data.create_group(name)
            group.attrs["num_samples"] = len(demo["actions"])
            group.attrs["model_file"] = "<mujoco/>"
            write_group(group, {"states": np.zeros((len(demo["actions"]), 4))} | demo)
        for name, members in masks.items():
            file.create_dataset(f"mask/{name}", data=np.array(members, "S8"))
    return path


def zarr(
    folder: Path,
    arrays: Arrays,
    *,
    chunk: int = 4,
    compressor: Any = None,
    changes: dict[str, dict[str, Any]] | None = None,
    order: str = "C",
    separator: str = ".",
) -> Path:
    """Write a Zarr store of format 2, chunked along time; changes: of an array's .zarray."""
    for group in {"", *(str(Path(key).parent) for key in arrays)}:
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / ".zgroup").write_text('{"zarr_format": 2}')
    for key, array in arrays.items():
        meta = {
            "zarr_format": 2,
            "shape": list(array.shape),
            "chunks": [chunk, *array.shape[1:]],
            "dtype": array.dtype.str,
            "compressor": compressor and compressor.get_config(),
            "fill_value": 0,
            "order": order,
            "filters": None,
            "dimension_separator": separator,
        }
        (folder / key).mkdir()
        (folder / key / ".zarray").write_text(json.dumps(meta | (changes or {}).get(key, {})))
        for number, start in enumerate(range(0, len(array), chunk)):
            block = np.zeros((chunk, *array.shape[1:]), array.dtype)
            block[: len(array[start : start + chunk])] = array[start : start + chunk]
            content = block.tobytes(order)
            name = separator.join([str(number)] + ["0"] * (array.ndim - 1))
            (folder / key / name).parent.mkdir(parents=True, exist_ok=True)
            encoded = compressor.encode(content) if compressor else content
            (folder / key / name).write_bytes(encoded)
    return folder


def zipped(folder: Path, path: Path, root: str = "") -> Path:
    """Write the folder's files to a ZIP archive, below `root`."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, root + file.relative_to(folder).as_posix())
    return path


def png(image: np.ndarray) -> bytes:
    import imageio.v3

    buffer = io.BytesIO()
    imageio.v3.imwrite(buffer, image, extension=".png")
    return buffer.getvalue()


def lerobot(
    folder: Path,
    frames: dict[str, Any],
    lengths: Sequence[int],
    *,
    split_at: Sequence[int] = (),
    version: str = "v3.0",
    features: dict[str, Any] | None = None,
    table: Callable[[dict[str, Any]], Any] | None = None,
    **info: Any,
) -> Path:
    """Write Parquet tables and meta/.

    frames: columns of all episodes.  split_at: first rows of files.

    features: additional ones.  table: builds the table of one file; default: `fixed_lists`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    episode = np.repeat(np.arange(len(lengths)), lengths)
    frames = frames | {
        "timestamp": np.concatenate([np.arange(n) for n in lengths]).astype(np.float32) / 10,
        "frame_index": np.concatenate([np.arange(n) for n in lengths]),
        "episode_index": episode,
        "index": np.arange(len(episode)),
        "task_index": np.zeros(len(episode), np.int64),
    }
    cuts = [0, *split_at, len(episode)]
    for number, (start, stop) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
        part = {key: values[start:stop] for key, values in frames.items()}
        path = folder / "data" / "chunk-000" / f"file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table((table or fixed_lists)(part), path)
    (folder / "meta").mkdir()
    described = {
        key: {"dtype": str(np.asarray(values).dtype), "shape": list(np.shape(values)[1:]) or [1]}
        for key, values in frames.items()
        if isinstance(values, np.ndarray)
    }
    facts = {
        "codebase_version": version,
        "total_episodes": len(lengths),
        "total_frames": len(episode),
        "fps": 10,
        "splits": {"train": f"0:{len(lengths)}"},
        "features": described | (features or {}),
    }
    (folder / "meta" / "info.json").write_text(json.dumps(facts | info))
    if version.startswith("v3"):
        ends = np.cumsum(lengths)
        listed = {
            "episode_index": np.arange(len(lengths)),
            "length": np.array(lengths),
            "dataset_from_index": ends - lengths,
            "dataset_to_index": ends,
        }
        path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(listed), path)
    return folder


def fixed_lists(part: dict[str, Any]) -> Any:
    """Build a table of version 3: vectors are fixed-size lists, images {bytes, path}."""
    import pyarrow as pa

    columns = {}
    for key, values in part.items():
        if isinstance(values, list):
            cells = [{"bytes": value, "path": f"{i}.png"} for i, value in enumerate(values)]
            columns[key] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        elif values.ndim == 1:
            columns[key] = pa.array(values)
        else:
            columns[key] = pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
    return pa.table(columns)


def free_lists(part: dict[str, Any]) -> Any:
    """Build a table of version 2, with lists of variable size."""
    import pyarrow as pa

    return pa.table({k: v.tolist() if v.ndim > 1 else v for k, v in part.items()})

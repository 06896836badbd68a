"""A data set as a LeRobotDataset of version 3, which `lerobot` and `read` take as it is.

    data/chunk-000/file-000.parquet               a row a frame; pictures inside, or
    videos/<key>/chunk-000/file-000.mp4           all episodes one after the other
    meta/{info.json, stats.json, tasks.parquet}   features, counts, statistics, the task in words
    meta/episodes/chunk-000/file-000.parquet      where each episode lies

`huggingface/lerobot:src/lerobot/datasets/utils.py`. What follows an episode's last frame is not in
this layout: read again, time-out rows are no transitions.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.data.containers.video import encode_video
from offline_rl.data.dataset import Dataset
from offline_rl.data.formats.lerobot import OBSERVED, VIDEO_3
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_folder_atomically, write_json
from offline_rl.utils.modules import import_extra
from policies import channels

TABLE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FIRST = TABLE.format(chunk_index=0, file_index=0)
TIMES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
SAMPLES = 100  # pictures that the statistics are of


def write_lerobot(
    data: Dataset, path: str | Path, *, fps: float, task: str, video: bool = False
) -> Path:
    """Writes `data` into the new folder `path` and returns it.

    fps: steps a second.  task: what is done, in words.  video: of pictures, instead of images.
    A lone vector is observation.state, a channel observation.<name>, a picture
    observation.images.<name>. Raises UserError, with nothing left behind, where the folder is there
    already or cannot be written, or where a next observation is not the next row's.
    """
    path = Path(path)
    parquet = import_extra("pyarrow.parquet", "lerobot", f"{path}: writing Parquet")
    inside = ~(data.terminated | data.truncated)
    if (data.next_index != np.arange(1, data.num_rows + 1))[inside].any():
        raise UserError(f"{path}: rows of an episode do not follow one another, as frames must.")
    if round(fps) != fps:
        raise UserError(f"{path}: {fps:g} steps a second; LeRobot counts whole frames a second.")
    shown, lengths = observed(data), data.episode_lengths()
    films = {key: pictures for key, pictures in shown.items() if video and pictures.ndim == 4}
    frames = {**shown, "action": data.actions, **outcomes(data), **places(lengths, fps)}

    def fill(folder: Path) -> None:
        for name in ("data", "meta/episodes"):
            (folder / name / FIRST).parent.mkdir(parents=True)
        for key, pictures in films.items():
            file = folder / VIDEO_3.format(video_key=key, chunk_index=0, file_index=0)
            file.parent.mkdir(parents=True)
            encode_video(file, pictures, int(fps))
        stored = {key: values for key, values in frames.items() if key not in films}
        parquet.write_table(table(stored), folder / "data" / FIRST)
        listed = episodes(lengths, fps, task, list(films))
        parquet.write_table(listed, folder / "meta" / "episodes" / FIRST)
        parquet.write_table(tasks(task), folder / "meta" / "tasks.parquet")
        own = {key: statistics(values) for key, values in frames.items() if key not in TIMES}
        write_json(folder / "meta" / "stats.json", own)
        facts = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": data.num_episodes,
            "total_frames": data.num_rows,
            "total_tasks": 1,
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": int(fps),
            "splits": {"train": f"0:{data.num_episodes}"},
            "data_path": f"data/{TABLE}",
            "video_path": VIDEO_3 if films else None,
            "features": {
                key: picture(values, int(fps) if key in films else None)
                if values.ndim == 4
                else numbers(values, names(data).get(key))
                for key, values in frames.items()
            },
        }
        write_json(folder / "meta" / "info.json", facts)

    write_folder_atomically(path, fill)
    return path


def observed(data: Dataset) -> dict[str, np.ndarray]:
    """What is seen before each step, by LeRobot's names."""
    seen = channels.take(data.observations, slice(data.num_rows))
    if not isinstance(seen, Mapping):
        return {f"{OBSERVED}state": seen}
    return {
        f"{OBSERVED}{'images.' if channels.is_image(part.shape[1:]) else ''}{name}": part
        for name, part in seen.items()
    }


def names(data: Dataset) -> dict[str, tuple[str, ...]]:
    """Of the features' numbers, where the data say them."""
    if data.spec is None:
        return {}
    lone = data.spec.single_vector is not None
    seen = {f"{OBSERVED}{'state' if lone else c.name}": c.names for c in data.spec.vectors}
    return {key: own for key, own in {**seen, "action": data.spec.action_names}.items() if own}


def outcomes(data: Dataset) -> dict[str, np.ndarray]:
    """What came of each step: done says that the episode ended, truncated that it was cut."""
    ends = {"next.done": data.terminated | data.truncated, "next.truncated": data.truncated}
    return ({"next.reward": data.rewards} if data.has_rewards else {}) | ends


def places(lengths: np.ndarray, fps: float) -> dict[str, np.ndarray]:
    """Of each frame in time, in its episode and in the whole."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    index = np.arange(len(starts))
    numbers = (index - starts, np.repeat(np.arange(len(lengths)), lengths), index, 0 * index)
    return dict(zip(TIMES, (((index - starts) / fps).astype(np.float32), *numbers), strict=True))


def table(frames: Mapping[str, np.ndarray]) -> Any:
    """Vectors are lists of a fixed size, pictures PNG files."""
    import pyarrow as pa

    columns = {}
    for key, values in frames.items():
        if values.ndim == 4:
            cells = [{"bytes": png(one), "path": None} for one in values]
            columns[key] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        elif values.ndim == 1:
            columns[key] = pa.array(values)
        else:
            flat = values.reshape(len(values), -1)
            columns[key] = pa.FixedSizeListArray.from_arrays(flat.reshape(-1), flat.shape[1])
    return pa.table(columns)


def png(one: np.ndarray) -> bytes:
    """A picture as the bytes of a file."""
    import imageio.v3

    file = io.BytesIO()
    imageio.v3.imwrite(file, one, extension=".png")
    return file.getvalue()


def tasks(task: str) -> Any:
    """The table of tasks; its index, as pandas keeps it, is the words."""
    import pyarrow as pa

    index, number = "__index_level_0__", "task_index"
    column = {"metadata": None}
    columns = [
        column | {"name": number, "field_name": number, "pandas_type": "int64"},
        column | {"name": None, "field_name": index, "pandas_type": "unicode"},
    ]
    for each, kind in zip(columns, ("int64", "object"), strict=True):
        each["numpy_type"] = kind
    told = {"index_columns": [index], "column_indexes": [], "columns": columns}
    made = pa.table({number: pa.array([0]), index: pa.array([task])})
    return made.replace_schema_metadata({"pandas": json.dumps(told)})


def episodes(lengths: np.ndarray, fps: float, task: str, films: list[str]) -> Any:
    """The table of episodes: which rows, and which part of each video."""
    import pyarrow as pa

    ends, first = np.cumsum(lengths), np.zeros(len(lengths), np.int64)
    columns: dict[str, Any] = {
        "episode_index": np.arange(len(lengths)),
        "tasks": [[task]] * len(lengths),
        "length": lengths,
        "data/chunk_index": first,
        "data/file_index": first,
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
    }
    for key in films:
        own: dict[str, np.ndarray] = {"chunk_index": first, "file_index": first}
        own |= {"from_timestamp": (ends - lengths) / fps, "to_timestamp": ends / fps}
        columns |= {f"videos/{key}/{name}": values for name, values in own.items()}
    return pa.table(columns | {f"meta/episodes/{n}_index": first for n in ("chunk", "file")})


def statistics(values: np.ndarray) -> dict[str, Any]:
    """Of each number; of pictures of each color, in [0, 1], [C, 1, 1], taken from some of them."""
    count = len(values)
    if values.ndim == 4:
        some = values[np.linspace(0, count - 1, min(count, SAMPLES)).astype(int)]
        rows = some.reshape(-1, some.shape[-1]) / 255
        shape: tuple[int, ...] = (-1, 1, 1)
    else:
        rows, shape = values.reshape(count, -1).astype(np.float64), (-1,)
    kinds = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    return {kind: found.reshape(shape).tolist() for kind, found in kinds.items()} | {
        "count": [count]
    }


def numbers(values: np.ndarray, names: tuple[str, ...] | None) -> dict[str, Any]:
    """What info.json says of a column of numbers."""
    shape = list(values.shape[1:]) or [1]
    return {"dtype": str(values.dtype), "shape": shape, "names": list(names) if names else None}


def picture(values: np.ndarray, fps: int | None) -> dict[str, Any]:
    """And of pictures; fps: where they are a video."""
    height, width, colors = values.shape[1:]
    made = {"shape": [height, width, colors], "names": ["height", "width", "channels"]}
    if fps is None:
        return {"dtype": "image", **made}
    size = {"video.height": height, "video.width": width, "video.channels": colors}
    kind = {"video.codec": "h264", "video.pix_fmt": "yuv420p", "video.is_depth_map": False}
    return {
        "dtype": "video",
        **made,
        "info": {**size, "video.fps": fps, **kind, "has_audio": False},
    }

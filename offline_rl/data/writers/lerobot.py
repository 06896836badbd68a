"""Writer of data sets as a LeRobotDataset of version 3, which `lerobot` and `read` can read.

    data/chunk-000/file-000.parquet               one row per frame, with images as PNG, or
    videos/<key>/chunk-000/file-000.mp4           images as videos, all episodes in sequence
    meta/{info.json, stats.json, tasks.parquet}   features, counts, statistics, task description
    meta/episodes/chunk-000/file-000.parquet      rows and video times of each episode

`huggingface/lerobot:src/lerobot/datasets/utils.py`. This layout does not store the observation
after an episode's last frame, so time-out rows are not transitions when the data is read.
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
SAMPLES = 100  # number of images that the statistics are computed from


def write_lerobot(
    data: Dataset, path: str | Path, *, fps: float, task: str, video: bool = False
) -> Path:
    """Write `data` to the new folder `path`; return the path.

    fps: steps per second.  task: description of the task.  video: write images as videos.
    A single vector becomes observation.state, a channel observation.<name>, and an image
    observation.images.<name>.
    Raises UserError if the folder exists or cannot be written, or if a next observation inside an
    episode is not the next row's observation; then no partial folder remains.
    """
    path = Path(path)
    parquet = import_extra("pyarrow.parquet", "lerobot", f"{path}: writing Parquet")
    inside = ~(data.terminated | data.truncated)
    if (data.next_index != np.arange(1, data.num_rows + 1))[inside].any():
        raise UserError(
            f"{path}: a next observation inside an episode is not the next row's observation. "
            f"LeRobot's layout cannot store this."
        )
    if round(fps) != fps:
        raise UserError(f"{path}: LeRobot requires an integer fps; the data has {fps:g} steps/s.")
    observations, lengths = name_observations(data), data.episode_lengths()
    videos = {key: images for key, images in observations.items() if video and images.ndim == 4}
    frames = {**observations, "action": data.actions, **outcomes(data), **indices(lengths, fps)}

    def fill(folder: Path) -> None:
        for name in ("data", "meta/episodes"):
            (folder / name / FIRST).parent.mkdir(parents=True)
        for key, images in videos.items():
            file = folder / VIDEO_3.format(video_key=key, chunk_index=0, file_index=0)
            file.parent.mkdir(parents=True)
            encode_video(file, images, int(fps))
        in_table = {key: values for key, values in frames.items() if key not in videos}
        parquet.write_table(frame_table(in_table), folder / "data" / FIRST)
        episodes = episode_table(lengths, fps, task, list(videos))
        parquet.write_table(episodes, folder / "meta" / "episodes" / FIRST)
        parquet.write_table(task_table(task), folder / "meta" / "tasks.parquet")
        stats = {key: statistics(values) for key, values in frames.items() if key not in TIMES}
        write_json(folder / "meta" / "stats.json", stats)
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
            "video_path": VIDEO_3 if videos else None,
            "features": {
                key: describe_images(values, int(fps) if key in videos else None)
                if values.ndim == 4
                else describe_numbers(values, component_names(data).get(key))
                for key, values in frames.items()
            },
        }
        write_json(folder / "meta" / "info.json", facts)

    write_folder_atomically(path, fill)
    return path


def name_observations(data: Dataset) -> dict[str, np.ndarray]:
    """Return the observation before each step by LeRobot's names."""
    observations = channels.take(data.observations, slice(data.num_rows))
    if not isinstance(observations, Mapping):
        return {f"{OBSERVED}state": observations}
    return {
        f"{OBSERVED}{'images.' if channels.is_image(part.shape[1:]) else ''}{name}": part
        for name, part in observations.items()
    }


def component_names(data: Dataset) -> dict[str, tuple[str, ...]]:
    """Return the component names of the features that have them."""
    if data.spec is None:
        return {}
    single = data.spec.single_vector is not None
    names = {f"{OBSERVED}{'state' if single else c.name}": c.names for c in data.spec.vectors}
    names["action"] = data.spec.action_names
    return {key: values for key, values in names.items() if values}


def outcomes(data: Dataset) -> dict[str, np.ndarray]:
    """Return reward and flags of each step. next.done marks terminated and truncated steps."""
    ends = {"next.done": data.terminated | data.truncated, "next.truncated": data.truncated}
    return ({"next.reward": data.rewards} if data.has_rewards else {}) | ends


def indices(lengths: np.ndarray, fps: float) -> dict[str, np.ndarray]:
    """Return the timestamp and all indices of each frame."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    index = np.arange(len(starts))
    numbers = (index - starts, np.repeat(np.arange(len(lengths)), lengths), index, 0 * index)
    return dict(zip(TIMES, (((index - starts) / fps).astype(np.float32), *numbers), strict=True))


def frame_table(frames: Mapping[str, np.ndarray]) -> Any:
    """Build the table of frames. Vectors are fixed-size lists, and images are PNG files."""
    import pyarrow as pa

    columns = {}
    for key, values in frames.items():
        if values.ndim == 4:
            cells = [{"bytes": encode_png(image), "path": None} for image in values]
            columns[key] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        elif values.ndim == 1:
            columns[key] = pa.array(values)
        else:
            flat = values.reshape(len(values), -1)
            columns[key] = pa.FixedSizeListArray.from_arrays(flat.reshape(-1), flat.shape[1])
    return pa.table(columns)


def encode_png(image: np.ndarray) -> bytes:
    """Encode an image as the bytes of a PNG file."""
    import imageio.v3

    file = io.BytesIO()
    imageio.v3.imwrite(file, image, extension=".png")
    return file.getvalue()


def task_table(task: str) -> Any:
    """Build the table of tasks. The task description is the pandas index of the table."""
    import pyarrow as pa

    index, number = "__index_level_0__", "task_index"
    column = {"metadata": None}
    columns = [
        column | {"name": number, "field_name": number, "pandas_type": "int64"},
        column | {"name": None, "field_name": index, "pandas_type": "unicode"},
    ]
    for entry, dtype in zip(columns, ("int64", "object"), strict=True):
        entry["numpy_type"] = dtype
    metadata = {"index_columns": [index], "column_indexes": [], "columns": columns}
    table = pa.table({number: pa.array([0]), index: pa.array([task])})
    return table.replace_schema_metadata({"pandas": json.dumps(metadata)})


def episode_table(lengths: np.ndarray, fps: float, task: str, videos: list[str]) -> Any:
    """Build the table of episodes: rows of each episode, and its time span in each video."""
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
    for key in videos:
        span: dict[str, np.ndarray] = {"chunk_index": first, "file_index": first}
        span |= {"from_timestamp": (ends - lengths) / fps, "to_timestamp": ends / fps}
        columns |= {f"videos/{key}/{name}": values for name, values in span.items()}
    return pa.table(columns | {f"meta/episodes/{n}_index": first for n in ("chunk", "file")})


def statistics(values: np.ndarray) -> dict[str, Any]:
    """Return the statistics of each component; of images, those of each color, [C, 1, 1].

    Colors are scaled to [0, 1]. Statistics of images are computed from up to `SAMPLES` images.
    """
    count = len(values)
    if values.ndim == 4:
        images = values[np.linspace(0, count - 1, min(count, SAMPLES)).astype(int)]
        rows = images.reshape(-1, images.shape[-1]) / 255
        shape: tuple[int, ...] = (-1, 1, 1)
    else:
        rows, shape = values.reshape(count, -1).astype(np.float64), (-1,)
    stats = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    return {name: stat.reshape(shape).tolist() for name, stat in stats.items()} | {"count": [count]}


def describe_numbers(values: np.ndarray, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the entry of info.json for a column of numbers."""
    shape = list(values.shape[1:]) or [1]
    return {"dtype": str(values.dtype), "shape": shape, "names": list(names) if names else None}


def describe_images(values: np.ndarray, fps: int | None) -> dict[str, Any]:
    """Return the entry of info.json for images, or for a video if `fps` is given."""
    height, width, colors = values.shape[1:]
    size = {"shape": [height, width, colors], "names": ["height", "width", "channels"]}
    if fps is None:
        return {"dtype": "image", **size}
    info = {"video.height": height, "video.width": width, "video.channels": colors}
    codec = {"video.codec": "h264", "video.pix_fmt": "yuv420p", "video.is_depth_map": False}
    return {
        "dtype": "video",
        **size,
        "info": {**info, "video.fps": fps, **codec, "has_audio": False},
    }

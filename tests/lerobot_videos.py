"""A small LeRobotDataset of three episodes with videos of two cameras."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_layouts import lerobot

from offline_rl.data.containers.video import encode_video

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
LAST = np.cumsum(LENGTHS) - 1


def frames(**more: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "observation.state": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "action": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
    }
    return columns | more


def seen_by(camera: int, side: int = 16) -> np.ndarray:
    """Return images [ROWS, side, side + 4, 3]; gray encodes the row, the halves the camera."""
    gray = (20 * np.arange(ROWS)[:, None, None] + 10 * camera).astype(np.uint8)
    shown = np.broadcast_to(gray, (ROWS, side, side + 4)).copy()
    shown[:, : side // 2] += 30
    return np.repeat(shown[..., None], 3, -1)


TOP, SIDE = "observation.images.top", "observation.images.side"


def with_videos(folder: Path, version: str = "v3.0", split_at: tuple[int, ...] = ()) -> Path:
    """Write videos of two cameras; in version 3 only the second camera has a second file."""
    pytest.importorskip("av", reason="videos need the extra lerobot")
    described = {key: {"dtype": "video", "shape": [16, 20, 3]} for key in (TOP, SIDE)}
    path = lerobot(
        folder, frames(), LENGTHS, version=version, features=described, split_at=split_at
    )
    starts = np.cumsum(LENGTHS) - LENGTHS
    listed: dict[str, list[float]] = {}
    for camera, key in enumerate((TOP, SIDE)):
        shown = seen_by(camera)
        if version.startswith("v2"):
            files = {
                f"videos/chunk-000/{key}/episode_{n:06d}.mp4": shown[start : start + length]
                for n, (start, length) in enumerate(zip(starts, LENGTHS, strict=True))
            }
        else:
            cut = 8 if camera else ROWS
            files = {
                f"videos/{key}/chunk-000/file-{k:03d}.mp4": part
                for k, part in enumerate((shown[:cut], shown[cut:]))
                if len(part)
            }
            listed[f"videos/{key}/chunk_index"] = [0, 0, 0]
            listed[f"videos/{key}/file_index"] = [0, 0, camera]
            listed[f"videos/{key}/from_timestamp"] = [0.0, 0.3, 0.0 if camera else 0.8]
        for name, part in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            encode_video(path / name, part, fps=10)
    if listed:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = path / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        whole = pq.read_table(table)
        for name, values in listed.items():
            whole = whole.append_column(name, pa.array(values))
        pq.write_table(whole, table)
    return path


CAMERAS = ["observation.state", TOP, SIDE]

"""Tests of writing LeRobotDatasets, which are read unchanged and have the required metadata."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_rl.data import Dataset
from offline_rl.data.read import read
from offline_rl.data.writers.lerobot import write_lerobot
from offline_rl.utils.errors import UserError
from policies.spec import Channel, Spec

pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")

ROWS, LAST = 9, [3, 8]
KEYS = ["observation.images.top", "observation.state"]


def data_set(side: int = 16) -> Dataset:
    """Return two episodes: the first terminates, the second is truncated."""
    draw, gray = np.random.default_rng(0), (20 * np.arange(ROWS)).astype(np.uint8)
    shape = (ROWS, side, side + 4, 3)
    observations = {
        "top": np.broadcast_to(gray[:, None, None, None], shape).copy(),
        "state": draw.normal(size=(ROWS, 2)).astype(np.float32),
    }
    spec = Spec(
        (Channel("top", shape[1:], "image"), Channel("state", (2,), names=("arm.q", "arm.dq"))),
        1,
        rate_hz=20.0,
        action_names=("arm.q",),
    )
    rows = np.arange(ROWS)
    return Dataset.from_arrays(
        observations,
        draw.uniform(-1, 1, (ROWS, 1)),
        (rows == LAST[0]).astype(float),
        rows == LAST[0],
        rows == LAST[1],
        spec=spec,
    )


@pytest.mark.parametrize("video", [False, True])
def test_a_written_data_set_is_read_unchanged(tmp_path: Path, video: bool) -> None:
    data = data_set()
    path = write_lerobot(data, tmp_path / "a", fps=20, task="touch it", video=video)
    again = read(path, observation_keys=KEYS)
    apart = abs(again.observations["top"].astype(int) - data.observations["top"])
    assert apart.max() <= (4 if video else 0)
    np.testing.assert_array_equal(again.observations["state"], data.observations["state"])
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name), err_msg=name)
    assert again.spec is not None
    assert again.spec.rate_hz == 20
    assert again.spec.action_names == ("arm.q",)
    assert (path / "videos").exists() == video


def test_a_single_vector_is_the_state(tmp_path: Path) -> None:
    data = data_set()
    flags = (data.actions, data.rewards, data.terminated, data.truncated)
    vector = Dataset.from_arrays(data.observations["state"], *flags)
    again = read(write_lerobot(vector, tmp_path / "a", fps=10, task="touch it"))
    np.testing.assert_array_equal(again.observations, vector.observations)


def test_the_metadata_are_those_that_lerobot_requires(tmp_path: Path) -> None:
    """Names and shapes are those of LeRobot's own writer (src/lerobot/datasets/utils.py)."""
    import pyarrow.parquet as pq

    path = write_lerobot(data_set(), tmp_path / "a", fps=20, task="touch it", video=True)
    info = json.loads((path / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["fps"], info["total_frames"], info["total_episodes"]) == (20, ROWS, 2)
    top = info["features"]["observation.images.top"]
    assert (top["dtype"], top["shape"]) == ("video", [16, 20, 3])
    assert info["features"]["observation.state"]["names"] == ["arm.q", "arm.dq"]
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        assert info["features"][name]["shape"] == [1]
    listed = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert listed["length"] == [4, 5]
    assert listed["dataset_from_index"] == [0, 4]
    assert listed["videos/observation.images.top/from_timestamp"] == [0.0, 0.2]
    assert listed["videos/observation.images.top/to_timestamp"] == [0.2, pytest.approx(0.45)]
    tasks = pq.read_table(path / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0], "__index_level_0__": ["touch it"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]
    stats = json.loads((path / "meta" / "stats.json").read_text())
    data = data_set()
    assert stats["action"]["max"] == pytest.approx(data.actions.max(0).tolist())
    gray = (20 * np.arange(ROWS)).mean() / 255
    np.testing.assert_allclose(stats["observation.images.top"]["mean"], np.full((3, 1, 1), gray))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fps": 12.5}, "LeRobot requires an integer fps"),
        ({"side": 15, "video": True}, "Write them as images"),
    ],
)
def test_a_refused_write_leaves_no_file(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    how = {"fps": 20, "task": "touch it"} | change
    with pytest.raises(UserError, match=sentence):
        write_lerobot(data_set(how.pop("side", 16)), tmp_path / "a", **how)
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("")
    with pytest.raises(UserError, match="already exists"):
        write_lerobot(data_set(), tmp_path / "a", fps=20, task="touch it")

"""Tests of LeRobot's layout: tables of frames, flags, splits, images, videos and errors."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_layouts import fixed_lists, free_lists, lerobot, png
from lerobot_videos import CAMERAS, LAST, LENGTHS, ROWS, SIDE, TOP, frames, seen_by, with_videos

from offline_rl.data.containers.video import encode_video
from offline_rl.data.dataset import NO_REWARDS
from offline_rl.data.info import info
from offline_rl.data.read import read
from offline_rl.utils.errors import UserError

pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")


def at(*rows: int) -> np.ndarray:
    """Return the mask of these rows, [ROWS] bool."""
    return np.isin(np.arange(ROWS), rows)


@pytest.mark.parametrize("split_at", [(), (2, 6), tuple(range(1, ROWS))])
def test_every_array_however_the_rows_are_spread_over_files(tmp_path: Path, split_at: tuple):
    columns = frames(**{"next.reward": np.arange(ROWS, dtype=np.float32), "next.done": at(*LAST)})
    data = read(lerobot(tmp_path / "a", columns, LENGTHS, split_at=split_at))
    np.testing.assert_array_equal(data.observations, columns["observation.state"])
    np.testing.assert_array_equal(data.actions, columns["action"])
    np.testing.assert_array_equal(data.rewards, columns["next.reward"])
    assert data.episode_lengths().tolist() == LENGTHS
    inside = np.setdiff1d(np.arange(ROWS), LAST)
    np.testing.assert_array_equal(data.next_index[inside], inside + 1)


def test_version_2_with_a_file_for_each_episode(tmp_path: Path):
    columns = frames()
    starts = tuple(np.cumsum(LENGTHS)[:-1])
    path = lerobot(
        tmp_path / "a", columns, LENGTHS, split_at=starts, version="v2.1", table=free_lists
    )
    data = read(path)
    np.testing.assert_array_equal(data.observations, columns["observation.state"])
    np.testing.assert_array_equal(data.actions, columns["action"])
    assert data.episode_lengths().tolist() == LENGTHS


def test_rows_are_put_in_the_order_of_index(tmp_path: Path):
    columns = frames()
    path = lerobot(tmp_path / "a", columns, LENGTHS, split_at=(3,))
    first, _ = sorted((path / "data" / "chunk-000").iterdir())
    (path / "data" / "chunk-001").mkdir()
    first.rename(path / "data" / "chunk-001" / "file-000.parquet")
    np.testing.assert_array_equal(read(path).observations, columns["observation.state"])


def test_an_action_of_one_number_is_a_column(tmp_path: Path):
    columns = frames(action=np.linspace(-1, 1, ROWS, dtype=np.float32))
    data = read(lerobot(tmp_path / "a", columns, LENGTHS))
    assert data.actions.shape == (ROWS, 1)


def test_demonstrations_without_rewards_are_cut_at_their_ends(tmp_path: Path):
    data = read(lerobot(tmp_path / "a", frames(), LENGTHS))
    assert not data.rewards.any()
    assert not data.terminated.any()
    assert np.flatnonzero(data.truncated).tolist() == LAST.tolist()
    assert np.flatnonzero(~data.usable).tolist() == LAST.tolist()
    assert NO_REWARDS in data.notes


REWARD = np.where(at(2, 7), 1.0, 0.0).astype(np.float32)
ENDS = {  # columns -> rows that terminate, rows that are cut
    "done is rewarded or not": ({"next.reward": REWARD, "next.done": at(2, 7, 9)}, [2, 7], [9]),
    "success decides": (
        {"next.reward": REWARD, "next.done": at(2, 7, 9), "next.success": at(7, 9)},
        [7, 9],
        [2],
    ),
    "success without done": ({"next.success": at(1, 2, 7)}, [2, 7], [9]),
    "truncated decides": (
        {"next.done": at(2, 7, 9), "next.truncated": at(7)},
        [2, 9],
        [7],
    ),
    "done inside": ({"next.reward": REWARD + 1, "next.done": at(4, 7)}, [4, 7], [2, 9]),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_meaning_of_done(tmp_path: Path, case: str):
    columns, terminated, truncated = ENDS[case]
    data = read(lerobot(tmp_path / "a", frames(**columns), LENGTHS))
    assert np.flatnonzero(data.terminated).tolist() == terminated
    assert np.flatnonzero(data.truncated).tolist() == truncated


def test_states_are_concatenated_by_name_or_in_the_given_order(tmp_path: Path):
    other = np.random.default_rng(1).normal(size=(ROWS, 2)).astype(np.float32)
    columns = frames(**{"observation.environment_state": other})
    path = lerobot(tmp_path / "a", columns, LENGTHS)
    data, swapped = read(path), read(path, observation_keys=["observation.state"])
    expected = np.concatenate([other, columns["observation.state"]], axis=1)
    np.testing.assert_array_equal(data.observations, expected)
    assert "observed: observation.environment_state, observation.state" in data.notes
    np.testing.assert_array_equal(swapped.observations, columns["observation.state"])
    assert "not observed: observation.environment_state" in swapped.notes


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_videos_are_read_frame_by_frame_for_every_episode_and_camera(tmp_path: Path, version: str):
    path = with_videos(tmp_path / "a", version)
    assert f"not observed: {SIDE}, {TOP}" in read(path).notes
    data = read(path, observation_keys=CAMERAS)
    np.testing.assert_array_equal(data.observations["state"], frames()["observation.state"])
    for camera, name in enumerate(("top", "side")):
        assert data.observations[name].dtype == np.uint8
        apart = abs(data.observations[name].astype(int) - seen_by(camera))
        assert apart.max() <= 4  # a video keeps a gray about
    part = read(with_split(path), subset="val", observation_keys=CAMERAS)
    np.testing.assert_array_equal(part.observations["side"], data.observations["side"][3:])
    assert part.sha256 != data.sha256 or version == "v2.1"


@pytest.mark.parametrize("video_is_there", [True, False])
def test_an_episode_without_its_table_leaves_the_others_with_their_videos(
    tmp_path: Path, video_is_there: bool
):
    path = with_videos(tmp_path / "a", "v2.1", split_at=(3, 8))
    (path / "data" / "chunk-000" / "file-001.parquet").unlink()
    rewrite_info(path, total_episodes=2, total_frames=5)
    if not video_is_there:
        (path / "videos" / "chunk-000" / TOP / "episode_000001.mp4").unlink()
    data = read(path, observation_keys=["observation.state", TOP])
    left = [0, 1, 2, 8, 9]  # episode 1 is frames 3 to 7
    np.testing.assert_array_equal(data.observations["state"], frames()["observation.state"][left])
    shown = data.observations["top"].astype(int)
    assert abs(shown - seen_by(0)[left]).max() <= 4  # frames differ by 20


def test_version_3_episodes_must_be_those_of_meta_by_their_number(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), [5, 5])
    file = path / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(file).set_column(0, "episode_index", pa.array([0, 2]))
    pq.write_table(table, file)
    with pytest.raises(UserError, match="episode_index is 2 in meta/episodes, but 1 in data/"):
        read(path)


def test_features_with_other_names_are_offered_or_listed(tmp_path: Path):
    numbers = frames()["observation.state"]
    columns = {"state": numbers, "force": numbers, "actions": frames()["action"]}
    path = lerobot(tmp_path / "a", columns, LENGTHS)
    with pytest.raises(UserError, match="Choose among force, state with observation_keys"):
        read(path)
    data = read(path, observation_keys=["state"])
    np.testing.assert_array_equal(data.observations, numbers)
    np.testing.assert_array_equal(data.actions, columns["actions"])
    more = frames(effort=numbers, actions=np.zeros((ROWS, 2), np.float32))
    path = lerobot(tmp_path / "c", more, LENGTHS)
    with pytest.raises(UserError, match=r"no efort .* Choose among effort, observation\.state"):
        read(path, observation_keys=["efort"])
    data = read(path, observation_keys=["effort"])
    np.testing.assert_array_equal(data.observations, numbers)
    np.testing.assert_array_equal(data.actions, more["action"])  # not the other one
    parts = {"observation.state": numbers, "action.arm": numbers, "action.gripper": numbers}
    with pytest.raises(
        UserError, match=r"no column 'action'\. They hold action\.arm, action\.gripper"
    ):
        read(lerobot(tmp_path / "b", parts, LENGTHS))


def with_split(path: Path) -> Path:
    rewrite_info(path, splits={"train": "0:1", "val": "1:3"})
    return path


def test_a_video_that_is_missing_damaged_or_too_short_is_named(tmp_path: Path):
    path = with_videos(tmp_path / "a")
    assert "10 actions a second" in info(path)
    file = path / "videos" / TOP / "chunk-000" / "file-000.mp4"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(UserError, match=r"file-000\.mp4: the video cannot be decoded \([^/]*\)"):
        read(path, observation_keys=CAMERAS)
    encode_video(file, seen_by(0)[:6], fps=10)
    with pytest.raises(
        UserError, match=r"4 of 10 frames are not in the video, the first at 0\.600 s"
    ):
        read(path, observation_keys=CAMERAS)
    encode_video(file, seen_by(0), fps=20)
    with pytest.raises(
        UserError, match=r"video has 20 frames per second, but the data set says 10"
    ):
        read(path, observation_keys=CAMERAS)
    encode_video(file, seen_by(0, side=32), fps=10)
    with pytest.raises(
        UserError, match=r"images of shape \[32, 36, 3\], but \[16, 20, 3\] is stated"
    ):
        read(path, observation_keys=CAMERAS)
    file.unlink()
    with pytest.raises(UserError, match="the video is missing"):
        read(path, observation_keys=CAMERAS)
    assert read(path).num_rows == ROWS
    rewrite_info(path, video_path="videos/{camera}.mp4")
    with pytest.raises(UserError, match=r"video_path in meta/info\.json is"):
        read(path, observation_keys=CAMERAS)


def test_images_in_the_tables_can_be_observed(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3), dtype=np.uint8)
    columns = frames() | {"observation.image": [png(image) for image in images]}
    described = {"observation.image": {"dtype": "image", "shape": [6, 5, 3]}}
    path = lerobot(tmp_path / "a", columns, LENGTHS, features=described, split_at=(4,))
    data = read(path)
    np.testing.assert_array_equal(data.observations, columns["observation.state"])
    assert "not observed: observation.image" in data.notes
    observations = read(
        path, observation_keys=["observation.state", "observation.image"]
    ).observations
    assert list(observations) == ["state", "image"]
    assert observations["image"].dtype == np.uint8
    np.testing.assert_array_equal(observations["image"], images)


def test_images_of_different_or_wrong_sizes_are_refused(tmp_path: Path):
    shown = [np.zeros((6 + (row == 7), 5, 3), np.uint8) for row in range(ROWS)]
    described = {"observation.image": {"dtype": "image", "shape": [6, 5, 3]}}
    for name, images, sentence in (
        ("a", shown, r"images of different sizes, \[\[6, 5, 3\], \[7, 5, 3\]\]"),
        ("b", [shown[7]] * ROWS, r"images of shape \[7, 5, 3\], but \[6, 5, 3\] is stated"),
    ):
        columns = frames() | {"observation.image": [png(image) for image in images]}
        path = lerobot(tmp_path / name, columns, LENGTHS, features=described)
        with pytest.raises(UserError, match=sentence):
            read(path, observation_keys=["observation.image"])


def test_a_subset_is_a_split_of_the_set(tmp_path: Path):
    columns = frames()
    path = lerobot(tmp_path / "a", columns, LENGTHS, splits={"train": "0:2", "val": "2:3"})
    np.testing.assert_array_equal(
        read(path, subset="val").observations, columns["observation.state"][8:]
    )
    assert read(path, subset="train").episode_lengths().tolist() == [3, 5]
    with pytest.raises(UserError, match=r"no subset 'test'\. Subsets: train, val"):
        read(path, subset="test")


def rewrite_info(path: Path, **changes: Any) -> None:
    info = path / "meta" / "info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | changes))


def test_counts_that_are_not_those_of_the_tables_are_refused(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), LENGTHS)
    rewrite_info(path, total_frames=11)
    with pytest.raises(UserError, match="10 frames, but the metadata state 11"):
        read(path)
    rewrite_info(path, total_frames=10, total_episodes=4)
    with pytest.raises(UserError, match="3 episodes, but the metadata state 4"):
        read(path)
    rewrite_info(path, total_episodes=3, codebase_version="v1.6")
    with pytest.raises(UserError, match=r"codebase_version is v1\.6, which is not supported"):
        read(path)


def test_a_missing_file_of_tables_is_noticed(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), LENGTHS, split_at=(2, 4))
    (path / "data" / "chunk-000" / "file-001.parquet").unlink()
    rewrite_info(path, total_frames=8)
    with pytest.raises(UserError, match=r"frame_index is 1 in row 2 where 2 is expected|frames"):
        read(path)


def test_episodes_that_are_not_those_of_meta_are_refused(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), LENGTHS)
    other = lerobot(tmp_path / "b", frames(), [4, 4, 2])
    (other / "meta" / "episodes").rename(path / "meta" / "others")
    episodes = path / "meta" / "episodes"
    episodes.rename(path / "meta" / "old")
    (path / "meta" / "others").rename(episodes)
    with pytest.raises(UserError, match="meta/episodes lists 3 episodes of 10 frames"):
        read(path)


def test_a_truncated_table_is_refused(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), LENGTHS, split_at=(4,))
    for name in ("file-000", "file-001"):
        table = path / "data" / "chunk-000" / f"{name}.parquet"
        content = table.read_bytes()
        table.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match="incomplete or damaged"):
            read(path)
        table.write_bytes(content)


def holes(part: dict[str, Any]) -> Any:
    table = fixed_lists(part)
    import pyarrow as pa

    cells = [None, *table.column("action").to_pylist()[1:]]
    return table.set_column(1, "action", pa.array(cells, pa.list_(pa.float32(), 2)))


def ragged(part: dict[str, Any]) -> Any:
    return free_lists(
        part | {"action": np.array([[0.0] * (1 + i % 2) for i in range(ROWS)], object)}
    )


def without_action(part: dict[str, Any]) -> Any:
    return fixed_lists(part).drop_columns(["action"])


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (holes, r"action is incomplete or damaged \(1 of 10 cells are empty"),
        (ragged, r"action is incomplete or damaged \(lists of different lengths, \[1, 2\]"),
        (without_action, "no column 'action'"),
    ],
)
def test_a_bad_column_is_named(tmp_path: Path, table: Any, sentence: str):
    path = lerobot(tmp_path / "a", frames(), LENGTHS, table=table)
    with pytest.raises(UserError, match=sentence) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_nan_is_refused_by_the_features_name(tmp_path: Path):
    columns = frames()
    columns["observation.state"][4, 1] = np.nan
    with pytest.raises(UserError, match=r"observation\.state has nan first in row 4"):
        read(lerobot(tmp_path / "a", columns, LENGTHS))


def test_a_flag_that_is_neither_0_nor_1_is_refused(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(**{"next.done": np.full(ROWS, 2)}), LENGTHS)
    with pytest.raises(UserError, match=r"next\.done is 2 in row 0"):
        read(path)


def test_features_without_a_type_are_refused(tmp_path: Path):
    path = lerobot(tmp_path / "a", frames(), LENGTHS, features={"observation.x": {}})
    with pytest.raises(UserError, match="features without dtype and shape"):
        read(path)


def test_a_set_without_tables_is_refused(tmp_path: Path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    with pytest.raises(UserError, match="no Parquet file below data/"):
        read(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = lerobot(tmp_path / "a", frames(), LENGTHS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        UserError, match=r'needs the package pyarrow\. .*pip install -e "\.\[lerobot\]"'
    ):
        read(path)


def test_names_rate_and_action_range_are_in_the_spec(tmp_path: Path):
    """Actions in degrees, by meta/stats.json from -90 to 30 and from 5 to 5: a joint that stands
    still is 0, and 1 away from either end."""
    degrees = np.stack([np.linspace(-90, 30, ROWS), np.full(ROWS, 5.0)], 1).astype(np.float32)
    path = lerobot(tmp_path / "a", frames(action=degrees), LENGTHS)
    info = json.loads((path / "meta" / "info.json").read_text())
    info["features"]["observation.state"]["names"] = ["x", "y", "z"]
    info["features"]["action"]["names"] = {"motors": ["pan", "lift"]}
    (path / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"outside|range|\[-1, 1\]"):
        read(path)
    stats = {"action": {"min": [-90.0, 5.0], "max": [30.0, 5.0]}}
    (path / "meta" / "stats.json").write_text(json.dumps(stats))
    data = read(path)
    np.testing.assert_allclose(data.actions[:, 0], np.linspace(-1, 1, ROWS), atol=1e-6)
    np.testing.assert_array_equal(data.actions[:, 1], 0)
    spec = data.spec
    assert spec is not None
    assert (spec.action_low, spec.action_high) == ((-90.0, 4.0), (30.0, 6.0))
    assert (spec.action_names, spec.observation_names) == (("pan", "lift"), ("x", "y", "z"))
    assert spec.rate_hz == 10
    assert any("-1 and 1 are the minimum and maximum" in note for note in data.notes)
    rescaled = read(path, action_range=[-100.0, 100.0])
    np.testing.assert_allclose(rescaled.actions, degrees / 100, atol=1e-6)
    stats["action"]["min"] = ["low"]
    (path / "meta" / "stats.json").write_text(json.dumps(stats))
    with pytest.raises(UserError, match=r"stats\.json: min and max of the actions"):
        read(path)


def test_statistics_of_other_data_are_refused_or_noted(tmp_path: Path):
    angles = np.linspace([0, 0], [5, 3], ROWS).astype(np.float32)
    path = lerobot(tmp_path / "a", frames(action=angles), LENGTHS)
    file = path / "meta" / "stats.json"
    file.write_text(json.dumps({"action": {"min": [0, 0], "max": [3, 3]}}))
    sentence = r"not computed .* action 0 spans \[0, 3\] in this file and \[0, 5\] .*\. Recompute"
    with pytest.raises(UserError, match=sentence):
        read(path)
    assert read(path, action_range=[0, 5]).actions.max() == 1
    file.write_text(json.dumps({"action": {"min": [0, 0], "max": [5, 9]}}))
    wide = "action 1 spans [0, 9] in this file and [0, 3] in the data"
    used = f"{wide}. The range [0, 9] is used. Recompute the statistics, or set action_range="
    assert used in " ".join(read(path).notes)
    notes = " ".join(read(path, action_range=[0, 5]).notes)
    assert wide in notes
    assert "is used" not in notes
    file.write_text(json.dumps({"action": {"min": [0, 0], "max": [5, 3]}}))
    assert "was not computed" not in " ".join(read(path).notes)
    rewrite_info(path, splits={"train": "0:1"})  # whose actions reach less than all do
    assert "was not computed" not in " ".join(read(path, subset="train").notes)
    file.write_text(json.dumps({"observation.state": {"min": [0] * 3, "max": [1] * 3}}))
    assert read(path, action_range=[0, 5]).actions.max() == 1


def test_actions_within_one_stay_unchanged_for_any_statistics(tmp_path: Path):
    columns = frames()
    path = lerobot(tmp_path / "a", columns, LENGTHS)
    stats = {"action": {"min": [-0.5, -0.5], "max": [0.5, 0.5]}}
    (path / "meta" / "stats.json").write_text(json.dumps(stats))
    np.testing.assert_array_equal(read(path).actions, columns["action"])


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        (["action.arm"], "hold action.arm. Rename it to 'action'"),
        (["action.arm", "action.hand"], "Join these columns into one, 'action'"),
        (["torques"], "Rename the action column to 'action'"),
    ],
)
def test_a_table_without_action_says_which_column_to_rename(
    tmp_path: Path, columns: list[str], remedy: str
):
    arrays = frames()
    action = arrays.pop("action")
    path = lerobot(tmp_path / "a", arrays | dict.fromkeys(columns, action), LENGTHS)
    with pytest.raises(UserError, match=remedy):
        read(path)

"""Tests of Minari's HDF5 layout: T + 1 observations, flags, spaces, and errors."""

import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3
import numpy as np
import pytest
from foreign_layouts import box, column, episodes, minari, observations_after, observations_before

from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

LENGTHS = [3, 1, 4, 2, 5, 2, 2, 3, 1, 2, 6, 3]  # twelve: episode_10 comes after episode_9


def test_every_array_of_every_episode_in_the_order_of_numbers(tmp_path: Path):
    all_episodes = episodes(LENGTHS)
    data = read(minari(tmp_path / "a-v0", all_episodes))
    np.testing.assert_array_equal(
        data.observations[: data.num_rows], observations_before(all_episodes)
    )
    np.testing.assert_array_equal(data.next_observations, observations_after(all_episodes))
    np.testing.assert_array_equal(data.actions, column(all_episodes, "actions"))
    np.testing.assert_array_equal(data.rewards, column(all_episodes, "rewards").astype(np.float32))
    np.testing.assert_array_equal(data.terminated, column(all_episodes, "terminations"))
    np.testing.assert_array_equal(data.truncated, column(all_episodes, "truncations"))
    assert data.episode_lengths().tolist() == LENGTHS
    assert len(data.observations) == sum(LENGTHS) + len(LENGTHS)  # each stored once


@pytest.mark.parametrize("inside", ["", "data", "data/main_data.hdf5"])
def test_the_folder_its_data_and_the_file_itself_are_the_same_data(tmp_path: Path, inside: str):
    folder = minari(tmp_path / "a-v0", episodes([3, 2]), action_space=box([2], -2, 2))
    whole, part = read(folder), read(folder / inside)
    np.testing.assert_array_equal(whole.actions, part.actions)
    assert whole.sha256 == part.sha256


def test_the_metadata_are_part_of_the_checksum(tmp_path: Path):
    a = minari(tmp_path / "a-v0", episodes([3]), action_space=box([2], -2, 2))
    b = minari(tmp_path / "b-v0", episodes([3]), action_space=box([2], -4, 4))
    assert read(a).sha256 != read(b).sha256


def test_a_file_alone_under_any_name_needs_no_metadata(tmp_path: Path):
    all_episodes = episodes([3, 2])
    folder = minari(tmp_path / "a-v0", all_episodes)
    alone = (folder / "data" / "main_data.hdf5").rename(tmp_path / "some.bin")
    np.testing.assert_array_equal(read(alone).next_observations, observations_after(all_episodes))


def test_a_dict_is_flattened_as_gymnasium_flattens_it(tmp_path: Path):
    all_episodes = episodes([3, 2], obs=9)
    parts = {"goal": slice(0, 2), "pos": slice(2, 6), "angle": slice(6, 7)}
    parts |= {"joint_2": slice(7, 8), "joint_10": slice(8, 9)}
    for episode in all_episodes:
        whole = episode["observations"]
        episode["observations"] = {key: whole[:, part] for key, part in parts.items()}
    subspaces = {k: box([p.stop - p.start], -np.inf, np.inf) for k, p in parts.items()}
    space = {"type": "Dict", "subspaces": subspaces}
    folder = minari(tmp_path / "a-v0", all_episodes, observation_space=space)
    data = read(folder)
    gym_space = gymnasium.spaces.Dict(
        {
            key: gymnasium.spaces.Box(-np.inf, np.inf, (part.stop - part.start,))
            for key, part in parts.items()
        }
    )
    first = {key: array[0] for key, array in all_episodes[0]["observations"].items()}
    np.testing.assert_array_equal(data.observations[0], gymnasium.spaces.flatten(gym_space, first))
    chosen = read(folder, observation_keys=["pos", "goal"])
    np.testing.assert_array_equal(
        chosen.observations[0], np.concatenate([first["pos"], first["goal"]])
    )
    assert chosen.notes == ("not observed: angle, joint_10, joint_2",)
    with pytest.raises(
        UserError, match=r"no speed to observe\. Choose among angle, goal, joint_10"
    ):
        read(folder, observation_keys=["speed"])


def test_a_tuple_keeps_its_order(tmp_path: Path):
    all_episodes = episodes([2])
    whole = all_episodes[0]["observations"]
    all_episodes[0]["observations"] = {f"_index_{i}": whole[:, :1] + i for i in range(11)}
    data = read(minari(tmp_path / "a-v0", all_episodes))
    np.testing.assert_array_equal(data.observations[0], whole[0, 0] + np.arange(11, dtype="f4"))


def test_episodes_with_flags_inside_with_both_flags_and_with_none(tmp_path: Path):
    all_episodes = episodes([4, 3, 2])
    all_episodes[0]["terminations"][:] = [False, True, False, True]
    all_episodes[0]["truncations"][:] = [False, False, False, True]  # both: it terminated
    all_episodes[1]["truncations"][:] = False  # no flag: the recording stopped
    data = read(minari(tmp_path / "a-v0", all_episodes))
    assert np.flatnonzero(data.terminated).tolist() == [1, 3, 8]
    assert np.flatnonzero(data.truncated).tolist() == [6]
    np.testing.assert_array_equal(data.next_observations, observations_after(all_episodes))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_integer_actions_of_an_action_space_are_continuous(tmp_path: Path, dtype: Any):
    all_episodes = episodes([3])
    all_episodes[0]["actions"] = np.array([[0], [5], [10]], dtype)
    folder = minari(tmp_path / "a-v0", all_episodes, action_space=box([1], 0, 10))
    assert read(folder).actions[:, 0].tolist() == [-1, 0, 1]


def test_a_missing_data_file_next_to_its_metadata_is_reported(tmp_path: Path):
    for lacking in (["terminations"], ["terminations", "truncations"]):
        all_episodes = episodes([3])
        for key in lacking:
            del all_episodes[0][key]
        folder = minari(tmp_path / "-".join([*lacking, "v0"]), all_episodes)
        with pytest.raises(UserError, match=f"no array 'episode_0/{lacking[0]}'"):
            read(folder)


def test_the_action_space_is_mapped_to_one_by_default(tmp_path: Path):
    all_episodes = episodes([3])
    all_episodes[0]["actions"] = np.array([[-2, 0], [4, 5], [1, 10]], np.float32)
    space = box([2], 0, 0) | {"low": [-2.0, 0.0], "high": [4.0, 10.0]}
    folder = minari(tmp_path / "a-v0", all_episodes, action_space=space)
    assert read(folder).actions.tolist() == [[-1, -1], [1, 0], [0, 1]]
    halved = read(folder, action_range=[-20, 20]).actions
    np.testing.assert_allclose(halved, all_episodes[0]["actions"] / 20, atol=1e-7)
    np.testing.assert_allclose(
        read(folder, action_scale=10).actions, all_episodes[0]["actions"] / 10, atol=1e-7
    )
    unbounded = box([2], -np.inf, np.inf)
    (folder / "data" / "metadata.json").write_text(
        json.dumps({"action_space": json.dumps(unbounded)})
    )
    with pytest.raises(UserError, match=r"reach from -2 to 10.*action_range=\[low,high\]"):
        read(folder)


def test_costs_and_infos_belong_to_the_steps(tmp_path: Path):
    all_episodes = episodes([3, 2])
    for episode in all_episodes:
        rows = np.arange(len(episode["rewards"]) + 1)
        episode["infos"] = {
            "cost": rows * 1.0,
            "inner": {"x": rows * 10},
            "text": ["a"] * len(rows),
        }
    folder = minari(tmp_path / "a-v0", all_episodes)
    data = read(folder)
    assert data.extras.keys() == {"costs"}
    assert data.extras["costs"].tolist() == [1, 2, 3, 1, 2]
    extras = read(folder, infos=True).extras
    assert extras.keys() == {"costs", "infos/inner/x"}
    assert extras["infos/inner/x"].tolist() == [10, 20, 30, 10, 20]


def jpeg(image: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    imageio.v3.imwrite(buffer, image, extension=".jpeg", quality=100)
    return np.frombuffer(buffer.getvalue(), np.uint8)


@pytest.mark.parametrize("encoded", [True, False])
def test_images_are_read_from_jpeg_or_raw_arrays(tmp_path: Path, encoded: bool):
    all_episodes = episodes([2])
    gray = np.array([10, 120, 250], np.uint8)  # JPEG keeps a image of one gray
    images = np.broadcast_to(gray[:, None, None, None], (3, 32, 40, 3))
    all_episodes[0]["observations"] = [jpeg(p) for p in images] if encoded else images
    space = box([32, 40, 3], 0, 255, "uint8")
    folder = minari(
        tmp_path / "a-v0",
        all_episodes,
        observation_space=space,
        **({} if encoded else {"jpeg_encoding": False}),
    )
    data = read(folder)
    assert data.observations.dtype == np.uint8
    assert data.observations.shape == (3, 32, 40, 3)
    assert np.abs(data.observations[:2].astype(int) - images[:2]).max() <= 1
    assert np.abs(data.next_observations.astype(int) - images[1:]).max() <= 1


def test_images_with_vectors_are_channels_if_requested_and_otherwise_left_out(tmp_path: Path):
    all_episodes = episodes([2])
    image = np.zeros((3, 32, 32, 3), np.uint8)
    all_episodes[0]["observations"] = {"state": all_episodes[0]["observations"], "view": image}
    space = {
        "type": "Dict",
        "subspaces": {"state": box([3], -1, 1), "view": box([32, 32, 3], 0, 255, "uint8")},
    }
    folder = minari(tmp_path / "a-v0", all_episodes, observation_space=space, jpeg_encoding=False)
    data = read(folder)
    assert data.observations.shape == (3, 3)
    assert data.notes == ("not observed: view",)
    observations = read(folder, observation_keys=["state", "view"]).observations
    assert {name: part.shape for name, part in observations.items()} == {
        "state": (3, 3),
        "view": (3, 32, 32, 3),
    }
    notes = [p.sentence for p in validate(folder) if p.severity == "warning"]
    assert any("not observed: view" in note for note in notes)


def without(key: str) -> list[dict[str, Any]]:
    all_episodes = episodes([3, 2])
    del all_episodes[1][key]
    return all_episodes


def changed(key: str, value: Any) -> list[dict[str, Any]]:
    all_episodes = episodes([3, 2])
    all_episodes[1][key] = value
    return all_episodes


def no_steps() -> list[dict[str, Any]]:
    first, second = episodes([3, 2])
    empty = {key: array[:0] for key, array in second.items()}
    return [first, empty | {"observations": second["observations"][:1]}]


BAD = {
    "no rewards": (without("rewards"), "no array 'episode_1/rewards'"),
    "no observations": (without("observations"), "no array 'episode_1/observations'"),
    "T observations": (
        changed("observations", np.zeros((2, 3))),
        "episode_1: observations has 2 rows, but 3 are expected",
    ),
    "actions short": (
        changed("actions", np.zeros((1, 2))),
        "episode_1: actions has 1 rows, but 2 are expected",
    ),
    "flags short": (
        changed("terminations", np.zeros(1, bool)),
        "episode_1: terminations has 1 rows, but 2 are expected",
    ),
    "other widths": (
        changed("observations", np.zeros((3, 4))),
        r"observations have shapes \[3\] and \[4\] per step in different episodes",
    ),
    "NaN": (changed("rewards", [0, np.nan]), "rewards has nan first in row 4"),
    "text": (changed("rewards", ["a", "b"]), "rewards has type .* numbers are expected"),
    "flag": (
        changed("truncations", [0, np.nan]),
        "episode_1: truncations is nan in row 1 .1 such rows.; a flag must be 0 or 1",
    ),
    "no steps": (no_steps(), "episode_1 has no steps"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_sentence_that_names_it(tmp_path: Path, case: str):
    all_episodes, sentence = BAD[case]
    folder = minari(tmp_path / "a-v0", all_episodes)
    with pytest.raises(UserError, match=sentence) as caught:
        read(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.severity for p in validate(folder)] == ["error"]


def test_discrete_actions_are_refused(tmp_path: Path):
    space = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    folder = minari(tmp_path / "a-v0", changed("actions", np.zeros(2)), action_space=space)
    with pytest.raises(UserError, match="the action space is Discrete"):
        read(folder)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"total_episodes": 3}, "2 episodes, but the metadata state 3"),
        ({"total_steps": 9}, "5 steps, but the metadata state 9"),
    ],
)
def test_fewer_episodes_than_stated_are_refused(tmp_path: Path, metadata: dict, sentence: str):
    folder = minari(tmp_path / "a-v0", episodes([3, 2]), **metadata)
    with pytest.raises(UserError, match=sentence):
        read(folder)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float):
    path = minari(tmp_path / "a-v0", episodes([3, 2])) / "data" / "main_data.hdf5"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match="incomplete or damaged"):
        read(path.parent)


def test_minaris_other_data_formats_are_named(tmp_path: Path):
    folder = minari(tmp_path / "a-v0", episodes([3]))
    (folder / "data" / "main_data.hdf5").unlink()
    with pytest.raises(UserError, match="Of Minari's data formats, only hdf5 is read"):
        read(folder)


def test_metadata_that_are_not_json_are_named(tmp_path: Path):
    folder = minari(tmp_path / "a-v0", episodes([3]))
    (folder / "data" / "metadata.json").write_text("{")
    with pytest.raises(UserError, match=r"metadata\.json is not readable as JSON"):
        read(folder)
    (folder / "data" / "metadata.json").write_text("[]")
    with pytest.raises(
        UserError, match=r"metadata\.json holds \[\], but a JSON object is expected"
    ):
        read(folder)


def test_an_invalid_space_is_named(tmp_path: Path):
    for text in ("{", "[]", '{"type": "Box"}'):
        folder = minari(tmp_path / f"{len(text)}-v0", episodes([3]))
        path = folder / "data" / "metadata.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"action_space": text}))
        with pytest.raises(UserError, match="action_space in the metadata is not a valid space"):
            read(folder)

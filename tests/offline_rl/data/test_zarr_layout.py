"""Tests of diffusion_policy's Zarr stores: chunks, formats, archives, episode ends and errors."""

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr as library
from foreign_layouts import Arrays, zarr, zipped

from offline_rl.data.dataset import NO_REWARDS
from offline_rl.data.formats.common import ReadOptions
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

ENDS = [3, 7, 10]


def pusht(rows: int = 10, size: int = 8) -> Arrays:
    """Return arrays like PushT's demonstrations: positions in pixels of 512, images as floats."""
    rng = np.random.default_rng(0)
    return {
        "data/action": rng.uniform(0, 512, (rows, 2)).astype(np.float32),
        "data/state": rng.uniform(0, 512, (rows, 5)).astype(np.float32),
        "data/keypoint": rng.uniform(0, 512, (rows, 9, 2)).astype(np.float32),
        "data/n_contacts": np.ones((rows, 1), np.float32),
        "data/img": rng.integers(0, 256, (rows, size, size, 3)).astype(np.float32),
        "meta/episode_ends": np.array(ENDS, np.int64),
    }


PIXELS = {"action_range": [0, 512]}


def assert_is_pusht(data: Any, arrays: Arrays) -> None:
    np.testing.assert_array_equal(data.observations, arrays["data/state"])
    np.testing.assert_allclose(data.actions, arrays["data/action"] / 256 - 1, atol=1e-6)
    assert data.episode_lengths().tolist() == [3, 4, 3]
    assert np.flatnonzero(data.truncated).tolist() == [2, 6, 9]
    assert not data.terminated.any()
    assert not data.rewards.any()
    assert np.flatnonzero(~data.usable).tolist() == [2, 6, 9]
    inside = data.usable.nonzero()[0]
    np.testing.assert_array_equal(data.next_index[inside], inside + 1)
    assert NO_REWARDS in data.notes
    assert "not observed: img, keypoint, n_contacts" in data.notes


@pytest.mark.parametrize("chunk", [1, 4, 10, 64])
@pytest.mark.parametrize("separator", [".", "/"])
def test_every_array_whatever_the_chunks(tmp_path: Path, chunk: int, separator: str):
    arrays = pusht()
    path = zarr(tmp_path / "a.zarr", arrays, chunk=chunk, separator=separator)
    assert_is_pusht(read(path, **PIXELS), arrays)


def test_columns_first(tmp_path: Path):
    arrays = pusht()
    assert_is_pusht(read(zarr(tmp_path / "a", arrays, order="F"), **PIXELS), arrays)


@pytest.mark.parametrize("root", ["", "pusht/pusht_cchi_v7_replay.zarr/"])
def test_an_archive_is_the_same_as_the_folder(tmp_path: Path, root: str):
    arrays = pusht()
    path = zipped(zarr(tmp_path / "a.zarr", arrays), tmp_path / "under_any.name", root)
    assert_is_pusht(read(path, **PIXELS), arrays)


@pytest.mark.parametrize("codec", ["Blosc", "Zlib", "GZip", "Zstd", "LZ4", "BZ2"])
def test_compressed_chunks(tmp_path: Path, codec: str):
    arrays = pusht()
    path = zarr(tmp_path / "a.zarr", arrays, compressor=getattr(numcodecs, codec)())
    assert_is_pusht(read(path, **PIXELS), arrays)


def test_without_zarr_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = zarr(tmp_path / "a.zarr", pusht())
    monkeypatch.setitem(sys.modules, "zarr", None)
    for store in (path, zipped(path, tmp_path / "a.zip")):
        with pytest.raises(UserError, match=r'pip install -e "\.\[zarr\]"'):
            read(store, **PIXELS)


def test_requested_keys_are_concatenated_in_the_given_order(tmp_path: Path):
    arrays = pusht()
    path = zarr(tmp_path / "a.zarr", arrays)
    data = read(path, observation_keys=["keypoint", "n_contacts"], **PIXELS)
    expected = np.concatenate(
        [arrays["data/keypoint"].reshape(10, 18), arrays["data/n_contacts"]], axis=1
    )
    np.testing.assert_array_equal(data.observations, expected)


def test_images_of_whole_numbers_become_uint8_channels(tmp_path: Path):
    arrays = pusht()
    path = zarr(tmp_path / "a.zarr", arrays)
    for keys in (["img"], ["img", "keypoint", "state"]):
        observations = read(path, observation_keys=keys, **PIXELS).observations
        assert list(observations) == keys
        assert observations["img"].dtype == np.uint8
        for key in keys:
            np.testing.assert_array_equal(
                observations[key], arrays[f"data/{key}"].reshape(observations[key].shape)
            )


def test_images_with_fractions_or_with_colors_first_are_refused(tmp_path: Path):
    halves = pusht() | {"data/img": pusht()["data/img"] / 255}
    with pytest.raises(UserError, match="data/img has type float32; images are uint8"):
        read(zarr(tmp_path / "a.zarr", halves), observation_keys=["img"], **PIXELS)
    first = pusht() | {"data/img": np.moveaxis(pusht()["data/img"], 3, 1).astype(np.uint8)}
    with pytest.raises(UserError, match=r"data/img has shape .* Move the colors"):
        read(zarr(tmp_path / "b.zarr", first), observation_keys=["img", "state"], **PIXELS)


def test_rewards_are_read_if_present(tmp_path: Path):
    arrays = pusht() | {"data/reward": np.arange(10, dtype=np.float32)}
    data = read(zarr(tmp_path / "a.zarr", arrays), **PIXELS)
    assert data.rewards.tolist() == list(range(10))
    assert not any("reward" in note for note in data.notes)


def test_without_a_state_the_user_chooses(tmp_path: Path):
    arrays = pusht()
    arrays["data/robot0_eef_pos"] = arrays.pop("data/state")
    path = zarr(tmp_path / "a.zarr", arrays)
    with pytest.raises(UserError, match=r"Choose among img, keypoint, n_contacts, robot0_eef_pos"):
        read(path, **PIXELS)
    data = read(path, observation_keys=["robot0_eef_pos"], **PIXELS)
    np.testing.assert_array_equal(data.observations, arrays["data/robot0_eef_pos"])


def test_actions_in_other_units_name_the_remedy(tmp_path: Path):
    with pytest.raises(UserError, match=r"data/action \[10, 2\] reach .*action_range=\[low,high\]"):
        read(zarr(tmp_path / "a.zarr", pusht()))


def test_missing_chunks_are_the_fill_value_and_noted(tmp_path: Path):
    path = zarr(tmp_path / "a.zarr", pusht(), changes={"data/state": {"fill_value": 7.0}})
    (path / "data" / "state" / "1.0").unlink()
    data = read(path, **PIXELS)
    assert (data.observations[4:8] == 7).all()
    assert any("data/state: 1 chunks have no file" in note for note in data.notes)
    assert any(
        "copied completely" in p.sentence for p in validate(path, options=ReadOptions(**PIXELS))
    )


def altered(key: str, array: np.ndarray | None) -> Arrays:
    arrays = pusht()
    del arrays[key]
    return arrays if array is None else arrays | {key: array}


BAD = {
    "ends too far": (
        altered("meta/episode_ends", np.array([3, 12])),
        "data/state has 10 rows, but 12 are expected",
    ),
    "ends too near": (
        altered("meta/episode_ends", np.array([3, 7])),
        "data/state has 10 rows, but 7 are expected",
    ),
    "ends fall": (
        altered("meta/episode_ends", np.array([7, 3, 10])),
        r"must be positive .* \[7, 3, 10\]",
    ),
    "no ends": (
        altered("meta/episode_ends", np.zeros(0, np.int64)),
        "must be positive and increase",
    ),
    "rows": (
        altered("data/action", np.zeros((9, 2), np.float32)),
        "data/action has 9 rows, but 10 are expected",
    ),
    "NaN": (
        altered("data/state", np.full((10, 5), np.nan, np.float32)),
        "data/state has nan first in row 0",
    ),
    "no action": (altered("data/action", None), "diffusion_policy .no array data/action"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_store_gets_one_sentence_that_names_it(tmp_path: Path, case: str):
    arrays, sentence = BAD[case]
    path = zarr(tmp_path / "bad.zarr", arrays)
    with pytest.raises(UserError, match=sentence) as caught:
        read(path, **PIXELS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_chunk_is_refused(tmp_path: Path):
    path = zarr(tmp_path / "a.zarr", pusht())
    chunk = path / "data" / "state" / "1.0"
    chunk.write_bytes(chunk.read_bytes()[:-8])
    with pytest.raises(
        UserError, match=r"data/state is incomplete or damaged .*size 18 into shape"
    ):
        read(path, **PIXELS)


def test_a_truncated_archive_is_refused(tmp_path: Path):
    path = zipped(zarr(tmp_path / "a.zarr", pusht()), tmp_path / "a.zip")
    content = path.read_bytes()
    for share in (0.1, 0.9):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError, match="incomplete or damaged"):
            read(path)


class Harm:
    """An object that runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_python_objects_are_never_unpickled(tmp_path: Path):
    codec, harmed = {"id": "pickle", "protocol": 5}, tmp_path / "harmed"
    for change, sentence in (
        ({"dtype": "|O", "filters": [codec]}, r"has type \|O; numbers are expected"),
        ({"compressor": codec}, "is stored with the unsupported codec 'pickle'"),
        ({"filters": [{"id": "shuffle"}, codec]}, "is stored with the unsupported codec 'pickle'"),
    ):
        path = zarr(tmp_path / "a.zarr", pusht(), changes={"data/state": change})
        for chunk in (path / "data" / "state").glob("[0-9]*"):
            chunk.write_bytes(pickle.dumps(Harm(harmed)))
        with pytest.raises(UserError, match=f"data/state {sentence}"):
            read(path, **PIXELS)
        shutil.rmtree(path)
    assert not harmed.exists()
    pickle.loads(pickle.dumps(Harm(harmed)))
    assert harmed.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"chunks": [0, 5]}, "chunks of size 0"),
        ({"chunks": [4]}, "has metadata that cannot be read"),
        ({"shape": ["ten", 5]}, "has metadata that cannot be read"),
        ({"zarr_format": 1}, "has metadata that cannot be read"),
        ({"compressor": {"id": "zlib", "strength": 9}}, "has metadata that cannot be read"),
        ({"dtype": "<x9"}, "has type <x9; numbers are expected"),
        ({"dtype": [["a", "<f4"]]}, "numbers are expected"),
    ],
)
def test_invalid_metadata_are_refused(tmp_path: Path, change, sentence: str):
    path = zarr(tmp_path / "a.zarr", pusht(), changes={"data/state": change})
    with pytest.raises(UserError, match=f"data/state .*{sentence}"):
        read(path, **PIXELS)


def zarr_3(path: Path, arrays: Arrays, **options: Any) -> Path:
    """Write the store in format 3 with zarr: chunks of two rows, two chunks per shard."""
    store = library.open_group(path, mode="w", zarr_format=3)
    for key, array in arrays.items():
        inner = array.shape[1:]
        store.create_array(key, data=array, chunks=(2, *inner), shards=(4, *inner), **options)
    return path


@pytest.mark.parametrize("root", [None, "", "pusht/pusht.zarr/"])
def test_format_3_is_the_same_as_format_2(tmp_path: Path, root: str | None):
    arrays = pusht()
    path = zarr_3(tmp_path / "a.zarr", arrays)
    path = path if root is None else zipped(path, tmp_path / "under_any.name", root)
    assert_is_pusht(read(path, **PIXELS), arrays)


def test_missing_shards_of_format_3_are_noted_and_damaged_ones_refused(tmp_path: Path):
    path = zarr_3(tmp_path / "a.zarr", pusht(), fill_value=7)
    shard = path / "data" / "state" / "c" / "1" / "0"
    content = bytearray(shard.read_bytes())
    shard.unlink()
    data = read(path, **PIXELS)
    assert (data.observations[4:8] == 7).all()
    assert any("data/state: 1 chunks have no file" in note for note in data.notes)
    content[-3] ^= 1  # of the index, which has a checksum
    shard.write_bytes(content)
    with pytest.raises(UserError, match="data/state is incomplete or damaged"):
        read(path, **PIXELS)


def test_arrays_that_are_not_requested_may_be_of_any_type_or_damaged(tmp_path: Path):
    arrays = pusht()
    path = zarr(tmp_path / "a.zarr", arrays, changes={"data/img": {"compressor": {"id": "jpegxl"}}})
    (path / "data" / "keypoint" / "0.0.0").write_bytes(b"")
    assert_is_pusht(read(path, **PIXELS), arrays)
    with pytest.raises(UserError, match="data/img is stored with the unsupported codec 'jpegxl'"):
        read(path, observation_keys=["img"], **PIXELS)


def test_the_checksum_depends_on_the_content(tmp_path: Path):
    paths = [zarr(tmp_path / name, pusht()) for name in ("a", "b")]
    first, second = (read(path, **PIXELS).sha256 for path in paths)
    assert first == second
    zarr(tmp_path / "c", pusht() | {"data/state": np.zeros((10, 5), np.float32)})
    assert read(tmp_path / "c", **PIXELS).sha256 != first

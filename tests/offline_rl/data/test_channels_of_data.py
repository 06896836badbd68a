"""Tests of data sets with several channels, in memory and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_rl.data import Dataset
from offline_rl.data import cache as cached
from offline_rl.data.info import info
from offline_rl.data.read import read
from offline_rl.data.transform import Preprocessing, Transform
from offline_rl.data.validation import validate
from offline_rl.data.writers.d4rl import write, write_npz
from offline_rl.data.writers.minari import write_minari
from offline_rl.utils.errors import UserError

ROWS, LAST = 7, [2, 6]


def arrays(rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    ended = np.isin(np.arange(rows), LAST[:1])
    return {
        "observations": {
            "image": draw.integers(0, 256, (rows, 4, 5, 3), np.uint8),
            "state": draw.normal(size=(rows, 2)).astype(np.float32),
        },
        "actions": draw.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": draw.normal(size=rows).astype(np.float32),
        "terminated": ended,
        "truncated": np.isin(np.arange(rows), LAST[1:]),
    }


def data_set() -> Dataset:
    ends = {name: array[LAST] // 2 for name, array in arrays(seed=1)["observations"].items()}
    return Dataset.from_arrays(**arrays(), final_observations=ends)


def test_next_observations_of_all_channels_are_the_next_rows_or_the_stored_ones_at_ends() -> None:
    data, columns = data_set(), arrays()["observations"]
    final = arrays(seed=1)["observations"]
    for name, array in columns.items():
        expected = np.concatenate([array[1:], array[:1]])
        expected[LAST] = final[name][LAST] // 2
        np.testing.assert_array_equal(data.next_observations[name], expected)
        assert data.observations[name].dtype == array.dtype


def test_stored_next_observations_are_kept_where_any_channel_differs_from_the_next_row() -> None:
    columns = arrays()
    following = {name: np.roll(array, -1, 0) for name, array in columns["observations"].items()}
    following["image"][4, 0, 0, 0] ^= 1
    data = Dataset.from_arrays(**columns, next_observations=following)
    for name, array in following.items():
        np.testing.assert_array_equal(data.next_observations[name], array)
    inside = [0, 1, 3, 5]
    assert data.next_index[inside].tolist() == [k + 1 for k in inside]
    assert data.next_index[4] >= ROWS


def test_selected_rows_keep_their_images() -> None:
    data = data_set()
    part = data.take(np.array([1, 4, 5]))
    for name, array in data.observations.items():
        np.testing.assert_array_equal(part.observations[name][:3], array[[1, 4, 5]])
        np.testing.assert_array_equal(
            part.next_observations[name], data.next_observations[name][[1, 4, 5]]
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p, s: {"image": p.astype(np.float32)}, "observations/image has type float32"),
        (lambda p, s: {"image": np.moveaxis(p, 3, 1)}, "Move the colors to the end"),
        (lambda p, s: {"image": p[..., 0]}, r"images are \[N, height, width, colors\]"),
        (lambda p, s: {"image": p[:-1]}, "observations/image 6"),
        (lambda p, s: {"state": s * np.nan}, "observations/state has nan first in row 0"),
    ],
)
def test_a_bad_channel_is_named(change: Any, sentence: str) -> None:
    columns = arrays()
    columns["observations"] |= change(*columns["observations"].values())
    with pytest.raises(UserError, match=sentence):
        Dataset.from_arrays(**columns)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p, s: {"state": s}, "next_observations/image is missing"),
        (
            lambda p, s: {"image": p, "state": s, "side": p},
            "next_observations/side has no matching",
        ),
        (lambda p, s: {"image": p[:, :2], "state": s}, "The two shapes must be equal"),
    ],
)
def test_next_observations_need_the_same_channels_and_shapes(change: Any, sentence: str) -> None:
    columns = arrays()
    with pytest.raises(UserError, match=sentence):
        Dataset.from_arrays(**columns, next_observations=change(*columns["observations"].values()))


@pytest.mark.parametrize("writer", [write, write_npz, write_minari])
def test_written_channels_are_read_bit_for_bit(tmp_path: Path, writer: Any) -> None:
    data = data_set()
    name = {write: "a.hdf5", write_npz: "a.npz", write_minari: "a-v0"}[writer]
    writer(data, tmp_path / name)
    keys = {"observation_keys": ["image", "state"]} if writer is write_minari else {}
    again = read(tmp_path / name, **keys)
    for channel, array in data.observations.items():
        rows = slice(data.num_rows)
        np.testing.assert_array_equal(again.observations[channel][rows], array[rows])
        assert again.observations[channel].dtype == array.dtype
        np.testing.assert_array_equal(
            again.next_observations[channel], data.next_observations[channel]
        )
    assert again.spec is not None
    assert again.spec.observation_shapes == {"image": (4, 5, 3), "state": (2,)}
    text = info(tmp_path / name, **keys)
    assert "[4, 5, 3] uint8" in text
    assert not [p for p in validate(again) if p.severity == "error"]


def test_the_cache_stores_channels(tmp_path: Path) -> None:
    data = data_set()
    cached.write_entry(data, tmp_path / "x" / "a-b")
    again = cached.open_entry(tmp_path / "x" / "a-b")
    assert again.checksum() == data.checksum()
    assert list(again.observations) == list(data.observations)


def test_a_checksum_depends_on_every_pixel() -> None:
    data = data_set()
    before = data.checksum()
    data.observations["image"][3, 0, 0, 0] ^= 1
    assert data.checksum() != before


def test_a_transform_scales_vectors_alone_and_survives_json() -> None:
    cfg, data = Preprocessing(normalize_observations=True), data_set()
    fitted = Transform.fit(cfg, data, {"image": (4, 5, 3), "state": (2,)})
    for transform in (fitted, Transform.from_json(fitted.to_json())):
        learned = transform.apply(data)
        assert learned.observations["image"] is data.observations["image"]
        state = learned.observations["state"][:ROWS]
        np.testing.assert_allclose(state.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(state.std(0), 1, atol=0.02)

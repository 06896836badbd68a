"""Tests of precision in float32: columns that lose precision are refused or noted."""

from pathlib import Path

import numpy as np
import pytest
from d4rl_files import save
from foreign_layouts import episodes, lerobot, minari, zarr

from offline_rl.data import Dataset
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

ROWS = 400
STEPS = np.arange(ROWS)
NORTHING = 5_572_094 + 0.02 * STEPS  # meters; float32 resolves 0.5 m there: 8 m are 17 values
UNIX = 1.7e9 + 0.05 * STEPS  # seconds; float32 resolves 128 s there: 20 s are one value


def data_set_of(observations: np.ndarray, **others: np.ndarray) -> Dataset:
    arrays = {"actions": np.zeros((ROWS, 1)), "rewards": np.zeros(ROWS)} | others
    return Dataset.from_arrays(observations, **arrays, terminated=ROWS - 1 == STEPS)


def with_second_column(column: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(STEPS), column], 1)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            NORTHING,
            r"column 1 changes by 0\.02 per step near 5572094; float32 resolves only 0\.5, so 17 "
            r"distinct values remain\. Subtract 5572094 in",
        ),
        (
            5_572_094 + 0.25 * STEPS,  # 100 m, of which float32 leaves 201 values
            r"column 1 changes by 0\.25 per step near 5572.* only 0\.5, so 201 distinct values",
        ),
        (
            UNIX,
            r"column 1 changes by 0\.05 per .* only 128, so 1 distinct value remains\. Subtract",
        ),
    ],
)
def test_a_column_that_loses_its_precision_is_refused_by_name(column, sentence):
    with pytest.raises(UserError, match=rf"observations {sentence}.*, or drop the column"):
        data_set_of(with_second_column(column))
    data = data_set_of(with_second_column(column - column[0]))
    assert len(np.unique(data.observations[:, 1])) == ROWS
    assert data.notes == ()


NANOSECONDS = 1_700_000_000_000_000_000 + 50_000_000 * STEPS
WHOLE = {"actions": 10**9 + STEPS[:, None], "action_range": [0, 3 * 10**9]}
ELSEWHERE = {
    "actions of whole numbers": WHOLE,
    "rewards": {"rewards": 1e8 + np.sin(STEPS)},
    "actions": {"actions": 1e8 + np.sin(STEPS)[:, None], "action_range": [9e7, 2e8]},
    "next_observations": {"next_observations": UNIX[:, None]},
}


@pytest.mark.parametrize("word", ELSEWHERE)
def test_every_array_is_checked(word: str):
    with pytest.raises(UserError, match=rf"data: {word.split()[0]} .* float32") as caught:
        data_set_of(np.sin(STEPS)[:, None], **ELSEWHERE[word])
    assert "drop the column" not in str(caught.value)
    assert ("Set action_range= to a range" in str(caught.value)) == (word.split()[0] == "actions")


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_range_close_to_the_actions_removes_their_offset(tmp_path: Path, dtype: type):
    """Near 1e9 float32 resolves 64; each step is a hundredth of the range."""
    actions = (10**9 + STEPS % 101)[:, None].astype(dtype)
    expected = (STEPS % 101 / 50 - 1)[:, None]
    close_range = [10**9, 10**9 + 100]
    for action_range in (close_range, "data"):
        data = data_set_of(np.sin(STEPS)[:, None], actions=actions, action_range=action_range)
        assert data.actions.dtype == np.float32
        np.testing.assert_allclose(data.actions, expected, atol=1e-6)
    arrays = {"observations": np.sin(STEPS)[:, None], "actions": actions, "rewards": np.zeros(ROWS)}
    path = save(tmp_path / "a.hdf5", arrays | {"terminals": ROWS - 1 == STEPS})
    np.testing.assert_allclose(read(path, action_range=close_range).actions, expected, atol=1e-6)
    for units in ({"action_scale": 10**9 + 100}, {"action_range": [0, 10**9 + 100]}):
        message = r"actions column 0 .* Set action_range= .*, such as \[1000000000,1000000100\]\."
        with pytest.raises(UserError, match=message):
            read(path, **units)


@pytest.mark.parametrize("outliers", [[0.0], [0.0, 1e7, 0.0, -1e7], [9e6] * 20])
def test_outliers_do_not_hide_the_loss_of_other_values(outliers: list[float]):
    column = NORTHING.copy()
    column[:: ROWS // len(outliers)] = outliers
    with pytest.raises(
        UserError, match=r"column 1 changes by 0\.0.* near 5572.*resolves only 0\.5"
    ):
        data_set_of(with_second_column(column))


def test_integers_are_checked():
    with pytest.raises(UserError, match=r"observations column 0 .* resolves only 1\.37e\+11"):
        data_set_of(NANOSECONDS[:, None])
    assert (
        data_set_of((10**9 + 64 * STEPS)[:, None]).observations[1, 0] == 10**9 + 64
    )  # exact in float32


def test_small_steps_over_a_long_distance_are_noted():
    """Four places along 1500 m, with a step of 2 cm per row at each."""
    along = 5_572_094 + 500.0 * (STEPS // 100) + 0.02 * STEPS
    data = data_set_of(with_second_column(along))
    assert data.observations.dtype == np.float32
    assert "observations: column 1 changes by 0.02 per step" in " ".join(data.notes)


@pytest.mark.parametrize(
    "column",
    [
        3 + 1e-6 * np.sin(STEPS),  # radians
        90 + 1e-6 * np.sin(STEPS),  # degrees
    ],
)
def test_joints_that_a_simulator_holds_at_rest_are_noted(column: np.ndarray):
    assert "observations: column 1 changes by" in " ".join(
        data_set_of(with_second_column(column)).notes
    )


@pytest.mark.parametrize(
    "column",
    [
        np.full(ROWS, 1.7e9),
        300 + 1e-11 * np.sin(STEPS),  # a constant but for float64's rounding
        1500 + np.sin(STEPS),
        np.where(STEPS == 5, -1e30, np.sin(STEPS)),  # an outlier is another doubt
    ],
)
def test_other_columns_are_converted_as_before(column: np.ndarray):
    data = data_set_of(with_second_column(column))
    np.testing.assert_array_equal(data.observations[:, 1], column.astype(np.float32))
    assert data.notes == ()


def in_minari(folder: Path) -> Path:
    one_episode = episodes([ROWS])
    one_episode[0]["observations"] = np.append(NORTHING, 5_572_103.0)[:, None] + np.zeros(3)
    return minari(folder / "a-v0", one_episode)


def in_lerobot(folder: Path) -> Path:
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    columns = {"observation.state": with_second_column(NORTHING), "action": np.zeros((ROWS, 1))}
    return lerobot(folder / "a", columns, [ROWS])


def test_a_named_column_is_reported_by_name(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    columns = {"observation.state": with_second_column(NORTHING), "action": np.zeros((ROWS, 1))}
    state = {"dtype": "float64", "shape": [2], "names": ["heading", "northing"]}
    path = lerobot(tmp_path / "a", columns, [ROWS], features={"observation.state": state})
    with pytest.raises(UserError, match=r"observation\.state column 1 \(northing\) changes"):
        read(path)
    assert "column 1 (northing)" in validate(path)[0].sentence


def in_zarr(folder: Path) -> Path:
    pytest.importorskip("zarr", reason="Zarr stores need the extra zarr")
    arrays = {"data/state": with_second_column(NORTHING), "data/action": np.zeros((ROWS, 1))}
    return zarr(folder / "a", arrays | {"meta/episode_ends": np.array([ROWS])}, chunk=ROWS)


def in_hdf5(folder: Path) -> Path:
    arrays = {"observations": with_second_column(NORTHING), "actions": np.zeros((ROWS, 1))}
    ends = np.arange(ROWS) == ROWS - 1
    return save(folder / "a.hdf5", arrays | {"rewards": np.zeros(ROWS), "terminals": ends})


@pytest.mark.parametrize("written", [in_minari, in_lerobot, in_zarr, in_hdf5])
def test_every_layout_is_checked(tmp_path: Path, written):
    path = written(tmp_path)
    sentence = "float32 resolves only 0.5, so 17 distinct values remain."
    with pytest.raises(UserError) as caught:
        read(path)
    assert sentence in str(caught.value)
    assert any(sentence in problem.sentence for problem in validate(path))

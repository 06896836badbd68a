"""Resolution of columns in float32: what is lost is refused or noted, by column."""

from pathlib import Path

import numpy as np
import pytest
from made_files import save
from made_layouts import episodes, lerobot, minari, zarr

from offline_rl.data import Dataset
from offline_rl.data.read import read
from offline_rl.data.validate import validate
from offline_rl.utils.errors import UserError

ROWS = 400
STEPS = np.arange(ROWS)
NORTHING = 5_572_094 + 0.02 * STEPS  # meters; float32 resolves 0.5 m there: 8 m are 17 values
UNIX = 1.7e9 + 0.05 * STEPS  # seconds; float32 resolves 128 s there: 20 s are one value


def of(observations: np.ndarray, **others: np.ndarray) -> Dataset:
    arrays = {"actions": np.zeros((ROWS, 1)), "rewards": np.zeros(ROWS)} | others
    return Dataset.from_arrays(observations, **arrays, terminated=ROWS - 1 == STEPS)


def beside_another(column: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(STEPS), column], 1)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (NORTHING, r"column 1 between 5572094 and 5572101\.98 .* resolves 0\.5 there.*: 17\."),
        (
            5_572_094 + 0.25 * STEPS,  # 100 m, of which float32 leaves 201 values
            r"column 1 between 5572094 and 5572193\.75 .* resolves 0\.5 there.*: 201\.",
        ),
        (UNIX, r"column 1 between 1700000000 and .* by 0\.05 a step, .* resolves 128 there.*: 1\."),
    ],
)
def test_a_column_that_loses_its_resolution_is_refused_by_name(column, sentence):
    with pytest.raises(UserError, match=rf"observations {sentence} Subtract an offset"):
        of(beside_another(column))
    kept = of(beside_another(column - column[0]))
    assert len(np.unique(kept.observations[:, 1])) == ROWS
    assert kept.notes == ()


NANOSECONDS = 1_700_000_000_000_000_000 + 50_000_000 * STEPS
WHOLE = {"actions": 10**9 + STEPS[:, None], "action_range": [0, 2 * 10**9]}
ELSEWHERE = {
    "actions of whole numbers": WHOLE,
    "rewards": {"rewards": 1e8 + np.sin(STEPS)},
    "actions": {"actions": 1e8 + np.sin(STEPS)[:, None], "action_range": [9e7, 2e8]},
    "next_observations": {"next_observations": UNIX[:, None]},
}


@pytest.mark.parametrize("word", ELSEWHERE)
def test_every_array_is_looked_at(word: str):
    with pytest.raises(UserError, match=rf"data: {word.split()[0]} .* float32"):
        of(np.sin(STEPS)[:, None], **ELSEWHERE[word])


def test_whole_numbers_are_looked_at():
    with pytest.raises(UserError, match=r"observations column 0 .* resolves 1\.37e\+11 there"):
        of(NANOSECONDS[:, None])
    assert of((10**9 + 64 * STEPS)[:, None]).observations[1, 0] == 10**9 + 64  # exact in float32


def test_small_steps_on_a_long_way_are_noted():
    there_and_back = 5_572_094 + 1000 * np.sin(STEPS * 2e-5) + 500.0 * (STEPS == 7)
    data = of(beside_another(there_and_back))
    assert data.observations.dtype == np.float32
    assert "observations: column 1 between" in " ".join(data.notes)


@pytest.mark.parametrize(
    "column",
    [
        3 + 1e-6 * np.sin(STEPS),  # radians
        90 + 1e-6 * np.sin(STEPS),  # degrees
    ],
)
def test_joints_that_a_simulator_holds_at_rest_are_noted(column: np.ndarray):
    assert "observations: column 1 between" in " ".join(of(beside_another(column)).notes)


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
    data = of(beside_another(column))
    np.testing.assert_array_equal(data.observations[:, 1], column.astype(np.float32))
    assert data.notes == ()


def in_minari(folder: Path) -> Path:
    made = episodes([ROWS])
    made[0]["observations"] = np.append(NORTHING, 5_572_103.0)[:, None] + np.zeros(3)
    return minari(folder / "a-v0", made)


def in_lerobot(folder: Path) -> Path:
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    made = {"observation.state": beside_another(NORTHING), "action": np.zeros((ROWS, 1))}
    return lerobot(folder / "a", made, [ROWS])


def test_a_column_with_a_name_is_called_by_it(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    made = {"observation.state": beside_another(NORTHING), "action": np.zeros((ROWS, 1))}
    state = {"dtype": "float64", "shape": [2], "names": ["heading", "northing"]}
    path = lerobot(tmp_path / "a", made, [ROWS], features={"observation.state": state})
    with pytest.raises(UserError, match=r"observation\.state column 1 \(northing\) between"):
        read(path)
    assert "column 1 (northing)" in validate(path)[0].sentence


def in_zarr(folder: Path) -> Path:
    pytest.importorskip("zarr", reason="Zarr stores need the extra zarr")
    arrays = {"data/state": beside_another(NORTHING), "data/action": np.zeros((ROWS, 1))}
    return zarr(folder / "a", arrays | {"meta/episode_ends": np.array([ROWS])}, chunk=ROWS)


def in_hdf5(folder: Path) -> Path:
    arrays = {"observations": beside_another(NORTHING), "actions": np.zeros((ROWS, 1))}
    ends = np.arange(ROWS) == ROWS - 1
    return save(folder / "a.hdf5", arrays | {"rewards": np.zeros(ROWS), "terminals": ends})


@pytest.mark.parametrize("written", [in_minari, in_lerobot, in_zarr, in_hdf5])
def test_every_layout_is_looked_at(tmp_path: Path, written):
    path = written(tmp_path)
    sentence = "resolves 0.5 there: distinct values left: 17."
    with pytest.raises(UserError) as caught:
        read(path)
    assert sentence in str(caught.value)
    assert any(sentence in problem.sentence for problem in validate(path))

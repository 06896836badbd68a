"""Tests of d3rlpy's layout, and of unsupported files that are refused with a remedy."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from foreign_layouts import d3rlpy

from offline_rl.data.read import read
from offline_rl.utils.errors import UserError


def test_its_episodes_are_read(tmp_path: Path) -> None:
    data = read(d3rlpy(tmp_path / "a.h5"))
    assert data.rewards.tolist() == [1, 1, 1, 2, 2]
    assert data.terminated.tolist() == [False, False, True, False, False]
    assert data.truncated.tolist() == [False, False, False, False, True]
    assert data.usable.tolist() == [True, True, True, True, False]
    assert data.next_index[3] == 4


def test_version_1_marks_ends_of_both_kinds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"], file["actions"] = rng.normal(size=(4, 2)), np.zeros((4, 1))
        file["rewards"], file["terminals"] = np.ones(4), np.array([0.0, 1, 0, 0])
        file["episode_terminals"] = np.array([0.0, 1, 0, 1])
    data = read(tmp_path / "a.h5")
    assert data.terminated.tolist() == [False, True, False, False]
    assert data.truncated.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("others", "match"),
    [
        ({"rewards_1": np.ones((3, 1))}, "observations_1 has 2 rows, but 3"),
        ({"num_episodes": 0}, "num_episodes is 0"),
        ({"observations_0_0": np.ones((3, 1))}, "of several arrays"),
        ({"num_episodes": 3}, "2 episodes, but the metadata state 3"),
        ({"num_episodes": 1}, "2 episodes, but the metadata state 1"),
    ],
)
def test_errors_in_its_files_are_named(tmp_path: Path, others: dict, match: str) -> None:
    with pytest.raises(UserError, match=match):
        read(d3rlpy(tmp_path / "a.h5", **others))


@pytest.mark.parametrize("name", ["columns", "num_episodes"])
def test_an_incomplete_file_of_d3rlpy_is_recognized(tmp_path: Path, name: str) -> None:
    path = d3rlpy(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        del file[name]
    with pytest.raises(UserError, match=f"a file of d3rlpy without the array `{name}`"):
        read(path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (pickle.dumps({"observations": [1]}), "a pickle. Pickles are not loaded"),
        (b"PAR1\x15\x04\x15 and so on", "a Parquet table.*pandas.read_parquet"),
        (b"obs_0,obs_1,action,reward\n0.1,0.2,0,1\n", "a table of text.*pandas.read_csv"),
        (b"\x00\x01\x02\x03 nothing", "not a data set. It begins with"),
    ],
)
def test_unsupported_files_are_refused_with_a_remedy(
    tmp_path: Path, content: bytes, match: str
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=match):
        read(path)

"""Tests of write: written data is read unchanged, and files are complete or absent."""

import os
import resource
import struct
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_files import save, two_episodes, with_next

from offline_rl.data import Dataset
from offline_rl.data.read import read
from offline_rl.data.writers.d4rl import write
from offline_rl.utils.errors import UserError


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    arrays = with_next(two_episodes()) | {"costs": np.arange(1003, dtype=np.float32)}
    return read(save(tmp_path / "source.hdf5", arrays))


def assert_same(left: Dataset, right: Dataset) -> None:
    for word in ("observations", "next_index", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(left, word), getattr(right, word), err_msg=word)
    np.testing.assert_array_equal(left.extras["costs"], right.extras["costs"])


@pytest.mark.parametrize("mode", ["all", "final"])
def test_a_written_data_set_is_read_unchanged(tmp_path: Path, data: Dataset, mode):
    assert_same(read(write(data, tmp_path / "new.hdf5", next_observations=mode)), data)


def test_without_next_observations_the_time_out_row_is_lost(tmp_path: Path, data: Dataset):
    again = read(write(data, tmp_path / "new.hdf5", next_observations="none"))
    assert (data.usable.sum(), again.usable.sum()) == (1003, 1002)


def test_the_layout_is_d4rls(tmp_path: Path, data: Dataset):
    path = write(data, tmp_path / "new.hdf5", metadata={"algorithm": "SAC", "seed": 3})
    with h5py.File(path) as file:
        assert file["observations"].shape == file["next_observations"].shape == (1003, 3)
        assert file["rewards"].shape == (1003,)
        assert file["terminals"].dtype == file["timeouts"].dtype == bool
        assert file["metadata/algorithm"][()] == b"SAC"
        assert file["metadata/seed"][()] == 3
    assert read(path).num_rows == 1003


def test_the_same_data_give_the_same_bytes_and_no_time_is_stored(tmp_path: Path, data: Dataset):
    paths = [write(data, tmp_path / name, metadata={"a": 1}) for name in ("1.hdf5", "2.hdf5")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    now = int(time.time())
    for second in range(now - 60, now + 2):  # HDF5 would store it as four bytes
        assert struct.pack("<I", second) not in paths[0].read_bytes()


def test_unknown_next_observations_are_not_invented(tmp_path: Path):
    data = read(save(tmp_path / "source.hdf5", two_episodes()))
    for mode in ("all", "final"):
        with pytest.raises(UserError, match="next observation of 1 time-out rows"):
            write(data, tmp_path / "new.hdf5", next_observations=mode)
    assert sorted(os.listdir(tmp_path)) == ["source.hdf5"]


def test_final_observations_cannot_hold_a_jump_inside_an_episode(tmp_path: Path):
    arrays = with_next(two_episodes())
    arrays["next_observations"][500] += 1
    data = read(save(tmp_path / "source.hdf5", arrays))
    with pytest.raises(UserError, match="inside an episode"):
        write(data, tmp_path / "new.hdf5", next_observations="final")


def test_a_wrong_number_of_final_observations_is_refused(tmp_path: Path):
    arrays = two_episodes() | {"final_observations": np.zeros((3, 3), np.float32)}
    with pytest.raises(UserError, match=r"final_observations has 3 rows; .* 2 episodes"):
        read(save(tmp_path / "a.hdf5", arrays))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, data: Dataset):
    """The operating system limits the size of files, like a full disk or a quota."""
    path = tmp_path / "new.hdf5"
    path.write_bytes(b"old")
    before = sorted(os.listdir(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match=r"new.hdf5 could not be written"):
            write(data, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(tmp_path)) == before
    assert path.read_bytes() == b"old"


def test_an_interrupted_write_leaves_nothing_behind(
    tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(data, tmp_path / "new.hdf5")
    assert sorted(os.listdir(tmp_path)) == ["source.hdf5"]


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path: Path, data: Dataset):
    with pytest.raises(UserError, match="could not be written"):
        write(data, tmp_path / "source.hdf5" / "new.hdf5")

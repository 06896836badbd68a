"""Tests of convert: written data is read unchanged, and what a layout cannot store is reported."""

import json
import os
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_files import save, steps, two_episodes, with_next
from foreign_layouts import box, episodes, minari, robomimic
from test_robomimic_layout import demos

from offline_rl.cli.main import main
from offline_rl.data import Dataset
from offline_rl.data.containers.raw import open_raw
from offline_rl.data.convert import convert, required_next
from offline_rl.data.formats.minari import NAME
from offline_rl.data.info import info
from offline_rl.data.read import read
from offline_rl.data.writers.minari import write_minari
from offline_rl.utils.errors import UserError

TARGETS = ("new.hdf5", "new.npz", "new-v0")


def with_costs(tmp_path: Path) -> Path:
    costs = np.arange(1003, dtype=np.float32)
    return save(tmp_path / "safe.hdf5", with_next(two_episodes()) | {"costs": costs})


def from_minari(tmp_path: Path) -> Path:
    return minari(tmp_path / "old-v0", episodes([3, 5, 2]), action_space=box([2], -2, 2))


def images(tmp_path: Path) -> Path:
    all_episodes = episodes([3, 2])
    rng = np.random.default_rng(0)
    for episode in all_episodes:
        shape = (len(episode["observations"]), 32, 32, 3)
        episode["observations"] = rng.integers(0, 256, shape, dtype=np.uint8)
    space = box([32, 32, 3], 0, 255, "uint8")
    return minari(tmp_path / "old-v0", all_episodes, observation_space=space, jpeg_encoding=False)


def failures(tmp_path: Path) -> Path:
    return robomimic(tmp_path / "mg.hdf5", demos([4, 3], success=0))


SOURCES = (with_costs, from_minari, images, failures)


def assert_same(left: Dataset, right: Dataset) -> None:
    rows = left.num_rows
    for word in ("actions", "rewards", "terminated", "truncated", "usable"):
        np.testing.assert_array_equal(getattr(left, word), getattr(right, word), err_msg=word)
    np.testing.assert_array_equal(left.observations[:rows], right.observations[:rows])
    for data in (left, right):
        assert data.observations.dtype == left.observations.dtype
    following = [data.observations[data.next_index[data.usable]] for data in (left, right)]
    np.testing.assert_array_equal(*following)
    assert left.extras.keys() == right.extras.keys()
    for key, array in left.extras.items():
        np.testing.assert_array_equal(array, right.extras[key])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_written_data_set_is_read_unchanged(tmp_path: Path, source, target: str):
    path = source(tmp_path)
    summary = convert(path, tmp_path / target)
    data = read(path)
    assert_same(read(tmp_path / target), data)
    assert summary.startswith(
        f"{tmp_path / target}: {data.num_rows:,} rows, {data.num_episodes} epi"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_time_outs_without_a_next_observation(tmp_path: Path, target: str):
    """D4RL's layout stores them; for Minari's, the user must allow leaving them out."""
    path = save(tmp_path / "a.hdf5", two_episodes())
    if target == "new-v0":
        with pytest.raises(UserError, match=r"1 rows have no next .*drop_unusable=true"):
            convert(path, tmp_path / target)
        assert os.listdir(tmp_path) == ["a.hdf5"]
    else:
        convert(path, tmp_path / target)
        assert_same(read(tmp_path / target), read(path))
    summary = convert(path, tmp_path / f"b_{target}", drop_unusable=True)
    arrays, data = two_episodes(), read(tmp_path / f"b_{target}")
    assert data.num_rows == 1002
    assert data.usable.all()
    assert np.flatnonzero(data.truncated).tolist() == [1001]
    np.testing.assert_array_equal(data.next_observations[1001], arrays["observations"][1002])
    assert "1 time-out rows without a next observation left out" in summary


def test_some_time_outs_with_and_some_without_a_next_observation_are_refused(tmp_path: Path):
    arrays = steps(9)
    arrays["timeouts"][[2, 5, 8]] = True
    data = read(save(tmp_path / "a.hdf5", arrays))
    mixed = data.take(np.array([0, 1, 3, 4, 5, 6, 7, 8]))  # row 1 is followed by the row left out
    assert required_next(data) == "none"
    with pytest.raises(UserError, match=r"2 rows have no next observation, .*drop_unusable=true"):
        required_next(mixed)


def test_a_jump_inside_an_episode_needs_all_next_observations(tmp_path: Path):
    arrays = with_next(two_episodes())
    arrays["next_observations"][500] += 1
    path = save(tmp_path / "a.hdf5", arrays)
    convert(path, tmp_path / "new.npz")
    assert_same(read(tmp_path / "new.npz"), read(path))
    with pytest.raises(UserError, match="inside an episode"):
        convert(path, tmp_path / "new-v0")


@pytest.mark.parametrize("target", TARGETS)
def test_an_existing_target_is_never_overwritten(tmp_path: Path, target: str):
    path = with_costs(tmp_path)
    convert(path, tmp_path / target)
    stored = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(UserError, match=f"{target} already exists"):
        convert(path, tmp_path / target)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == stored


@pytest.mark.parametrize("target", TARGETS)
def test_a_failed_write_leaves_no_file(tmp_path: Path, target: str):
    """The operating system limits the size of files, like a full disk or a quota."""
    path = with_costs(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match="could not be written"):
            convert(path, tmp_path / target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["safe.hdf5"]


def test_the_files_are_exactly_in_minaris_layout(tmp_path: Path):
    path = with_costs(tmp_path)
    convert(path, tmp_path / "new-v0")
    facts = json.loads((tmp_path / "new-v0" / "data" / "metadata.json").read_text())
    assert (facts["total_episodes"], facts["total_steps"]) == (2, 1003)
    assert facts["dataset_id"] == "new-v0"
    assert facts["data_format"] == "hdf5"
    assert json.loads(facts["action_space"]) == box([2], -1, 1)
    assert json.loads(facts["observation_space"]) == box([3], -np.inf, np.inf)
    with h5py.File(tmp_path / "new-v0" / "data" / "main_data.hdf5") as file:
        assert list(file) == ["episode_0", "episode_1"]
        second = file["episode_1"]
        assert dict(second.attrs) == {"id": 1, "total_steps": 1000}
        assert second["observations"].shape == (1001, 3)
        assert second["actions"].shape == (1000, 2)
        for key in ("rewards", "terminations", "truncations"):
            assert second[key].shape == (1000,)
        assert second["truncations"][()].tolist() == [False] * 999 + [True]
        assert second["infos/cost"][()].tolist() == [0, *range(3, 1003)]


def test_a_name_that_minari_would_not_find_is_refused(tmp_path: Path):
    data = read(with_costs(tmp_path))
    with pytest.raises(UserError, match="hopper is not a Minari id, such as name-v0"):
        write_minari(data, tmp_path / "hopper")
    with pytest.raises(UserError, match="End the path with a/b-v0"):
        write_minari(data, tmp_path / "b-v0", dataset_id="a/b-v0")
    write_minari(data, tmp_path / "a" / "b-v0", dataset_id="a/b-v0", metadata={"author": "me"})
    with open_raw(tmp_path / "a" / "b-v0") as raw:
        facts = json.loads((raw.folder / "metadata.json").read_text())
    assert (facts["dataset_id"], facts["author"]) == ("a/b-v0", "me")


def test_infos_that_minari_cannot_store_are_named(tmp_path: Path):
    qpos = np.arange(1003.0)
    path = save(tmp_path / "a.hdf5", with_next(two_episodes()) | {"infos/qpos": qpos})
    summary = convert(path, tmp_path / "new-v0", infos=True)
    assert summary.endswith(f"not in {NAME}'s layout, left out: infos/qpos")
    convert(path, tmp_path / "new.hdf5", infos=True)
    np.testing.assert_array_equal(
        read(tmp_path / "new.hdf5", infos=True).extras["infos/qpos"], qpos
    )


def test_the_command_line_converts_and_prints_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    path = robomimic(tmp_path / "lift.hdf5", demos([4, 3], success=2), train=["demo_0"])
    target = tmp_path / "sets" / "lift-v3"
    options = ["observation_keys=[object,robot0_joint_vel]", "subset=train", "format=minari"]
    assert main(["data", "convert", str(path), str(target), *options]) == 0
    summary, *notes, last = capsys.readouterr().out.splitlines()
    assert last == str(target)
    assert summary == f"{target}: 3 rows, 1 episodes as minari"
    assert any("1 rows that follow a success are left out" in note for note in notes)
    again = read(target)
    expected = read(path, observation_keys=["object", "robot0_joint_vel"], subset="train")
    assert_same(again, expected)
    for command in (["info", str(target)], ["check", str(target)]):
        assert main(["data", *command]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a.hdf5"], "data convert: wrong arguments. See offline-rl data --help"),
        (["a.hdf5", "b.npz", "observations_keys=[a]"], "did you mean observation_keys"),
        (["a.hdf5", "b.npz", "format=rlds"], "one of d4rl, npz, minari"),
        (["a.hdf5", "b.npz", "dataset_id=a-v0"], "dataset_id is only for format=minari"),
        (["a.hdf5", "a.hdf5"], "already exists"),
        (["nothing.hdf5", "b.npz"], "no such file"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, arguments, sentence, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.hdf5", with_next(two_episodes()))
    assert main(["data", "convert", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["a.hdf5"]


def test_info_and_check_take_the_options_of_reading(tmp_path: Path, capsys: pytest.CaptureFixture):
    arrays = with_next(two_episodes())
    arrays["actions"][0] = [-1, 1]
    arrays["actions"] = arrays["actions"] * 256 + 256
    path = str(save(tmp_path / "pixels.hdf5", arrays))
    assert main(["data", "check", path]) == 2
    assert main(["data", "check", path, "action_range=[0,512]"]) == 0
    capsys.readouterr()
    assert main(["data", "info", path, "action_range=[[0,0],[512,512]]"]) == 0
    assert "[2] from -1 to 1\n" in capsys.readouterr().out


def test_a_change_of_the_actions_units_is_printed(tmp_path: Path):
    all_episodes = episodes([3, 2])
    for episode in all_episodes:
        episode["actions"] *= 3
    source = minari(tmp_path / "a-v0", all_episodes, action_space=box([2], -3, 3))
    summary = convert(source, tmp_path / "a.npz")
    written, units = summary.splitlines()[:2]
    assert written.startswith(f"{tmp_path / 'a.npz'}: 5 rows")
    assert units == "actions are written in [-1, 1]: -1 and 1 stand for -3 and 3"
    assert "-1 and 1 stand for -3 and 3" in info(source)
    assert "stand for" not in convert(tmp_path / "a.npz", tmp_path / "b.npz")
    source = minari(tmp_path / "b-v0", all_episodes, action_space=box([2], -1, 1))
    with pytest.raises(UserError, match=r"leave their limits.* limits are -1 and 1"):
        convert(source, tmp_path / "c.npz")

"""Tests of robomimic's HDF5 layout: demonstrations, observation keys, dones and masks."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foreign_layouts import robomimic

from offline_rl.data.dataset import NO_REWARDS
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

Demo = dict[str, Any]
WIDTHS = {  # as in the low-dimensional files of the Lift task, with two keys nobody trains on
    "robot0_eef_quat": 4,
    "robot0_eef_pos": 3,
    "robot0_gripper_qpos": 2,
    "robot0_joint_vel": 7,
    "robot0_eef_quat_site": 4,
    "object": 10,
}
OBSERVED = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


def demo(rows: int, seed: int, *, success: int = 1, following: bool = True) -> Demo:
    """Return a demonstration whose last `success` rows are rewarded and done.

    done_mode 2: done where the task is solved and at the end.
    """
    rng = np.random.default_rng(seed)
    solved = np.arange(rows) >= rows - success
    whole = {key: rng.normal(size=(rows + 1, width)) for key, width in WIDTHS.items()}
    demonstrations = {
        "actions": rng.uniform(-1, 1, (rows, 7)),
        "rewards": solved * 1.0,
        "dones": (solved | (np.arange(rows) == rows - 1)).astype(np.int64),
        "obs": {key: array[:-1] for key, array in whole.items()},
    }
    if following:
        demonstrations["next_obs"] = {key: array[1:] for key, array in whole.items()}
    return demonstrations


def demos(lengths: list[int], **options: Any) -> dict[str, Demo]:
    return {f"demo_{i}": demo(rows, i, **options) for i, rows in enumerate(lengths)}


def observed(
    demonstrations: dict[str, Demo], group: str = "obs", keys: tuple[str, ...] = OBSERVED
) -> np.ndarray:
    """Return the concatenated arrays of `keys`, demonstrations sorted by number."""
    order = sorted(demonstrations, key=lambda name: int(name.removeprefix("demo_")))
    rows = [
        np.concatenate([demonstrations[name][group][key] for key in keys], axis=1) for name in order
    ]
    return np.concatenate(rows).astype(np.float32)


def test_every_array_of_every_demonstration_in_the_order_of_numbers(tmp_path: Path):
    lengths = [3, 4, 2, 3, 5, 2, 2, 3, 4, 2, 6, 3]  # twelve: demo_10 comes after demo_9
    demonstrations = demos(lengths)
    data = read(robomimic(tmp_path / "low_dim.hdf5", demonstrations))
    np.testing.assert_array_equal(data.observations[: data.num_rows], observed(demonstrations))
    np.testing.assert_array_equal(data.next_observations, observed(demonstrations, "next_obs"))
    for name in ("actions", "rewards"):
        stacked = np.concatenate([demonstrations[f"demo_{i}"][name] for i in range(len(lengths))])
        np.testing.assert_array_equal(getattr(data, name), stacked.astype(np.float32))
    assert data.episode_lengths().tolist() == lengths
    assert data.terminated[data.episode_ends].all()
    assert not data.truncated.any()
    assert f"observed: {', '.join(OBSERVED)}" in data.notes
    assert "not observed: robot0_eef_quat_site, robot0_joint_vel" in data.notes


def test_two_arms_and_other_keys(tmp_path: Path):
    demonstrations = {"demo_0": demo(3, 0)}
    obs = demonstrations["demo_0"]["obs"]
    for key in ("eef_pos", "eef_quat", "gripper_qpos"):
        obs[f"robot1_{key}"] = obs[f"robot0_{key}"] + 1
        demonstrations["demo_0"]["next_obs"][f"robot1_{key}"] = obs[f"robot1_{key}"]
    path = robomimic(tmp_path / "a.hdf5", demonstrations)
    both = (*OBSERVED, "robot1_eef_pos", "robot1_eef_quat", "robot1_gripper_qpos")
    np.testing.assert_array_equal(read(path).observations[:3], observed(demonstrations, keys=both))
    chosen = ("robot0_joint_vel", "object")
    data = read(path, observation_keys=chosen)
    np.testing.assert_array_equal(data.observations[:3], observed(demonstrations, keys=chosen))


def test_without_the_usual_keys_all_are_observed(tmp_path: Path):
    demonstrations = {"demo_0": demo(3, 0)}
    for group in ("obs", "next_obs"):
        arrays = demonstrations["demo_0"][group]
        demonstrations["demo_0"][group] = {"flat": arrays["object"], "b": arrays["robot0_eef_pos"]}
    data = read(robomimic(tmp_path / "a.hdf5", demonstrations))
    np.testing.assert_array_equal(
        data.observations[:3], observed(demonstrations, keys=("b", "flat"))
    )


def test_a_lasting_success_terminates_once(tmp_path: Path):
    demonstrations = demos([6, 5], success=3)
    data = read(robomimic(tmp_path / "a.hdf5", demonstrations))
    assert data.episode_lengths().tolist() == [4, 3]
    assert np.flatnonzero(data.terminated).tolist() == [3, 6]
    assert data.episode_returns().tolist() == [1, 1]
    np.testing.assert_array_equal(
        data.actions[4:], demonstrations["demo_1"]["actions"][:3].astype("f4")
    )
    np.testing.assert_array_equal(
        data.next_observations[3], observed({"demo_0": demonstrations["demo_0"]}, "next_obs")[3]
    )
    assert "4 rows that follow a success are left out" in data.notes


def test_a_success_that_is_lost_again_ends_one_episode_and_starts_another(tmp_path: Path):
    demonstrations = demos([6], success=1)
    demonstrations["demo_0"]["rewards"][1:3] = 1
    demonstrations["demo_0"]["dones"][1:3] = 1
    data = read(robomimic(tmp_path / "a.hdf5", demonstrations))
    assert data.episode_lengths().tolist() == [2, 3]
    np.testing.assert_array_equal(
        data.actions[2], demonstrations["demo_0"]["actions"][3].astype("f4")
    )
    assert data.terminated.sum() == 2


def test_adjacent_demonstrations_of_one_step_stay_apart(tmp_path: Path):
    data = read(robomimic(tmp_path / "a.hdf5", demos([1, 1, 1])))
    assert data.episode_lengths().tolist() == [1, 1, 1]


def test_the_end_of_a_failure_is_truncated(tmp_path: Path):
    data = read(robomimic(tmp_path / "mg.hdf5", demos([4, 3], success=0)))
    assert not data.terminated.any()
    assert np.flatnonzero(data.truncated).tolist() == [3, 6]
    assert data.usable.all()


def test_dense_rewards_leave_dones_as_they_are(tmp_path: Path):
    demonstrations = demos([4, 3], success=0)
    for one in demonstrations.values():
        one["rewards"] = one["rewards"] + 0.25
    data = read(robomimic(tmp_path / "mg_dense.hdf5", demonstrations))
    assert np.flatnonzero(data.terminated).tolist() == [3, 6]


def test_without_next_observations_the_last_row_of_a_failure_is_not_a_transition(tmp_path: Path):
    demonstrations = demos([4], success=0, following=False) | {
        "demo_1": demo(3, 1, following=False)
    }
    data = read(robomimic(tmp_path / "a.hdf5", demonstrations))
    assert np.flatnonzero(~data.usable).tolist() == [3]
    np.testing.assert_array_equal(
        data.observations[data.next_index[:3]], observed(demonstrations)[1:4]
    )


def test_without_rewards_and_dones_all_rewards_are_zero_and_episodes_truncated(tmp_path: Path):
    demonstrations = demos([3, 2])
    for one in demonstrations.values():
        del one["rewards"], one["dones"]
    data = read(robomimic(tmp_path / "mimicgen.hdf5", demonstrations))
    assert not data.rewards.any()
    assert np.flatnonzero(data.truncated).tolist() == [2, 4]
    assert NO_REWARDS in data.notes


def test_a_subset_is_a_mask_of_the_file(tmp_path: Path):
    demonstrations = demos([3, 4, 2])
    path = robomimic(
        tmp_path / "a.hdf5", demonstrations, train=["demo_2", "demo_0"], valid=["demo_1"]
    )
    assert read(path).episode_lengths().tolist() == [3, 4, 2]
    assert read(path, subset="train").episode_lengths().tolist() == [3, 2]
    assert read(path, subset="valid").episode_lengths().tolist() == [4]
    with pytest.raises(UserError, match=r"no subset 'val'\. Subsets: train, valid"):
        read(path, subset="val")


def test_a_mask_of_a_missing_demonstration_is_refused(tmp_path: Path):
    path = robomimic(tmp_path / "a.hdf5", demos([3]), train=["demo_0", "demo_7"])
    with pytest.raises(UserError, match="mask/train lists data/demo_7, which is not in the file"):
        read(path, subset="train")


def test_cameras_and_vectors_are_channels_by_their_keys(tmp_path: Path):
    demonstrations = demos([3])
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    demonstrations["demo_0"]["obs"]["agentview_image"] = images[:-1]
    demonstrations["demo_0"]["next_obs"]["agentview_image"] = images[1:]
    path = robomimic(tmp_path / "image.hdf5", demonstrations)
    np.testing.assert_array_equal(read(path).observations[:3], observed(demonstrations))
    for keys in (["agentview_image"], ["object", "agentview_image"]):
        data = read(path, observation_keys=keys)
        assert list(data.observations) == keys
        assert data.observations["agentview_image"].dtype == np.uint8
        np.testing.assert_array_equal(data.next_observations["agentview_image"], images[1:])
    felt = demonstrations["demo_0"]["obs"]["object"].astype(np.float32)
    np.testing.assert_array_equal(data.observations["object"][:3], felt)


def test_a_camera_missing_or_smaller_in_one_demonstration_is_named(tmp_path: Path):
    demonstrations = demos([3, 2])
    for k, (name, side) in enumerate((("demo_0", 8), ("demo_1", 6))):
        for group in ("obs", "next_obs"):
            demonstrations[name][group]["front"] = np.full((3 - k, side, side, 3), 9, np.uint8)
    path = robomimic(tmp_path / "a.hdf5", demonstrations)
    with pytest.raises(
        UserError, match=r"observations/front have shapes \[6, 6, 3\] and \[8, 8, 3\]"
    ):
        read(path, observation_keys=["front", "object"])
    del demonstrations["demo_1"]["obs"]["front"]
    path = robomimic(tmp_path / "b.hdf5", demonstrations)
    with pytest.raises(UserError, match="no array 'data/demo_1/obs/front'"):
        read(path, observation_keys=["front", "object"])
    with pytest.raises(UserError, match=r"no side to observe. Choose among front"):
        read(path, observation_keys=["side"])


def broken(key: str, value: Any) -> dict[str, Demo]:
    demonstrations = demos([3, 2])
    demonstrations["demo_1"][key] = value
    return demonstrations


def lacking(key: str) -> dict[str, Demo]:
    demonstrations = demos([3, 2])
    del demonstrations["demo_1"][key]
    return demonstrations


BAD = {
    "no dones in one": (lacking("dones"), "no array 'data/demo_1/dones'"),
    "no obs in one": (lacking("obs"), "no array 'data/demo_1/obs/object'"),
    "rewards short": (
        broken("rewards", np.zeros(1)),
        "data/demo_1: rewards has 1 rows, but 2 are expected",
    ),
    "flag": (broken("dones", np.full(2, 0.5)), "dones is 0.5 in row 3"),
    "NaN": (
        broken("actions", np.full((2, 7), np.nan)),
        "actions has nan first in row 3, and 2 of 5 rows",
    ),
    "out of range": (broken("actions", np.full((2, 7), 1.5)), "they must lie in"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_sentence_that_names_it(tmp_path: Path, case: str):
    demonstrations, sentence = BAD[case]
    path = robomimic(tmp_path / "bad.hdf5", demonstrations)
    with pytest.raises(UserError, match=sentence) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.severity for p in validate(path)] == ["error"]


def test_missing_demonstrations_are_noted_and_missing_rows_refused(tmp_path: Path):
    path = robomimic(tmp_path / "a.hdf5", demos([3, 2]))
    with h5py.File(path, "a") as file:
        del file["data/demo_1"]
    assert any("states 5 steps, but the file has 3" in note for note in read(path).notes)
    path = robomimic(tmp_path / "b.hdf5", demos([3, 2]), train=["demo_1"])
    with h5py.File(path, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 9
    with pytest.raises(UserError, match="demo_1: 2 steps, but the metadata state 9"):
        read(path, subset="train")


def test_a_truncated_file_is_refused(tmp_path: Path):
    path = robomimic(tmp_path / "a.hdf5", demos([3, 2]))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UserError, match="incomplete or damaged"):
        read(path)

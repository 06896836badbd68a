"""Tests of read: the layouts of all suites, D4RL's own rules, and errors."""

from pathlib import Path

import numpy as np
import pytest
from d4rl_files import Arrays, in_neorl2_words, save, steps, two_episodes, with_next

from benchmarks.loaders import SUITES, equal, qlearning_dataset
from offline_rl.data.read import read
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum


def gym_v2(arrays: Arrays) -> Arrays:
    rows = len(arrays["rewards"])
    return with_next(arrays) | {
        "infos/action_log_probs": np.zeros(rows, np.float32),
        "infos/qpos": np.arange(rows * 2, dtype=np.float64).reshape(rows, 2),
        "metadata/algorithm": np.bytes_("SAC"),
        "metadata/iteration": np.int64(3),
        "metadata/policy/fc0/weight": np.zeros((4, 3)),
    }


def kitchen(ends: list[int], rewards: list[float]) -> Arrays:
    """Return demonstrations that end in the rows `ends`, without time-outs."""
    arrays = steps(ends[-1] + 1, obs=60, act=9)
    del arrays["timeouts"]
    arrays["rewards"][:] = 0
    arrays["rewards"][ends] = rewards
    arrays["terminals"][ends] = True
    return arrays | {"infos": np.zeros(ends[-1] + 1)}


@pytest.mark.parametrize("name", ["a.hdf5", "no_ending", "a.npz"])
def test_the_layout_is_recognized_by_content(tmp_path: Path, name: str):
    arrays = with_next(two_episodes())
    data = read(save(tmp_path / name, arrays))
    assert (data.num_rows, data.num_episodes, data.usable.sum()) == (1003, 2, 1003)
    np.testing.assert_array_equal(data.next_observations, arrays["next_observations"])
    assert data.sha256 == checksum(tmp_path / name)
    assert data.name == Path(name).stem


def test_gym_v2_with_infos_and_metadata(tmp_path: Path):
    arrays = gym_v2(two_episodes())
    path = save(tmp_path / "hopper_medium-v2.hdf5", arrays)
    assert not read(path).extras
    data = read(path, infos=True)
    np.testing.assert_array_equal(data.next_observations, arrays["next_observations"])
    np.testing.assert_array_equal(data.extras["infos/qpos"], arrays["infos/qpos"])
    assert set(data.extras) == {"infos/qpos", "infos/action_log_probs"}


def test_antmaze_whose_terminals_come_in_runs_and_may_meet_a_time_out(tmp_path: Path):
    arrays = steps(12, obs=29, act=8)
    arrays["rewards"][:] = 0
    arrays["rewards"][[3, 4, 9]] = 1
    arrays["terminals"][[3, 4, 9]] = True
    arrays["timeouts"][[5, 9]] = True
    arrays |= {"infos/goal": np.zeros((12, 2)), "infos/qpos": np.zeros((12, 15))}
    data = read(save(tmp_path / "Ant_maze_u-maze.hdf5", arrays))
    assert np.flatnonzero(data.terminated).tolist() == [3, 4, 9]
    assert np.flatnonzero(data.truncated).tolist() == [5, 11]
    assert np.flatnonzero(~data.usable).tolist() == [5, 11]
    assert data.episode_lengths().tolist() == [4, 1, 1, 4, 2]


def test_adroit_with_time_outs_only_and_rewards_in_a_column(tmp_path: Path):
    arrays = steps(10, obs=39, act=28)
    arrays["timeouts"][[3, 9]] = True
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminals"] = arrays["terminals"][:, None]
    arrays |= {"infos/door_body_pos": np.zeros((10, 3)), "metadata/policy/output": np.bytes_("x")}
    data = read(save(tmp_path / "door-human-v1.hdf5", arrays))
    assert data.rewards.shape == (10,)
    assert data.usable.sum() == 8
    assert data.terminated.sum() == 0


def test_kitchen_terminals_end_demonstrations_and_terminate_only_solved_ones(tmp_path: Path):
    data = read(save(tmp_path / "kitchen.hdf5", kitchen([4, 9, 14], [4, 3, 4])))
    assert data.episode_lengths().tolist() == [5, 5, 5]
    assert np.flatnonzero(data.terminated).tolist() == [4, 14]
    assert np.flatnonzero(data.truncated).tolist() == [9]
    assert np.flatnonzero(~data.usable).tolist() == [9]


def test_kitchen_as_d4rl_reads_it(tmp_path: Path):
    arrays = kitchen([4, 9, 14], [4, 3, 4])
    data = read(save(tmp_path / "kitchen.hdf5", arrays), d4rl_compatible=True)
    assert np.flatnonzero(data.terminated).tolist() == [4, 9]
    assert data.num_rows == 14


def test_dsrl_costs_are_kept_and_checked(tmp_path: Path):
    arrays = with_next(two_episodes()) | {"costs": np.arange(1003.0)}
    data = read(save(tmp_path / "SafetyCarRun-v0-40-651.hdf5", arrays))
    np.testing.assert_array_equal(data.extras["costs"], np.arange(1003.0))
    arrays["costs"][7] = np.nan
    with pytest.raises(UserError, match="costs has nan first in row 7"):
        read(save(tmp_path / "bad.hdf5", arrays))


def test_neorl2(tmp_path: Path):
    arrays = with_next(two_episodes())
    data = read(save(tmp_path / "DMSD.npz", in_neorl2_words(arrays)))
    assert np.flatnonzero(data.terminated).tolist() == [2]
    assert np.flatnonzero(data.truncated).tolist() == [1002]
    np.testing.assert_array_equal(data.next_observations, arrays["next_observations"])


def test_neorl2_index_truncates_episodes_without_flags(tmp_path: Path):
    arrays = in_neorl2_words(with_next(two_episodes()))
    arrays["index"] = np.array([0, 3, 503])
    data = read(save(tmp_path / "a.npz", arrays))
    assert data.episode_lengths().tolist() == [3, 500, 500]
    arrays["index"] = np.array([0, 2000])
    with pytest.raises(UserError, match="index must list the first row of each episode"):
        read(save(tmp_path / "b.npz", arrays))


def test_gymnasiums_names(tmp_path: Path):
    arrays = two_episodes()
    arrays["terminated"], arrays["truncated"] = arrays.pop("terminals"), arrays.pop("timeouts")
    data = read(save(tmp_path / "a.npz", arrays))
    assert data.episode_lengths().tolist() == [3, 1000]


def test_without_time_outs_steps_are_counted(tmp_path: Path):
    arrays = steps(25)
    del arrays["timeouts"]
    arrays["terminals"][[4, 16]] = True
    path = save(tmp_path / "a.hdf5", arrays)
    data = read(path, max_episode_steps=6)
    assert np.flatnonzero(data.truncated).tolist() == [10, 22, 24]
    assert read(path).episode_lengths().tolist() == [5, 12, 8]


def test_without_time_outs_a_jump_of_the_observations_ends_an_episode(tmp_path: Path):
    arrays = with_next(two_episodes() | {"timeouts": np.arange(1003) == 500})
    del arrays["timeouts"]
    data = read(save(tmp_path / "a.hdf5", arrays))
    assert np.flatnonzero(data.truncated).tolist() == [500, 1002]
    assert np.flatnonzero(data.terminated).tolist() == [2]
    assert data.usable.all()


@pytest.mark.parametrize("suite", SUITES)
def test_d4rl_compatible_equals_qlearning_dataset_for_every_suite(tmp_path: Path, suite: str):
    example = SUITES[suite]
    arrays, limit = example.make(), example.max_episode_steps
    path = save(tmp_path / "file.hdf5", arrays)
    options = {"max_episode_steps": limit, "d4rl_compatible": True}
    assert equal(read(path, **options), qlearning_dataset(arrays, limit))
    expected = qlearning_dataset(arrays, limit, terminate_on_end=True)
    assert len(expected["r"]) == len(arrays["rewards"]) - 1
    assert equal(read(path, **options, terminate_on_end=True), expected)
    differs = not equal(read(path, max_episode_steps=limit), qlearning_dataset(arrays, limit))
    assert differs == (example.ours != "nothing")


def test_terminate_on_end_needs_d4rl_compatible(tmp_path: Path):
    path = save(tmp_path / "a.hdf5", two_episodes())
    with pytest.raises(UserError, match="needs d4rl_compatible=true"):
        read(path, terminate_on_end=True)


@pytest.mark.parametrize("seed", range(3))
def test_d4rl_compatible_equals_d4rls_loop(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    arrays = steps(300, seed=seed)
    flag = rng.choice(3, 300, p=[0.9, 0.05, 0.05])
    arrays["terminals"], arrays["timeouts"] = flag == 1, flag == 2
    data = read(save(tmp_path / "a.hdf5", with_next(arrays)), d4rl_compatible=True)
    assert_same_transitions(data, qlearning_dataset(arrays))
    assert data.usable.all()


@pytest.mark.parametrize("max_episode_steps", [None, 7, 40])
def test_d4rl_compatible_without_time_outs_counts_as_d4rl_does(
    tmp_path: Path, max_episode_steps: int | None
):
    arrays = steps(300)
    del arrays["timeouts"]
    arrays["terminals"] = np.random.default_rng(1).random(300) < 0.05
    path = save(tmp_path / "a.hdf5", arrays)
    data = read(path, d4rl_compatible=True, max_episode_steps=max_episode_steps)
    assert_same_transitions(data, qlearning_dataset(arrays, max_episode_steps))


def test_d4rl_compatible_gives_3_and_999_rows_whatever_the_file_stores(tmp_path: Path):
    arrays = with_next(two_episodes())
    data = read(save(tmp_path / "a.hdf5", arrays), d4rl_compatible=True)
    assert data.num_rows == 3 + 999
    assert data.episode_lengths().tolist() == [3, 999]
    assert data.terminated.sum() == 1


def assert_same_transitions(data, expected: Arrays) -> None:
    np.testing.assert_array_equal(data.observations[: data.num_rows], expected["s"])
    np.testing.assert_array_equal(data.actions, expected["a"])
    np.testing.assert_array_equal(data.rewards, expected["r"])
    np.testing.assert_array_equal(data.next_observations, expected["n"])
    np.testing.assert_array_equal(data.terminated, expected["d"])


def test_action_scale_divides(tmp_path: Path):
    arrays = two_episodes()
    arrays["actions"] *= 4
    path = save(tmp_path / "a.hdf5", arrays)
    with pytest.raises(UserError, match=r"a.hdf5: actions \[1003, 2\] reach .* in \[-1, 1\]"):
        read(path)
    np.testing.assert_allclose(read(path, action_scale=4.0).actions, arrays["actions"] / 4)


def changed(key: str, value: np.ndarray | None) -> Arrays:
    arrays = with_next(two_episodes())
    del arrays[key]
    return arrays if value is None else arrays | {key: value}


def nan_at(row: int) -> np.ndarray:
    observations = two_episodes()["observations"]
    observations[[row, row + 5], 1] = np.nan
    return observations


BAD = {
    "missing": (changed("rewards", None), "no array 'rewards' or 'reward' in this HDF5 file"),
    "near match": (
        changed("rewards", None) | {"Rewards": np.zeros(1003)},
        "no array 'rewards' or 'reward', but 'Rewards'. If this is the array, rename it 'rewards'",
    ),
    "ambiguous done": (
        changed("terminals", None) | {"dones": np.zeros(1003)},
        "but 'dones', which may mark the end of the task or of the recording",
    ),
    "NaN": (changed("observations", nan_at(70)), "observations has nan first in row 70, and 2 of"),
    "infinite": (changed("rewards", np.full(1003, np.inf)), "rewards has inf first in row 0"),
    "rows": (
        changed("actions", np.zeros((1002, 2))),
        "row counts differ .*actions 1,002",
    ),
    "flag": (changed("terminals", np.full(1003, 0.5)), "terminals is 0.5 in row 0"),
    "both flags": (
        changed("timeouts", np.arange(1003) == 2),
        "terminals and timeouts are both set in row 2",
    ),
    "shape": (changed("actions", np.zeros(1003)), r"actions have shape \[1003\]; \[N, A\]"),
    "reward shape": (changed("rewards", np.zeros((1003, 2))), r"rewards has shape \[1003, 2\]"),
    "text": (changed("rewards", np.array([b"x"] * 1003)), "rewards has type .* numbers"),
    "widths": (
        changed("next_observations", np.zeros((1003, 4))),
        r"next_observations have shape \[4\] per step, and observations have \[3\]",
    ),
    "empty": ({key: a[:0] for key, a in two_episodes().items()}, "the arrays have no rows"),
    "minari": (
        {"episode_0/actions": np.zeros(3)},
        "the file has groups episode_0, … with actions. This layout is not supported",
    ),
    "robomimic": ({"data/demo_0/actions": np.zeros(3)}, "data/demo_0 has no group obs"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_sentence_that_names_it(tmp_path: Path, case: str):
    arrays, sentence = BAD[case]
    path = save(tmp_path / "bad.hdf5", arrays)
    with pytest.raises(UserError, match=sentence) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.hdf5", "a.npz"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, share: float):
    path = save(tmp_path / name, two_episodes())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match="incomplete or damaged"):
        read(path)


def test_a_damaged_npz_member_is_named(tmp_path: Path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **two_episodes())
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)  # within observations, the first member
    path.write_bytes(content)
    with pytest.raises(UserError, match="observations is incomplete or damaged"):
        read(path)


def test_a_damaged_hdf5_chunk_is_named(tmp_path: Path):
    import h5py

    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in two_episodes().items():
            file.create_dataset(key, data=array, compression="gzip")
        place = file["rewards"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(UserError, match="rewards is incomplete or damaged"):
        read(path)


def test_a_pickled_npz_is_never_loaded(tmp_path: Path):
    arrays = two_episodes()
    arrays["rewards"] = np.array([{"a": 1}] * 1003, dtype=object)
    with pytest.raises(UserError, match="rewards holds pickled Python objects"):
        read(save(tmp_path / "a.npz", arrays))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (b"<html>404", "unlike an HDF5 or NPZ file"),
        (b"PK\x03\x04", "damaged"),
    ],
)
def test_a_file_that_is_not_a_data_file_is_refused(tmp_path: Path, content: bytes, sentence: str):
    path = tmp_path / "a.hdf5"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read(path)


def test_a_missing_path_and_a_folder_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "missing.hdf5")
    with pytest.raises(UserError, match="a folder"):
        read(tmp_path)


PUBLISHED = [  # file, rows, episodes, terminated, mean return
    ("DMSD/DMSD-high-100000-train.npz", 100_000, 1000, 0, 494.453),
    ("Fusion/Fusion-high-20000-val.npz", 20_000, 200, 0, -5.597),
    ("RandomFrictionHopper/RandomFrictionHopper-high-20000-val.npz", 20_047, 218, 218, 114.157),
    ("RocketRecovery/RocketRecovery-high-20000-val.npz", 20_077, 146, 146, 94.624),
    ("SafetyHalfCheetah/SafetyHalfCheetah-high-100000-train.npz", 18_000, 18, 0, 1769.308),
    ("Simglucose/Simglucose-high-100000-train.npz", 100_257, 280, 111, 353.452),
    ("Simglucose/Simglucose-high-20000-val.npz", 20_018, 62, 30, 316.160),
]


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: Path(file[0]).stem)
def test_published_neorl2_files_have_their_known_contents(data_dir: Path, file):
    name, rows, episodes, terminated, mean_return = file
    path = data_dir / "neorl2" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    data = read(path)
    summary = data.summary()
    assert (summary.rows, summary.episodes, summary.terminated) == (rows, episodes, terminated)
    assert summary.return_mean == pytest.approx(mean_return, abs=5e-4)
    assert data.usable.all()
    assert len(data.observations) == rows + episodes  # next observations inside are the next rows


def test_actions_can_be_scaled_to_their_range_in_the_data(tmp_path: Path) -> None:
    """The minimum of each action becomes -1 and its maximum 1; a constant becomes 0."""
    actions = np.array([[2.0, 5, 7], [4, -5, 7], [3, 0, 7]])
    arrays = {"observations": np.arange(6.0).reshape(3, 2), "actions": actions}
    np.savez(tmp_path / "a.npz", rewards=np.arange(3.0), terminals=[0, 0, 1], **arrays)
    data = read(tmp_path / "a.npz", action_range="data")
    assert data.actions.tolist() == [[-1, 1, 0], [1, -1, 0], [0, 0, 0]]
    assert "-1 and 1 stand for the actions [2.0, -5.0, 6.0] and [4.0, 5.0, 8.0]" in data.notes

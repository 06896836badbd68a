"""Tests of OGBench's NPZ layout, where a trajectory's last row is a state and not a step."""

from pathlib import Path

import numpy as np
import pytest
from d4rl_files import save

from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

Arrays = dict[str, np.ndarray]
STATES = [4, 2, 6]  # of each trajectory; one step fewer


def trajectories() -> Arrays:
    rng = np.random.default_rng(0)
    rows = sum(STATES)
    return {
        "observations": rng.normal(size=(rows, 5)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "terminals": np.isin(np.arange(rows), np.cumsum(STATES) - 1),
        "qpos": rng.normal(size=(rows, 3)),
        "qvel": rng.normal(size=(rows, 2)),
    }


def steps(arrays: Arrays) -> list[tuple[int, bool]]:
    """Return the rows that are steps, and whether each is its trajectory's last one."""
    step_rows, start = [], 0
    for states in STATES:
        step_rows += [(start + step, step == states - 2) for step in range(states - 1)]
        start += states
    return step_rows


def test_every_step_is_a_transition_and_final_states_are_not(tmp_path: Path):
    arrays = trajectories()
    data = read(save(tmp_path / "antmaze-large-navigate-v0.npz", arrays))
    rows = [row for row, _ in steps(arrays)]
    np.testing.assert_array_equal(data.observations[: data.num_rows], arrays["observations"][rows])
    following = [row + 1 for row in rows]
    np.testing.assert_array_equal(data.next_observations, arrays["observations"][following])
    np.testing.assert_array_equal(data.actions, arrays["actions"][rows])
    assert data.truncated.tolist() == [last for _, last in steps(arrays)]
    assert not data.terminated.any()
    assert not data.rewards.any()
    assert not data.has_rewards
    assert not data.extras
    assert any(note.startswith("read as OGBench: the last row of each") for note in data.notes)


def test_simulator_states_are_kept_on_request(tmp_path: Path):
    arrays = trajectories()
    data = read(save(tmp_path / "a.npz", arrays), infos=True)
    rows = [row for row, _ in steps(arrays)]
    np.testing.assert_array_equal(data.extras["infos/qpos"], arrays["qpos"][rows])


def test_the_validation_file_is_a_file_like_the_other(tmp_path: Path):
    arrays = trajectories()
    arrays["terminals"] = arrays["terminals"].astype(np.float32)
    assert read(save(tmp_path / "a-v0-val.npz", arrays)).num_episodes == 3


def test_images_stay_uint8(tmp_path: Path):
    arrays = trajectories()
    images = np.random.default_rng(1).integers(0, 256, (sum(STATES), 8, 8, 3), dtype=np.uint8)
    arrays["observations"] = images
    data = read(save(tmp_path / "visual.npz", arrays))
    assert data.observations.dtype == np.uint8
    np.testing.assert_array_equal(data.next_observations[0], images[1])


def changed(key: str, array: np.ndarray) -> Arrays:
    return trajectories() | {key: array}


def nan_in_observations() -> np.ndarray:
    observations = trajectories()["observations"]
    observations[6] = np.nan  # the first state of the third trajectory: the fifth step
    return observations


BAD = {
    "cut": (
        {key: array[:-2] for key, array in trajectories().items()},
        "terminals does not mark the last of 10 rows",
    ),
    "rows": (changed("actions", np.zeros((11, 2))), "actions has 11 rows, but 12 are expected"),
    "NaN": (changed("observations", nan_in_observations()), "observations has nan first in row 4"),
    "range": (changed("actions", np.full((12, 2), 3.0)), "they must lie in"),
    "pickled": (
        changed("actions", np.array([{}] * 12, dtype=object)),
        "actions holds pickled Python objects",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_sentence_that_names_it(tmp_path: Path, case: str):
    arrays, sentence = BAD[case]
    path = save(tmp_path / "bad.npz", arrays)
    with pytest.raises(UserError, match=sentence) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert [p.severity for p in validate(path)] == ["error"]


def test_demonstrations_without_rewards_are_not_recognized_as_this_layout(tmp_path: Path):
    arrays = trajectories()
    del arrays["qvel"]  # positions alone do not tell the layout either
    path = save(tmp_path / "a.npz", arrays)
    with pytest.raises(UserError, match=r"Add format=plain .* Add format=ogbench if the last row"):
        read(path)
    plain, ogbench = read(path, format="plain"), read(path, format="ogbench")
    np.testing.assert_array_equal(plain.actions, arrays["actions"])
    assert plain.episode_lengths().tolist() == STATES
    assert not plain.has_rewards
    assert ogbench.episode_lengths().tolist() == [states - 1 for states in STATES]


def test_a_file_with_rewards_is_another_layout(tmp_path: Path):
    arrays = trajectories()
    del arrays["qpos"], arrays["qvel"]
    data = read(save(tmp_path / "a.npz", arrays | {"rewards": np.zeros(sum(STATES))}))
    assert data.num_rows == sum(STATES)
    assert data.terminated.sum() == len(STATES)


def test_timeouts_without_rewards_are_a_mistake_and_not_this_layout(tmp_path: Path):
    arrays = trajectories() | {"timeouts": np.zeros(sum(STATES), bool)}
    with pytest.raises(UserError, match="no array 'rewards' or 'reward'"):
        read(save(tmp_path / "a.npz", arrays))


@pytest.mark.parametrize("renamed", [{}, {"terminals": "dones"}])
@pytest.mark.parametrize("more", ["next_observations", "timeouts"])
def test_files_that_only_plain_reads_get_a_hint_to_plain_alone(
    tmp_path: Path, more: str, renamed: dict
):
    """OGBench's files have no next observations and no time-outs."""
    original, rows = trajectories(), sum(STATES)
    arrays = {renamed.get(k, k): original[k] for k in ("observations", "actions", "terminals")}
    arrays |= {more: original["observations"] if more[0] == "n" else np.zeros(rows, bool)}
    with pytest.raises(UserError, match="Add format=plain if every row is a step") as caught:
        read(save(tmp_path / "a.npz", arrays))
    assert "ogbench" not in str(caught.value)
    if not renamed:
        data = read(tmp_path / "a.npz", format="plain")
        assert (data.num_rows, data.has_rewards) == (rows, False)

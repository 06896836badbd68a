"""Tests of OGBench's NPZ layout, where a trajectory's last row is a state and not a step."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from d4rl_files import save

import envs
from envs.suites.ogbench import Goal, goal_of
from offline_rl.data.convert import convert
from offline_rl.data.load import load
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.runs.run import runs_of
from offline_rl.training.prepare import read_data
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


TASK = "ogbench/scene-singletask-task3-v0"


def two_parts(**other: Any) -> Goal:
    """Return a goal of two positions and two buttons."""
    values: dict[str, Any] = {
        "env_id": TASK.removeprefix("ogbench/"),
        "observation_dim": 5,
        "qpos_dim": 3,
        "parts": (((0, 1), np.array([0.5, -0.5])), ((2,), np.array([0.3]))),
        "tolerance_m": 1.0,
        "buttons": np.array([0, 1]),
        "is_sparse": False,
    }
    return Goal(**values | other)


def pressed() -> Arrays:
    """Return trajectories with states of two buttons; row 1 of each one solves the task."""
    arrays = trajectories()
    arrays["button_states"] = np.random.default_rng(3).integers(0, 2, (sum(STATES), 2))
    for first in np.cumsum([0, *STATES[:-1]]):
        row = first + (1 if first != 4 else 0)  # the second trajectory has a single step
        arrays["qpos"][row] = [0.4, -0.4, 0.2]
        arrays["button_states"][row] = [0, 1]
    return arrays


@pytest.fixture
def goal(monkeypatch: pytest.MonkeyPatch) -> list[Goal]:
    """Return a list that holds the goal of every task. No library is needed."""
    goals = [two_parts()]
    monkeypatch.setattr("envs.suites.ogbench.goal_of", lambda task: goals[0])
    return goals


def by_hand(arrays: Arrays, row: int) -> tuple[float, bool]:
    """Return reward and success of a row, from its own state."""
    qpos, buttons = arrays["qpos"][row], arrays["button_states"][row]
    solved = [
        ((qpos[0] - 0.5) ** 2 + (qpos[1] + 0.5) ** 2) ** 0.5 <= 1.0,
        abs(qpos[2] - 0.3) <= 1.0,
        buttons[0] == 0,
        buttons[1] == 1,
    ]
    return float(sum(solved) - 4), all(solved)


def test_rewards_are_minus_the_unsolved_parts_of_the_rows_own_state(tmp_path: Path, goal):
    arrays = pressed()
    path = save(tmp_path / "scene-play-v0.npz", arrays)
    data = load(path, reward_task=TASK)
    expected = [by_hand(arrays, row) for row, _ in steps(arrays)]
    assert data.rewards.tolist() == [reward for reward, _ in expected]
    assert data.terminated.tolist() == [solved for _, solved in expected]
    assert data.terminated.sum() == len(STATES)
    assert len({*data.rewards.tolist()}) > 2
    assert data.has_rewards
    assert not data.extras
    assert data.notes[-1].startswith(f"rewards and terminations are those of {goal[0].env_id}")
    assert {*load(path, reward_task=TASK, infos=True).extras} == {
        "infos/qpos",
        "infos/qvel",
        "infos/button_states",
    }


def test_recordings_go_on_after_a_solved_row(tmp_path: Path, goal):
    arrays = pressed()
    data = load(save(tmp_path / "scene-play-v0.npz", arrays), reward_task=TASK)
    plain = read(tmp_path / "scene-play-v0.npz")
    assert data.episode_lengths().tolist() == plain.episode_lengths().tolist() == [3, 1, 5]
    np.testing.assert_array_equal(data.next_observations, plain.next_observations)
    assert not (data.terminated & data.truncated).any()
    assert data.continues is not None
    # the second trajectory has one step, which is solved: it ends there
    assert np.flatnonzero(data.terminated).tolist() == [1, 3, 5]
    assert np.flatnonzero(data.continues).tolist() == [1, 5]
    assert data.is_last.tolist() == [last for _, last in steps(arrays)]
    assert not any("limit" in note for note in data.notes)


def test_sparse_rewards_are_minus_one_unless_all_parts_are_solved(tmp_path: Path, goal):
    path = save(tmp_path / "a.npz", pressed())
    full = load(path, reward_task=TASK)
    goal[0] = two_parts(is_sparse=True)
    sparse = load(path, reward_task=TASK)
    assert sparse.rewards.tolist() == np.where(full.rewards == 0, 0, -1).tolist()
    assert sparse.terminated.tolist() == full.terminated.tolist()


def test_a_large_file_is_relabeled_block_by_block(tmp_path: Path, goal, monkeypatch):
    path = save(tmp_path / "a.npz", pressed())
    whole = load(path, reward_task=TASK)
    monkeypatch.setattr("offline_rl.data.formats.ogbench.BLOCK_ROWS", 2)
    assert load(path, reward_task=TASK).rewards.tolist() == whole.rewards.tolist()


REFUSED = {
    "qpos": "has no qpos, from which the rewards of scene-singletask-task3-v0 are computed",
    "button_states": "has no button_states, from which the rewards",
    "another task": r"has observations \[5\] and qpos \[3\], but scene-.* has \[6\] and \[3\]: "
    "the data belongs to another task",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_does_not_fit_the_task_is_refused(tmp_path: Path, goal, case: str):
    arrays = pressed()
    if case == "another task":
        goal[0] = two_parts(observation_dim=6)
    else:
        del arrays[case]
    path = save(tmp_path / "a.npz", arrays)
    with pytest.raises(UserError, match=REFUSED[case]) as caught:
        load(path, reward_task=TASK, format="ogbench")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_of_another_layout_keeps_its_rewards(tmp_path: Path, goal):
    arrays = trajectories()
    del arrays["qpos"], arrays["qvel"]
    rewards = np.arange(sum(STATES), dtype=np.float32)
    data = load(save(tmp_path / "a.npz", arrays | {"rewards": rewards}), reward_task=TASK)
    np.testing.assert_array_equal(data.rewards, rewards)


def test_relabeled_data_cannot_be_converted(tmp_path: Path, goal):
    path = save(tmp_path / "a.npz", pressed())
    with pytest.raises(UserError, match=r"2 rows terminate while .* no layout can store"):
        convert(path, tmp_path / "b.hdf5", reward_task=TASK)


def test_without_the_library_a_single_task_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    goal_of.cache_clear()
    with pytest.raises(UserError, match=r"needs ogbench .* extra \[ogbench\]") as caught:
        load(save(tmp_path / "a.npz", pressed()), reward_task=TASK)
    assert "\n" not in str(caught.value)


def test_a_card_of_shards_is_loaded_as_one_data_set_with_the_rewards_of_its_task(
    tmp_path: Path, goal, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = "ogbench/scene-play-100m-singletask-task3-v0"
    card = envs.card(name)
    file = replace(card.files["train"], num_shards=2)
    card = replace(card, files={"train": file})
    (tmp_path / "ogbench").mkdir()
    first, second = (tmp_path / "ogbench" / f"scene-play-v0-{n:03d}.npz" for n in range(2))
    save(first, pressed())
    with pytest.raises(UserError, match=r"scene-play-v0-001.npz is not in .* data download"):
        load(card, tmp_path)
    save(second, pressed())
    data, one = load(card, tmp_path), load(first, reward_task=card.env)
    assert data.num_rows == 2 * one.num_rows
    assert data.episode_lengths().tolist() == one.episode_lengths().tolist() * 2
    np.testing.assert_array_equal(data.rewards, np.tile(one.rewards, 2))
    np.testing.assert_array_equal(data.next_observations, np.tile(one.next_observations, (2, 1)))
    assert goal[0].env_id in data.notes[-1]


def test_a_file_gets_the_rewards_of_the_runs_task(tmp_path: Path, goal):
    path = str(save(tmp_path / "mine.npz", pressed()))
    keys = {"algorithm": "iql", "dataset": path}
    (run,) = runs_of({**keys, "task": "ogbench/scene-play-singletask-task3-v0"})
    assert read_data(path, run).terminated.sum() == len(STATES)
    (run,) = runs_of({**keys, "task": "none"})
    data = read_data(path, run)
    assert not data.has_rewards
    assert not data.extras

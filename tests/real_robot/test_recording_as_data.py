"""Recordings as data sets: measurements and commands, with names and units."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robots_in_memory import spec

from offline_rl.algorithms.bc import BC
from offline_rl.data.convert import convert
from offline_rl.data.read import read
from offline_rl.replay.buffer import ReplayBuffer, rows_around
from offline_rl.training.sources import rows_for
from offline_rl.utils.errors import UserError
from real_robot.control.rings import Ring
from real_robot.recording.writer import Writer, metadata_of
from real_robot.robot import Channel, RobotSpec
from real_robot.rows import Mode, row_type

ROBOT: RobotSpec = replace(spec(), channels={"puck": Channel((2,), "m")})
NAMES = ("shoulder.q", "elbow.q", "shoulder.dq", "elbow.dq", "puck.x", "puck.y")
UNITS = ("rad", "rad", "rad/s", "rad/s", "m", "m")


def recorded(
    path: Path,
    episodes: list[int],
    change: Any = lambda row, k: None,
    robot: RobotSpec = ROBOT,
) -> np.ndarray:
    """Write a recording with a row per mode; 0: no source of motion. Return the rows."""
    ring, rng, rows = (
        Ring.create(path.parent / "ring", row_type(robot), 64),
        np.random.default_rng(0),
        [],
    )
    writer = Writer(ring, path, metadata_of(robot, 50.0))
    for k, episode in enumerate(episodes):
        row = ring.record
        row["tick"], row["episode"], row["mode"] = k, episode, Mode.POLICY if episode else 0
        row["code"], row["current_a"] = 0, np.nan
        for name in ("q", "dq", "sent", "channel.puck"):
            row[name] = rng.uniform(-1, 1, 2)
        change(row, k)
        rows.append(row.copy())
        ring.push()
    writer.close()
    return np.array(rows)


def test_a_recording_is_read_with_names_units_rate_and_its_episodes(tmp_path: Path) -> None:
    rows = recorded(tmp_path / "a.rec", [0, 0, 1, 1, 1, 0, 2, 2])
    data = read(tmp_path / "a.rec")
    moved = rows[[2, 3, 4, 6, 7]]
    assert data.spec is not None
    assert (data.spec.observation_names, data.spec.observation_units) == (NAMES, UNITS)
    assert (data.spec.action_names, data.spec.action_units) == (("shoulder", "elbow"), ("rad",) * 2)
    assert (data.spec.action_low, data.spec.action_high) == ((-2.0, -2.0), (2.0, 2.0))
    assert (data.spec.rate_hz, data.spec.action_offset) == (50.0, 0.0)
    seen = np.concatenate([moved[name] for name in ("q", "dq", "channel.puck")], 1)
    np.testing.assert_allclose(data.observations[:5], seen, rtol=1e-6)
    np.testing.assert_allclose(2 * data.actions, moved["sent"], rtol=1e-6)
    assert data.truncated.tolist() == [False, False, True, False, True]
    assert "current_a" in " ".join(data.notes)


@pytest.mark.parametrize(("form", "name"), [("lerobot", "folder"), ("d4rl", "file.hdf5")])
def test_a_recording_is_converted_and_read_again_as_the_same(
    tmp_path: Path, form: Any, name: str
) -> None:
    recorded(tmp_path / "a.rec", [0, 1, 1, 1, 2, 2])
    told = convert(tmp_path / "a.rec", tmp_path / name, format=form)
    assert "5 rows, 2 episodes" in told
    assert "shoulder -2 to 2 rad" in told
    data, again = read(tmp_path / "a.rec"), read(tmp_path / name)
    np.testing.assert_array_equal(again.observations[:5], data.observations[:5])
    np.testing.assert_array_equal(again.actions, data.actions)
    np.testing.assert_array_equal(again.truncated, data.truncated)
    if form == "lerobot":
        assert again.spec is not None
        assert again.spec.observation_names == NAMES
        assert (again.spec.action_names, again.spec.rate_hz) == (("shoulder", "elbow"), 50.0)


def failing(*failed: int, guided: bool = False) -> Any:
    def change(row: Any, k: int) -> None:
        row["code"] = k in failed
        row["sent"] = np.nan if guided else row["sent"]

    return change


def test_costs_are_those_of_the_next_tick_and_no_observation(tmp_path: Path) -> None:
    """The cost of tick k is k. Tick 4 has no reading, and the recording ends with tick 7."""
    robot = replace(ROBOT, channels={**ROBOT.channels, "cost": Channel((), "1")})

    def change(row: Any, k: int) -> None:
        row["channel.cost"], row["code"] = k, k == 4

    recorded(tmp_path / "a.rec", [0, 1, 1, 1, 1, 1, 0, 2], change, robot)
    data = read(tmp_path / "a.rec")
    assert data.spec is not None
    assert data.spec.observation_names == NAMES
    assert data.extras["costs"].tolist() == [2, 3, 3, 6, 7]
    assert data.episode_costs().tolist() == [14, 7]
    seen = read(tmp_path / "a.rec", observation_keys=["q", "channel.cost"])
    assert seen.observations[:5, -1].tolist() == [1, 2, 3, 5, 7]
    assert "costs" not in seen.extras


def test_an_episode_is_cut_where_a_tick_is_missing(tmp_path: Path) -> None:
    def change(row: Any, k: int) -> None:
        row["tick"] = k + (k > 2)

    recorded(tmp_path / "a.rec", [1] * 9, change)
    assert read(tmp_path / "a.rec").episode_lengths().tolist() == [3, 6]


def test_one_or_two_failed_readings_do_not_end_an_episode(
    tmp_path: Path,
) -> None:
    """Ticks 3, 6 and 7 have no reading, so rows 2 and 5 have no successor."""
    rows = recorded(tmp_path / "a.rec", [1] * 10, failing(3, 6, 7))
    data = read(tmp_path / "a.rec")
    assert data.episode_lengths().tolist() == [7]
    np.testing.assert_allclose(2 * data.actions, rows["sent"][[0, 1, 2, 4, 5, 8, 9]], rtol=1e-6)
    assert data.usable.tolist() == [True, True, False, True, False, True, False]
    assert "3 ticks left out" in " ".join(data.notes)
    assert "2 gaps of at most 2 ticks do not end an episode" in " ".join(data.notes)


def test_three_failed_readings_or_a_tick_that_moved_nothing_end_an_episode(tmp_path: Path) -> None:
    recorded(tmp_path / "a.rec", [1] * 9, failing(3, 4, 5))
    assert read(tmp_path / "a.rec").episode_lengths().tolist() == [3, 3]

    def rests(row: Any, k: int) -> None:
        row["mode"] = Mode.POLICY if k != 3 else 0

    recorded(tmp_path / "b.rec", [1] * 9, rests)
    assert read(tmp_path / "b.rec").episode_lengths().tolist() == [3, 5]


def test_action_chunks_for_imitation_continue_after_a_gap(tmp_path: Path) -> None:
    recorded(tmp_path / "a.rec", [1] * 8, failing(3))
    buffer = ReplayBuffer.from_dataset(rows_for(BC, read(tmp_path / "a.rec")))
    data = {name: value[0] for name, value in buffer.data.items()}
    future, inside = rows_around(data, torch.tensor([1]), 0, 3)
    assert inside.all()
    assert future.tolist() == [[1, 2, 3, 4]]


def test_a_gap_ends_an_episode_in_a_layout_that_cannot_store_gaps(tmp_path: Path) -> None:
    recorded(tmp_path / "a.rec", [1] * 8, failing(3))
    told = convert(tmp_path / "a.rec", tmp_path / "folder", format="lerobot")
    assert "7 rows, 2 episodes" in told
    assert "1 gaps end an episode" in told
    assert read(tmp_path / "folder").episode_lengths().tolist() == [3, 4]


def test_guided_by_hand_the_step_before_a_gap_has_no_action_and_is_left_out(
    tmp_path: Path,
) -> None:
    """An action is the position of the next tick; tick 3 has none for tick 2."""
    rows = recorded(tmp_path / "a.rec", [0] * 8, failing(3, guided=True))
    data = read(tmp_path / "a.rec")
    np.testing.assert_allclose(2 * data.actions, rows["q"][[1, 2, 5, 6, 7, 7]], rtol=1e-6)
    assert data.episode_lengths().tolist() == [6]
    assert data.usable.tolist() == [True, False, True, True, True, False]


def test_actions_of_a_guided_arm_are_the_positions_that_it_reached(tmp_path: Path) -> None:
    def change(row: Any, k: int) -> None:
        row["sent"] = np.nan

    rows = recorded(tmp_path / "a.rec", [0] * 4, change)
    data = read(tmp_path / "a.rec")
    np.testing.assert_allclose(2 * data.actions, rows["q"][[1, 2, 3, 3]], rtol=1e-6)
    assert data.spec is not None
    assert data.spec.action_offset == 1.0


def test_a_recording_without_motion_is_refused_and_a_truncated_one_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.rec"
    recorded(path, [1])
    with pytest.raises(UserError, match="fewer than two ticks"):
        read(path)
    path.unlink()
    recorded(path, [1, 1, 1])
    with path.open("ab") as file:
        file.write(b"PIECE")
    assert "damaged or incomplete" in " ".join(read(path).notes)

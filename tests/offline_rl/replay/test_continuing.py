"""Tests of rows that terminate while their episode goes on, as in OGBench's recordings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, Sequences
from offline_rl.replay.streaming import Stream
from offline_rl.utils.random import Random

GAMMA = 0.9
LENGTHS = (8, 5)
SOLVED = np.isin(np.arange(sum(LENGTHS)), [2, 3, 6, 12])  # row 12 is the last one of its episode


def data() -> Dataset:
    """Return two recordings; the task is solved in four rows, and the recordings go on."""
    rng, rows = np.random.default_rng(0), np.arange(len(SOLVED))
    last = np.isin(rows, np.cumsum(LENGTHS) - 1)
    base = Dataset.from_arrays(
        rows[:, None],
        rng.uniform(-1, 1, (len(rows), 2)),
        rng.normal(size=len(rows)),
        np.zeros(len(rows), bool),
        last,
        final_observations=np.array([[100.0], [200.0]]),
    )
    return replace(base, terminated=SOLVED, truncated=last & ~SOLVED, continues=SOLVED & ~last)


def sample(source: Source, size: int = 500) -> Batch:
    tensors = {name: values[0] for name, values in source.tensors().items()}
    return source.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), size, GAMMA)


def rows_of(start: int, count: int) -> range:
    """Return up to `count` rows of the recording of row `start`, from `start` on."""
    end = next(end for end in np.cumsum(LENGTHS) if start < end)
    return range(start, min(start + count, int(end)))


def next_of(row: int) -> float:
    return {7: 100.0, 12: 200.0}.get(row, row + 1.0)


def test_an_episode_ends_at_the_end_of_its_recording():
    assert data().episode_lengths().tolist() == [*LENGTHS]
    assert data().summary().terminated == 1
    assert data().summary().truncated == 1


def test_a_solved_row_has_discount_zero_and_the_rows_after_it_do_not():
    for source in (ReplayBuffer.from_dataset(data()), stream()):
        batch = sample(source)
        row = batch.observations[:, 0].long().numpy()
        expected = np.where(SOLVED[row], 0, GAMMA)
        np.testing.assert_allclose(batch.discount, expected, rtol=1e-6)
        np.testing.assert_array_equal(batch.next_observations[:, 0], [next_of(r) for r in row])


def stream() -> Stream:
    return Stream(data(), [0], 500, normalize=lambda x: x, columns={})


def until_solved(start: int, count: int) -> range:
    """Return up to `count` rows of the recording, and none after a solved one."""
    rows = rows_of(start, count)
    solved = [row for row in rows if SOLVED[row]]
    return range(start, solved[0] + 1) if solved else rows


@pytest.mark.parametrize("partial", ["bootstrap", "drop"])
def test_chunks_go_on_after_a_solved_row_and_do_not_bootstrap_over_it(partial: Any):
    """The sums for "drop" are those of QC's sample_sequence: they include the rows after it."""
    source = ReplayBuffer.from_dataset(data())
    keys: dict[str, Any] = {"chunk_start": "present", "partial": partial}
    batch = sample(Chunks(source, n_obs_steps=2, horizon=3, n_action_steps=3, **keys))
    present = batch.observations[:, -1, 0].long().tolist()
    assert set(present) == set(range(len(SOLVED)))
    for k, row in enumerate(present):
        rows = rows_of(row, 3)
        summed = rows if partial == "drop" else until_solved(row, 3)
        reward = sum(GAMMA**j * float(data().rewards[r]) for j, r in enumerate(summed))
        mask = min(1 - int(SOLVED[r]) for r in rows)
        np.testing.assert_allclose(batch.rewards[k], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[k], GAMMA ** len(rows) * mask, rtol=1e-5)
        np.testing.assert_array_equal(batch.actions[k, : len(rows)], data().actions[[*rows]])
        assert batch.valid is not None
        assert batch.valid[k].tolist() == [j < len(rows) for j in range(3)]
        assert batch.next_observations[k, -1, 0] == next_of(summed[-1])
        first_row = {0: 0, 8: 8}.get(row, row - 1)  # a history goes back over a solved row
        assert batch.observations[k, 0, 0] == first_row


def test_n_step_transitions_stop_at_a_solved_row():
    batch = sample(ReplayBuffer.from_dataset(data()).with_n_step(3))
    for k, row in enumerate(batch.observations[:, 0].long().tolist()):
        rows = until_solved(row, 3)
        mask = 1 - int(SOLVED[rows[-1]])
        reward = sum(GAMMA**j * float(data().rewards[r]) for j, r in enumerate(rows))
        np.testing.assert_allclose(batch.rewards[k], reward, rtol=1e-5, atol=1e-6)
        assert batch.bootstrap_mask[k] == mask
        np.testing.assert_allclose(batch.discount[k], GAMMA ** len(rows) * mask, rtol=1e-5)


def test_sequences_go_on_with_a_mask_per_row():
    batch = sample(Sequences(ReplayBuffer.from_dataset(data()), 4))
    rows = batch.observations[..., 0].long().numpy()
    assert batch.valid is not None
    lengths = [len(rows_of(int(row), 4)) for row in rows[:, 0]]
    assert batch.valid.sum(1).tolist() == lengths
    np.testing.assert_array_equal(batch.bootstrap_mask, 1 - SOLVED[rows])


def test_monte_carlo_returns_end_at_a_solved_row():
    expected = np.zeros(len(SOLVED))
    for row in reversed(range(len(SOLVED))):
        is_last = row in np.cumsum(LENGTHS) - 1
        after = 0.0 if SOLVED[row] or is_last else expected[row + 1]
        expected[row] = data().rewards[row] + GAMMA * after
    np.testing.assert_allclose(data().monte_carlo_returns(GAMMA), expected, rtol=1e-5)


def test_a_selection_ends_an_episode_where_rows_are_left_out():
    part = data().take(np.array([0, 1, 2, 5, 6, 7]))
    assert part.episode_lengths().tolist() == [3, 3]
    assert part.terminated.tolist() == [False, False, True, False, True, False]
    assert part.select([1]).episode_lengths().tolist() == [3]
    assert data().checksum() != replace(data(), continues=None).checksum()

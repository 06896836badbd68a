"""Tests of a replay buffer that holds one part of the data at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, WeightedSequences
from offline_rl.replay.streaming import Rotation, spans_of
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.random import Random

LENGTHS = [7, 5, 9, 4, 6, 20, 3]


def dataset() -> Dataset:
    """Return episodes whose observations are the row's number; next observations add 0.5."""
    ends = np.cumsum(LENGTHS) - 1
    rows = np.arange(sum(LENGTHS))
    last = np.isin(rows, ends)
    following = np.where(last, rows + 0.5, rows + 1)
    return Dataset.from_arrays(
        rows[:, None],
        np.zeros((len(rows), 1)),
        rows,
        last & (rows % 2 == 0),
        last & (rows % 2 == 1),
        following[:, None],
    )


def rotation(data: Dataset, **keys: Any) -> Rotation:
    return Rotation(data, prepare=lambda part: (part, {}), rows=12, updates=10, **keys)


def test_parts_are_complete_episodes_of_at_most_the_given_rows_or_one_longer_episode():
    assert spans_of(dataset(), 12) == [(0, 12), (12, 21), (21, 31), (31, 51), (51, 54)]
    assert spans_of(dataset(), 1000) == [(0, 54)]
    assert spans_of(dataset(), 1)[2] == (12, 21)


def test_a_span_holds_the_same_transitions_as_the_data():
    data = dataset()
    for start, stop in spans_of(data, 12):
        part = data.span(start, stop)
        np.testing.assert_array_equal(part.rewards, np.arange(start, stop))
        np.testing.assert_array_equal(part.next_observations, data.next_observations[start:stop])
        np.testing.assert_array_equal(part.is_last, data.is_last[start:stop])


def test_every_part_is_sampled_in_its_turn_and_no_row_of_another_one():
    data = dataset()
    source = rotation(data)
    chunks = Chunks(source, n_obs_steps=2, horizon=3, n_action_steps=3, chunk_start="present")
    address = {name: values.data_ptr() for name, values in source.tensors().items()}
    spans = spans_of(data, 12)
    for update in (0, 9, 10, 25, 39, 41, 50, 5):
        chunks.prefetch(update)
        start, stop = spans[update // 10 % len(spans)]
        tensors = {name: values[0] for name, values in chunks.tensors().items()}
        random = Random(torch.tensor(1), torch.tensor(update))
        batch = chunks.sample(tensors, random, 400, 1.0)
        present = batch.observations[:, -1, 0]
        assert sorted({int(row) for row in present}) == list(range(start, stop))
        # with discount 1, a chunk of m rows from row t has the reward t + ... + (t + m - 1)
        count = batch.valid.sum(1)
        torch.testing.assert_close(batch.rewards, present * count + count * (count - 1) / 2)
        last = (present + count - 1).long()
        expected = data.next_observations[last.numpy(), 0]
        np.testing.assert_array_equal(batch.next_observations[:, -1, 0], expected)
    assert address == {name: values.data_ptr() for name, values in source.tensors().items()}
    source.close()


def test_an_algorithm_of_chunks_learns_from_data_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "free_memory", lambda device: 1000)
    parts: list[int] = []
    prefetch = Rotation.prefetch
    monkeypatch.setattr(
        Rotation, "prefetch", lambda self, *at: (parts.append(at[0]), prefetch(self, *at))
    )
    keys: dict[str, Any] = {"algorithm.horizon": 4, "algorithm.n_action_steps": 2}
    train(
        algorithm="bc",
        task="none",
        dataset=dataset(),
        num_updates=20,
        out=str(tmp_path),
        tracker="none",
        compile="never",
        show=False,
        **keys,
    )
    assert parts


def test_weighted_sequences_follow_the_weights_of_the_current_part():
    """The weight of a row is 0 or its number squared, in data of three parts of 5, 5 and 4 rows."""
    ends, rows = np.isin(np.arange(14), [4, 9, 13]), np.arange(14.0)
    weights = np.where(rows % 3 == 0, 0, rows**2)
    columns = rows[:, None], np.zeros((14, 1)), rows, ends & False, ends, rows[:, None]
    data = Dataset.from_arrays(*columns, extras={"sampling_weights": weights})

    def prepare(part: Dataset) -> tuple[Dataset, dict[str, np.ndarray]]:
        return part, {"sampling_weights": part.extras["sampling_weights"]}

    buffer = Rotation(data, prepare=prepare, rows=5, updates=10)
    source = WeightedSequences(buffer, 2)
    address = source.tensors()["cumulative"].data_ptr()
    for update, part in ((0, rows[:5]), (10, rows[5:10]), (20, rows[10:]), (30, rows[:5])):
        source.prefetch(update)
        assert source.tensors()["cumulative"].data_ptr() == address
        tensors = {name: x[0] for name, x in source.tensors().items()}
        batch = source.sample(tensors, Random(torch.tensor(0), torch.tensor(update)), 20_000, 1.0)
        frequencies = [(batch.rewards[:, 0] == row).double().mean() for row in part]
        expected = weights[part.astype(int)] / weights[part.astype(int)].sum()
        np.testing.assert_allclose(frequencies, expected, atol=0.015)
        assert (batch.valid[:, 1] == (batch.rewards[:, 0] != part[-1])).all()
    source.buffer.close()


def test_weights_of_very_different_sizes_keep_their_ratios():
    """One of a thousand rows has half of the weight, and the others share the rest."""
    count = 1001
    weights = np.append(np.ones(count - 1), count - 1).astype(np.float32)
    zeros = np.zeros((count, 1))
    last = np.arange(count) == count - 1
    data = Dataset.from_arrays(zeros, zeros, np.arange(count), last & False, last, zeros)
    buffer = ReplayBuffer.from_dataset(data, columns={"sampling_weights": weights})
    source = WeightedSequences(buffer, 1)
    tensors = {name: x[0] for name, x in source.tensors().items()}
    batch = source.sample(tensors, Random(torch.tensor(1), torch.tensor(0)), 40_000, 1.0)
    rows = batch.rewards[:, 0].numpy()
    assert (rows == count - 1).mean() == pytest.approx(0.5, abs=0.01)
    others = rows[rows < count - 1]
    assert others.mean() == pytest.approx((count - 2) / 2, abs=8)
    assert len(np.unique(others)) == count - 1

"""Tests of a replay buffer that holds one part of the data at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.chunks import Chunks
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
        Rotation, "prefetch", lambda self, update: (parts.append(update), prefetch(self, update))
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

"""Tests of images that are decoded during training: batches are those of decoded data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot_videos import CAMERAS, with_videos

from offline_rl.data import Dataset
from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.read import read
from offline_rl.replay import paging
from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, Histories
from offline_rl.replay.paging import PagedBuffer
from offline_rl.utils.random import Random, SlicedRandom
from policies import channels

SEEDS = [3, 5]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_videos(tmp_path_factory.mktemp("videos") / "a")


def paged(path: Path, batch: int, **options: Any) -> PagedBuffer:
    data = read(path, observation_keys=CAMERAS, stream="always")
    assert isinstance(data.observations["top"], VideoFrames)
    return PagedBuffer(data, SEEDS, batch, columns=further_columns(data), **options)


def further_columns(data: Dataset) -> dict[str, np.ndarray]:
    return {"mc_returns": data.monte_carlo_returns(0.9)}


def as_chunks(source: Source) -> Source:
    return Chunks(source, n_obs_steps=2, horizon=4, n_action_steps=3)


def as_histories(source: Source) -> Source:
    return Histories(source, 2)


def batch_of(source: Source, size: int, seed: int, update: int, random: Any = Random) -> Batch:
    """Return the batch of a seed and an update, from tensors that all seeds share."""
    tensors = {name: x[0] for name, x in source.tensors().items()}
    return source.sample(tensors, random(torch.tensor(seed), torch.tensor(update)), size, 0.9)


def assert_equal(a: Batch, b: Batch, without: str = "") -> None:
    for name, values in channels.flatten(vars(a)).items():
        other = channels.flatten(vars(b))[name]
        if values is not None and not name.startswith(without or "."):
            assert torch.equal(values, other), name
    assert vars(a).keys() == vars(b).keys()


@pytest.mark.parametrize("view", [as_chunks, as_histories, lambda x: x])
@pytest.mark.parametrize(("size", "block_bytes"), [(1, 0), (6, 400_000)])
def test_batches_are_bit_for_bit_those_of_decoded_data(
    path: Path, monkeypatch: pytest.MonkeyPatch, view: Any, size: int, block_bytes: int
):
    monkeypatch.setattr(paging, "BLOCK_BYTES", block_bytes)
    decoded = read(path, observation_keys=CAMERAS)
    resident = view(ReplayBuffer.from_dataset(decoded, columns=further_columns(decoded)))
    source = paged(path, size)
    streamed = view(source)
    source.allocate([streamed])
    assert (source.ahead > 1) == bool(block_bytes)
    assert (source.size < 10) == (block_bytes == 0)
    address = {name: x.data_ptr() for name, x in streamed.tensors().items()}
    for update in (0, 1, 2, 50, 7, 8):  # in order, forward and back
        streamed.prefetch(update)
        for seed in SEEDS:
            assert_equal(*(batch_of(x, size, seed, update) for x in (resident, streamed)))
    assert address == {name: x.data_ptr() for name, x in streamed.tensors().items()}
    source.close()


def test_imitation_decodes_no_next_observations_and_a_rank_only_its_slice(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(paging, "BLOCK_BYTES", 0)
    decoded = read(path, observation_keys=CAMERAS)
    resident = as_chunks(ReplayBuffer.from_dataset(decoded, columns=further_columns(decoded)))

    def slice_of(seed: torch.Tensor, update: torch.Tensor) -> Random:
        return SlicedRandom(seed, update, 1, 2)

    source = paged(path, 2, reads_next=False, make_random=slice_of)
    streamed = as_chunks(source)
    source.allocate([streamed])
    images = source.tensors()["observations/top"]
    assert images.shape == (1, 2 * 8, 16, 20, 3)  # two halves of 2 seeds * 2 rows * 2 steps
    for update in range(3):
        streamed.prefetch(update)
        for seed in SEEDS:
            both = (batch_of(x, 2, seed, update, slice_of) for x in (resident, streamed))
            assert_equal(*both, without="next_observations")
    source.close()


def test_a_block_holds_complete_periods_and_as_many_as_fit(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An update reads 2 seeds * 1 row * 2 (with the next one) of 2 cameras of 960 bytes."""
    for block_bytes, period, updates in ((0, 2, 2), (8 * 960, 1, 1), (40 * 960, 2, 4)):
        monkeypatch.setattr(paging, "BLOCK_BYTES", block_bytes)
        source = paged(path, 1, period=period)
        source.allocate([source])
        assert source.ahead == updates
        assert len(source.tensors()["observations/top"][0]) == 2 * min(4 * updates, 10)
        source.close()

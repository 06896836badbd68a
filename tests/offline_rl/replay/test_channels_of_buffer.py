"""Tests of named channels in batches: images stay uint8, rows stay together."""

from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, Sequences
from offline_rl.replay.mixtures import Mixture
from offline_rl.replay.streaming import Stream
from offline_rl.utils.random import Random

ROWS = 12
SHAPES = {"image": (2, 2, 3), "state": (1,)}


def numbered_observations(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return observations that encode their number in every channel."""
    images = np.broadcast_to(numbers[:, None, None, None], (len(numbers), 2, 2, 3))
    return {
        "image": images.astype(np.uint8),
        "state": numbers[:, None].astype(np.float32),
    }


def data(start: int = 0) -> Dataset:
    """Return episodes of four rows; row k encodes start + k, a final observation 100 + k."""
    rows = np.arange(ROWS)
    following = np.where(rows % 4 == 3, 100 + rows, start + rows + 1)
    return Dataset.from_arrays(
        numbered_observations(start + rows),
        np.zeros((ROWS, 1)),
        rows.astype(float),
        np.zeros(ROWS, bool),
        rows % 4 == 3,
        numbered_observations(following),
    )


def draw(source: Any, size: int = 64) -> Any:
    tensors = source.tensors()
    one = torch.utils._pytree.tree_map(lambda x: x[0], tensors)
    random = Random(torch.tensor(0), torch.tensor(0))
    return source.sample(one, random, size, 0.9)


def check(batch: Any) -> None:
    """Check that both channels encode the same number, and the next observation its successor."""
    for observations in (batch.observations, batch.next_observations):
        assert list(observations) == ["image", "state"]
        assert observations["image"].dtype == torch.uint8
        assert observations["image"].shape[-3:] == (2, 2, 3)
        shown = observations["image"].flatten(-3).float()
        assert (shown == observations["state"]).all()


def test_a_batch_has_both_channels_of_the_same_rows() -> None:
    batch = draw(ReplayBuffer.from_dataset(data()))
    check(batch)
    now, after = batch.observations["state"][:, 0], batch.next_observations["state"][:, 0]
    expected = torch.where(now % 4 == 3, 100 + now, now + 1)
    torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("ratio", [0.25, None])
def test_a_mixture_keeps_the_channels_of_a_row_together(ratio: float | None) -> None:
    first, second = (ReplayBuffer.from_dataset(data(start)) for start in (0, 50))
    batch = draw(Mixture(first, second, ratio))
    check(batch)
    assert (batch.observations["state"] < 50).any()
    assert (batch.observations["state"] >= 50).any()


def test_sequences_and_chunks_have_every_step_in_every_channel() -> None:
    buffer = ReplayBuffer.from_dataset(data())
    sequences = draw(Sequences(buffer, 3))
    assert sequences.observations["image"].shape == (64, 3, 2, 2, 3)
    check(sequences)
    chunks = draw(Chunks(buffer, n_obs_steps=2, horizon=4, n_action_steps=2))
    assert chunks.observations["image"].shape == (64, 2, 2, 2, 3)
    check(chunks)


def test_a_stream_samples_the_batches_of_the_buffer() -> None:
    stream = Stream(data(), [0], 64, normalize=lambda x: x, columns={})
    streamed, num_bytes = draw(stream), draw(ReplayBuffer.from_dataset(data()))
    for name in SHAPES:
        assert streamed.observations[name].dtype == num_bytes.observations[name].dtype
        torch.testing.assert_close(streamed.observations[name], num_bytes.observations[name])
        torch.testing.assert_close(
            streamed.next_observations[name], num_bytes.next_observations[name]
        )


def test_appended_rows_and_a_checkpoint_keep_images_as_uint8() -> None:
    buffer = ReplayBuffer(SHAPES, 1, 8)
    for k in range(3):
        rows = {
            "observations": numbered_observations(np.array([k])),
            "next_observations": numbered_observations(np.array([k + 1])),
            "actions": np.zeros((1, 1)),
            "rewards": np.array([k]),
            "terminated": np.array([False]),
            "truncated": np.array([k == 2]),
        }
        buffer.append(0, rows)
    stored, other = buffer.stream_state(0), ReplayBuffer(SHAPES, 1, 8)
    assert stored["next_observations/image"].dtype == torch.uint8
    other.load(0, stored)
    for each in (buffer, other):
        check(draw(each))
        newest = each.newest(0, 3)
        assert newest.observations["state"][:3, 0].tolist() == [0, 1, 2]
        assert newest.next_observations["image"][:, 0, 0, 0].tolist() == [1, 2, 3]


def test_a_channel_that_is_missing_from_appended_rows_is_refused() -> None:
    rows = {"observations": {"state": np.zeros((1, 1))}, "rewards": np.zeros(1)}
    with pytest.raises(ValueError, match="observations/image"):
        ReplayBuffer(SHAPES, 1, 8).append(0, rows)


def test_an_image_needs_one_byte_per_number() -> None:
    counted = ReplayBuffer.bytes_for(data())
    tensors = ReplayBuffer.from_dataset(data()).data
    num_bytes = sum(
        x.nbytes for name, x in tensors.items() if name not in ("size", "oldest", "newest")
    )
    assert counted == num_bytes

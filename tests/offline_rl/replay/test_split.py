"""Division of a buffer's rows: holdout, training rows, and bootstrap samples of members."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.split import Split
from offline_rl.utils.random import Random

GAMMA = 0.9


def numbered(count: int, length: int | None = None) -> ReplayBuffer:
    """Return rows whose observations are their numbers, in episodes of `length` steps."""
    t = np.arange(count)
    is_last = t % (length or count) == (length or count) - 1
    observations = t[:, None].astype(np.float32)
    data = Dataset.from_arrays(
        observations,
        0 * observations,
        10.0 * t,
        is_last & (t % 2 == 0),
        is_last & (t % 2 == 1),
        observations + 0.5,
    )
    return ReplayBuffer.from_dataset(data)


def batch_of(split: Split, size: int = 8, *, seed: int = 3, update: int = 0, stream: int = 0):
    tensors: Any = tree_map(lambda x: x[stream], split.tensors())
    random = Random(torch.tensor(seed), torch.tensor(update))
    batch: Batch = split.sample(tensors, random, size, GAMMA)
    return batch


def members_rows(split: Split, **options: int) -> np.ndarray:
    """Return the numbers of the rows that each member got, [members, size]."""
    rows = batch_of(split, **options).observations[:, 0].numpy().astype(int)
    return rows.reshape(split.members, -1)


def rows_of_part(split: Split, stream: int = 0) -> list[int]:
    """Return the numbers of all rows of a part, without padding."""
    batch = batch_of(split, stream=stream)
    assert batch.weights is not None
    assert set(batch.weights.tolist()) <= {0.0, 1.0}
    return batch.observations[batch.weights > 0, 0].int().tolist()


@pytest.mark.parametrize(("rows", "most", "held"), [(403, 1000, 80), (403, 30, 30), (403, 80, 80)])
def test_holdout_and_training_rows_are_a_random_division_of_all_rows(rows, most, held):
    """The holdout has a fifth of the rows, rounded down, and at most `most`."""
    buffer = numbered(rows)
    holdout, rest = (rows_of_part(Split(buffer, p, most=most)) for p in ("holdout", "all_training"))
    assert (len(holdout), len(rest)) == (held, rows - held)
    assert sorted(holdout + rest) == list(range(rows))
    assert 0.35 * rows < np.mean(holdout) < 0.65 * rows  # neither the first rows nor the last


def test_a_batch_of_a_part_has_the_transitions_of_the_buffer():
    batch = batch_of(Split(numbered(40, length=5), "holdout"))
    assert batch.weights is not None
    t = batch.observations[:, 0]
    assert torch.equal(batch.next_observations[:, 0], t + 0.5)
    assert torch.equal(batch.rewards, 10 * t)
    ends = (t % 5 == 4) & (t % 2 == 0)
    torch.testing.assert_close(batch.discount, torch.where(ends, 0.0, GAMMA))


def test_a_member_trains_on_63_percent_of_the_training_rows_always_the_same():
    """A bootstrap sample of n rows has n (1 - 1/e) different rows, +- 0.48 sqrt(n) (std)."""
    rows, members, size = 2_000, 3, 1_500
    split = Split(numbered(rows), "training", members=members, share=0.25, most=9_999)
    batches = [members_rows(split, size=size, update=u) for u in range(12)]  # 12 per row on average
    early, all_rows = (np.concatenate(b, 1) for b in (batches[:6], batches))
    training = set(rows_of_part(Split(split.buffer, "all_training", share=0.25, most=9_999)))
    assert len(training) == size
    different = [set(member.tolist()) for member in all_rows]
    for m in range(members):
        assert different[m] <= training
        assert len(different[m]) / size == pytest.approx(1 - np.exp(-1), abs=0.05)
        assert len(different[m] - set(early[m].tolist())) < 0.01 * size  # no new rows later
        # how often a row is drawn follows its count in the sample, which is Poisson(1) distributed
        count = np.bincount(all_rows[m], minlength=rows)
        assert np.mean(count[[*different[m]]] > 18) == pytest.approx(0.264 / 0.632, abs=0.07)
    assert not np.array_equal(batches[0], batches[1])
    # rows in the samples of two independent members: 0.632 squared
    both = [len(different[a] & different[b]) / size for a, b in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(both, 0.632**2, atol=0.06)


def test_seeds_share_the_holdout_but_have_other_bootstrap_samples():
    split = Split(numbered(500), "training", members=1)

    def sample(seed: int) -> set[int]:
        batches = [members_rows(split, size=400, seed=seed, update=u) for u in range(9)]
        return set(np.concatenate(batches, 1)[0].tolist())

    one, two = sample(3), sample(4)
    assert len(one & two) / 400 == pytest.approx(0.632**2, abs=0.1)
    holdout = rows_of_part(Split(split.buffer, "holdout"))
    assert not (one | two) & set(holdout)


def test_members_draw_from_their_samples_independently():
    """If two entries of a batch are the same row for one member, they differ for the other."""
    rows = members_rows(Split(numbered(2_000), "training", members=2), size=300)
    equal = [(r[:, None] == r) & ~np.eye(300, dtype=bool) for r in rows]
    assert min(e.sum() for e in equal) > 40
    assert (equal[0] & equal[1]).sum() < 10


def test_a_member_gets_the_same_rows_however_many_members_there_are():
    """Members are sampled one after another, each with its own key."""
    buffer = numbered(100)
    few, many = (Split(buffer, "training", members=m) for m in (2, 5))
    assert np.array_equal(members_rows(few), members_rows(many)[:2])


def test_a_holdout_of_episodes_has_complete_episodes():
    buffer = numbered(120, length=6)
    holdout, rest = (
        rows_of_part(Split(buffer, p, by="episodes", share=0.3, most=5))
        for p in ("holdout", "all_training")
    )
    assert sorted(holdout + rest) == list(range(120))
    episodes = {t // 6 for t in holdout}
    assert len(episodes) == 6  # 30 % of 20; `most` limits single rows only
    assert len(holdout) == 36
    assert episodes != set(range(6))
    assert episodes != set(range(14, 20))


def appended(buffer: ReplayBuffer, stream: int, first: int, count: int, length: int = 5) -> None:
    """Append rows with the numbers from `first`, in episodes of `length` steps."""
    t = np.arange(first, first + count, dtype=np.float32)
    is_last = t % length == length - 1
    columns = {"observations": t[:, None], "next_observations": t[:, None] + 0.5}
    columns |= {"actions": t[:, None], "rewards": t, "terminated": is_last, "truncated": 0 * t}
    buffer.append(stream, columns)


def test_the_division_grows_with_each_stream_of_an_online_buffer():
    buffer = ReplayBuffer((1,), 1, 60, streams=2)
    splits = [Split(buffer, part) for part in ("holdout", "all_training")]
    addresses = [x.data_ptr() for split in splits for x in split.data.values()]
    for sizes in ([20, 10], [50, 10], [50, 41]):
        for stream, size in enumerate(sizes):
            appended(buffer, stream, before := int(buffer.sizes[stream]), size - before)
        for split in splits:
            split.prefetch(1)
        for stream, size in enumerate(sizes):
            holdout, rest = (rows_of_part(split, stream) for split in splits)
            assert len(holdout) == size // 5
            assert sorted(holdout + rest) == list(range(size))
    # a compiled program reads the tensors at fixed addresses
    assert addresses == [x.data_ptr() for split in splits for x in split.data.values()]


@pytest.mark.parametrize("by", ["rows", "episodes"])
def test_a_full_ring_is_divided_into_its_newest_rows(by):
    """Episodes have 5 steps, and the first and the last one may be incomplete."""
    buffer = ReplayBuffer((1,), 1, 40)
    splits = [Split(buffer, part, by=by, share=0.5) for part in ("holdout", "all_training")]
    for first, count in ((0, 30), (30, 27), (57, 9)):
        appended(buffer, 0, first, count)
        for split in splits:
            split.prefetch(0)
        holdout, rest = (rows_of_part(split) for split in splits)
        assert sorted(holdout + rest) == list(range(max(0, first + count - 40), first + count))
        if by == "rows":
            assert len(holdout) == min(40, first + count) // 2
        else:
            assert len({t // 5 for t in holdout}) in (3, 4)
            assert not {t // 5 for t in holdout} & {t // 5 for t in rest}


@pytest.mark.parametrize("by", ["rows", "episodes"])
def test_rows_without_a_known_next_observation_are_in_no_part(by: Any):
    """Data without next observations has terminated rows 4, 9, 14, …, which have none."""
    t = np.arange(100)
    s, is_last = t[:, None].astype(np.float32), t % 5 == 4
    buffer = ReplayBuffer.from_dataset(Dataset.from_arrays(s, 0 * s, 1.0 * t, is_last))
    parts = [rows_of_part(Split(buffer, part, by=by)) for part in ("holdout", "all_training")]
    assert sorted(parts[0] + parts[1]) == t[~is_last].tolist()
    assert len(parts[0]) == 16  # a fifth of 80 rows, or four of 20 episodes
    trained = members_rows(Split(buffer, "training", by=by), size=400)
    assert {*trained.flatten().tolist()} <= {*parts[1]}


@pytest.mark.parametrize("by", ["rows", "episodes"])
def test_terminated_rows_without_a_stored_next_observation_are_in_no_part(by):
    """The next observation is unknown. Episodes have 4 steps; every second one terminates."""
    t = np.arange(40)
    is_last = t % 4 == 3
    ends = is_last & (t % 8 == 3)
    x = t[:, None].astype(np.float32)
    data = Dataset.from_arrays(x, 0 * x, 0.0 * t, ends, is_last & ~ends)
    assert data.lacks_next.tolist() == ends.tolist()
    buffer = ReplayBuffer.from_dataset(data)
    parts = [Split(buffer, part, share=0.3, by=by) for part in ("holdout", "all_training")]
    held, rest = map(rows_of_part, parts)
    assert sorted(held + rest) == t[~is_last].tolist()
    training = members_rows(Split(buffer, "training", members=3, share=0.3, by=by), size=200)
    assert {*training.flatten()} <= {*rest}
    stored = Dataset.from_arrays(x, 0 * x, 0.0 * t, ends, is_last & ~ends, x + 1)
    assert not stored.lacks_next.any()

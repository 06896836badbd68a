"""Tests of `Ring`: the stored rows equal those of lists of a fixed length, on each seed."""

from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.replay.mixtures import Mixture
from offline_rl.replay.ring import Ring
from offline_rl.utils.random import Random

GAMMA, CAPACITY, UPDATE = 0.9, 7, torch.zeros(2, dtype=torch.int64)


def numbered(first: int, count: int, valid: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Return `count` rows for two seeds, numbered from `first` and, for seed 1, from 1000 + it."""
    t = torch.arange(first, first + count) + torch.tensor([[0], [1000]])
    rows = {"observations": t[..., None].float(), "next_observations": t[..., None] + 0.5}
    rows |= {"actions": -t[..., None].float(), "rewards": 2.0 * t, "costs": 3.0 * t}
    rows |= {"terminated": t % 3 == 0, "truncated": t % 3 == 1}
    return rows if valid is None else rows | {"valid": valid}


def ring(capacity: int = CAPACITY) -> Ring:
    return Ring((1,), 1, capacity, streams=2, columns={"costs": ()})


def one_seed(source: Any, s: int) -> dict[str, torch.Tensor]:
    return {k: v[s] for k, v in source.tensors().items()}


def stored(source: Ring, s: int) -> list[int]:
    """Return the rows' numbers from the oldest to the newest, and check their other columns."""
    data = one_seed(source, s)
    size, oldest = int(data["size"]), int(data["oldest"])
    at = [(oldest + k) % source.buffer.capacity for k in range(size)]
    if size:
        assert at[-1] == int(data["newest"])
    t = data["observations"][at, 0]
    assert torch.equal(data["observations"][data["next_index"][at].long(), 0], t + 0.5)
    assert torch.equal(data["actions"][at, 0], -t)
    assert torch.equal(data["rewards"][at], 2 * t)
    assert torch.equal(data["costs"][at], 3 * t)
    assert data["terminated"][at].tolist() == (t % 3 == 0).int().tolist()
    assert data["truncated"][at].tolist() == (t % 3 == 1).int().tolist()
    return t.int().tolist()


@pytest.mark.parametrize("masked", [False, True])
def test_every_seed_keeps_its_newest_valid_rows_in_order(masked: bool):
    draw, rows, known = np.random.default_rng(0), ring(), ([], [])
    for cycle in range(50):
        count = int(draw.integers(1, CAPACITY + 1))
        mask = torch.from_numpy(draw.random((2, count)) < 0.6)
        rows.write(numbered(10 * cycle, count, mask if masked else None), UPDATE)
        for s, numbers in enumerate(known):
            kept = mask[s] if masked else mask[s] | True
            numbers += [1000 * s + 10 * cycle + k for k in range(count) if kept[k]]
            assert stored(rows, s) == numbers[-CAPACITY:]


def test_rows_that_are_not_valid_may_hold_any_numbers():
    rows, values = ring(), numbered(0, 3, torch.tensor([[1.0, 0, 1]] * 2))
    for name, column in values.items():
        if column.is_floating_point() and name != "valid":
            column[:, 1] = torch.nan
    rows.write(values, UPDATE)
    assert stored(rows, 0) == [0, 2]
    for column in rows.tensors().values():
        assert not column.isnan().any()


def test_all_stored_rows_and_no_others_are_sampled():
    rows = ring()
    rows.write(numbered(1, 5, torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 1, 0]])), UPDATE)
    for s, numbers in enumerate(({1, 2, 4}, {1004})):
        random = Random(torch.tensor(0), torch.tensor(0))
        batch = rows.sample(one_seed(rows, s), random, 200, GAMMA)
        t = batch.observations[:, 0]
        assert set(t.int().tolist()) == numbers
        assert torch.equal(batch.discount, torch.where(t % 3 == 0, 0, GAMMA))


def test_transitions_of_n_steps_end_with_the_rows_episode():
    """Rows 2, 3 are an episode; 3 terminates. Rows 5, 6 are another one."""
    rows = ring()
    rows.write(numbered(2, 5, torch.tensor([[1, 1, 0, 1, 1]] * 2)), UPDATE)
    random = Random(torch.tensor(0), torch.tensor(0))
    batch = rows.with_n_step(3).sample(one_seed(rows, 0), random, 200, 0.5)
    t, total = batch.observations[:, 0].tolist(), batch.rewards.tolist()
    assert dict(zip(t, total, strict=True)) == {2: 4 + 3, 3: 6, 5: 10 + 6, 6: 12}


def test_a_mixture_samples_data_and_rows_of_a_ring():
    first, second = ring(), ring()
    first.write(numbered(0, 4), UPDATE)
    second.write(numbered(50, 4), UPDATE)
    both = Mixture(first, second, 0.25).with_n_step(2)
    data = {name: {k: v[0] for k, v in part.items()} for name, part in both.tensors().items()}
    batch = both.sample(data, Random(torch.tensor(0), torch.tensor(0)), 80, GAMMA)
    assert (batch.observations[:, 0] < 50).sum() == 20


def test_a_checkpoint_of_one_seed_restores_its_rows_and_their_order():
    rows, again = ring(), ring()
    for cycle, count in enumerate((5, 4, 3)):
        rows.write(numbered(10 * cycle, count), UPDATE)
    again.write(numbered(70, 2), UPDATE)
    again.load(0, rows.stream_state(0))
    assert stored(again, 0) == stored(rows, 0)
    assert stored(again, 1) == [1070, 1071]
    for source in (rows, again):
        source.write(numbered(30, 2), UPDATE)
    assert stored(again, 0) == stored(rows, 0)


def test_missing_and_unknown_columns_and_too_many_rows_are_refused():
    with pytest.raises(ValueError, match=r"columns are .*costs.*found"):
        ring().write({k: v for k, v in numbered(0, 3).items() if k != "costs"}, UPDATE)
    with pytest.raises(ValueError, match=r"found .*weights"):
        ring().write(numbered(0, 3) | {"weights": torch.ones(2, 3)}, UPDATE)
    with pytest.raises(ValueError, match="8 rows do not fit into a ring of 7 rows"):
        ring().write(numbered(0, 8), UPDATE)


def test_rows_of_named_channels_and_images_are_stored():
    shapes = {"camera": (2, 2, 3), "joints": (2,)}
    rows = Ring(shapes, 1, 4, streams=1)
    t = torch.arange(6.0).reshape(1, 6)
    columns = {"actions": t[..., None], "rewards": t, "terminated": 0 * t, "truncated": 0 * t}
    for k in (0, 3):
        part = {name: value[:, k : k + 3] for name, value in columns.items()}
        camera = part["rewards"].byte()[..., None, None, None].expand(1, 3, 2, 2, 3)
        observations = {"camera": camera, "joints": part["rewards"][..., None].expand(1, 3, 2)}
        part |= {"observations": observations, "next_observations": observations}
        rows.write(part, UPDATE[:1])
    random = Random(torch.tensor(0), torch.tensor(0))
    batch = rows.sample(one_seed(rows, 0), random, 50, GAMMA)
    assert batch.observations["camera"].dtype == torch.uint8
    assert torch.equal(batch.observations["camera"][:, 0, 0, 0].float(), batch.rewards)
    assert torch.equal(batch.next_observations["joints"][:, 1], batch.rewards)
    assert set(batch.rewards.tolist()) == {2, 3, 4, 5}


def test_the_ring_keeps_only_as_many_of_the_newest_rows_as_a_program_says():
    """The limit rises and falls below the capacity, and differs between the seeds."""
    draw, rows, known = np.random.default_rng(1), ring(), ([], [])
    for cycle in range(50):
        count, keep = int(draw.integers(1, CAPACITY + 1)), draw.integers(1, CAPACITY + 3, 2)
        rows.write(numbered(10 * cycle, count) | {"keep": torch.from_numpy(keep)}, UPDATE)
        for s, numbers in enumerate(known):
            numbers += [1000 * s + 10 * cycle + k for k in range(count)]
            del numbers[: -min(int(keep[s]), CAPACITY)]
            assert stored(rows, s) == numbers

"""Tests of `Rollouts`: minibatch order, fixed memory addresses, checkpoints."""

import numpy as np
import pytest
import torch

from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils.random import Random


def filled_rollouts(seeds: int = 2) -> Rollouts:
    """Return six decisions of three environments; `place` numbers them."""
    rollouts = Rollouts(seeds, (6, 3), {"place": ()}, steps=4)
    for t in range(6):
        rollouts.append({"place": np.tile(3 * t + np.arange(3), (seeds, 1))})
    return rollouts


def pairs(rollouts: Rollouts, seed: int, updates: range) -> list[tuple[int, int]]:
    visited = []
    for update in updates:
        random = Random(torch.tensor(seed), torch.tensor(update))
        batch = rollouts.sample({k: v[0] for k, v in rollouts.tensors().items()}, random, 9, 0.9)
        visited += list(zip(batch.place.int().tolist(), batch.step.tolist(), strict=True))
    return visited


def test_every_pair_of_decision_and_step_is_visited_once_an_epoch():
    rollouts = filled_rollouts()
    rollouts.write({}, torch.tensor(100))
    everything = {(decision, k) for decision in range(18) for k in range(4)}
    first, second = (pairs(rollouts, 5, range(100 + e, 108 + e)) for e in (0, 8))
    assert set(first) == set(second) == everything
    assert len(first) == len(everything)
    assert first != second
    assert first != pairs(rollouts, 6, range(100, 108))  # another seed's order
    rollouts.write({}, torch.tensor(116))
    assert pairs(rollouts, 5, range(116, 124)) not in (first, second)  # the next rollout's


def test_a_batch_does_not_depend_on_earlier_batches():
    rollouts = filled_rollouts()
    rollouts.write({}, torch.tensor(0))
    assert pairs(rollouts, 5, range(3, 4)) == pairs(rollouts, 5, range(8))[27:36]


def test_the_next_rollout_overwrites_the_last_in_place():
    rollouts = filled_rollouts()
    assert rollouts.is_full
    at = rollouts.tensors()["place"].data_ptr()
    rollouts.append({"place": np.full((2, 3), -1)})
    assert not rollouts.is_full
    assert rollouts.tensors()["place"].data_ptr() == at
    assert rollouts.tensors()["place"][:, :2].flatten(1).tolist() == [[-1] * 3 + [3, 4, 5]] * 2


def test_a_checkpoint_in_the_middle_of_a_rollout_restores_it():
    rollouts, other = filled_rollouts(), Rollouts(2, (6, 3), {"place": ()}, steps=4)
    rollouts.append({"place": np.zeros((2, 3))})
    for s in range(2):
        other.load(s, rollouts.stream_state(s))
    for one in (rollouts, other):
        one.append({"place": np.ones((2, 3))})
    assert torch.equal(rollouts.tensors()["place"], other.tensors()["place"])
    smaller = Rollouts(2, (5, 3), {"place": ()}, steps=4)
    with pytest.raises(ValueError, match="place is missing, or has another shape"):
        smaller.load(0, rollouts.stream_state(0))

"""Behaviour cloning: updates written out, its answer where data disagrees, the data it keeps."""

import numpy as np
import pytest
import torch
from by_hand import (
    SMALL,
    action,
    advance,
    assert_same,
    close,
    doubles,
    made_batch,
    plain,
    start,
    two_actions,
)

from offline_rl.algorithms.bc import BC
from offline_rl.data.dataset import Dataset
from policies.spec import Spec


def test_updates_equal_plain_pytorch():
    first = start(BC, lr=1e-3, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for batch in batches:
        s, a, *_ = doubles(batch)
        loss = torch.nn.functional.mse_loss(policy(s).tanh(), a)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert_same(state, "policy", policy, adam, prefix="trunk.")
    close(metrics["policy_loss"], loss)


def test_answers_the_mean_of_two_demonstrated_actions():
    state = start(BC, spec=Spec((1,), 1), lr=3e-3, **SMALL)
    state, _ = advance(state, *[two_actions()] * 100)
    assert action(state) == pytest.approx(0, abs=0.05)


def five_episodes() -> Dataset:
    """Returns 0, 10, 20, 30, 40 in lengths 2, 2, 2, 4, 10; actions carry the episode's number."""
    lengths = np.array([2, 2, 2, 4, 10])
    number = np.repeat(np.arange(5), lengths)
    ended = np.zeros(20, bool)
    ended[np.cumsum(lengths) - 1] = True
    rewards = np.where(ended, 10 * number, 0).astype(np.float32)
    return Dataset.from_arrays(np.zeros((20, 3)), number[:, None] / 5, rewards, ended)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_fraction": 0.4}, [3, 4]),  # two of five trajectories
        ({"top_fraction": 0.75, "top_of": "timesteps"}, [3, 4]),  # 14 of 15 rows; 16 with the third
    ],
)
def test_keeps_the_best_share_of_trajectories_or_timesteps(config, kept):
    data = BC(Spec((3,), 1), BC.Config(**config)).prepare(five_episodes())
    assert sorted({round(5 * a) for a in data.actions[:, 0].tolist()}) == kept

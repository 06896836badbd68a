"""Behavior cloning: updates by hand, conflicting actions, and selection of episodes."""

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
    taught,
    two_actions,
)

from offline_rl.algorithms.bc import BC
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch
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


def test_predicts_the_mean_of_two_demonstrated_actions():
    state = start(BC, spec=Spec((1,), 1), lr=3e-3, **SMALL)
    state, _ = advance(state, *[two_actions()] * 100)
    assert action(state) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("horizon", [1, 2])
def test_the_last_row_of_an_episode_is_used_without_a_next_observation(horizon: int):
    seen, actions = np.tile([[0.0], [1.0]], (20, 1)), np.tile([[-0.5], [0.5]], (20, 1))
    last = seen[:, 0] == 1
    data = Dataset.from_arrays(seen, actions, seen[:, 0], ~last & last, last)
    assert not data.usable[last].any()
    state = taught(BC, data, num_updates=150, horizon=horizon, lr=1e-2, hidden=(16,))
    observations = torch.tensor([[0.0], [1.0]])
    answer = state.policy.decide(observations[:, None], {}, None)[0][:, 0]
    assert answer[:, 0].tolist() == pytest.approx([-0.5, 0.5], abs=0.02)


def five_episodes() -> Dataset:
    """Return episodes with returns 0, 10, 20, 30, 40 and lengths 2, 2, 2, 4, 10.

    Actions are the number of the episode.
    """
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
    data = BC(Spec((3,), 1), BC.Config(**config)).prepare(five_episodes())[0]
    assert sorted({round(5 * a) for a in data.actions[:, 0].tolist()}) == kept


def test_chunks_are_actions_of_the_episode_from_the_current_step_on():
    """Observations are rows of an episode of six; actions are a tenth of that."""
    rows = np.tile(np.arange(6.0), 20)
    data = Dataset.from_arrays(rows[:, None], rows[:, None] / 10, rows, rows == 5)
    chunked = {"n_obs_steps": 2, "horizon": 3, "n_action_steps": 2, "lr": 1e-2, "hidden": (64,)}
    state = taught(BC, data, num_updates=600, **chunked)
    seen = torch.tensor([[[0.0], [0.0]], [[1.0], [2.0]], [[2.0], [3.0]]])
    answered = state.policy.decide(seen, {}, None)[0][..., 0]
    expected = torch.tensor([[0.0, 0.1, 0.2], [0.2, 0.3, 0.4], [0.3, 0.4, 0.5]])
    assert (answered - expected).abs().max() < 0.03
    head = state.algorithm.modules["policy"]
    assert (head.n_obs_steps, head.chunk_size, head.n_action_steps, head.noise_shape) == (
        2,
        3,
        2,
        (),
    )


def test_padding_beyond_an_episode_does_not_count():
    state = start(BC, n_obs_steps=2, horizon=4, n_action_steps=2, **SMALL)
    seen, zeros = torch.randn(8, 2, 3), torch.zeros(8)
    actions, valid = torch.rand(8, 4, 2) * 2 - 1, torch.rand(8, 4) < 0.6
    _, metrics = advance(state, Batch(seen, actions, zeros, zeros, seen, zeros, valid=valid))
    with torch.no_grad():
        error = (state.policy(seen) - actions)[valid].square()
    close(metrics["policy_loss"], error.mean())


def test_too_long_chunks_are_refused():
    with pytest.raises(ValueError, match="n_action_steps=3 exceeds horizon=2"):
        BC.Config(horizon=2, n_action_steps=3)

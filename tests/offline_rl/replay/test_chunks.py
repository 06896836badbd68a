"""Chunks of the replay buffer: what lies beside what, and that nothing crosses an episode."""

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, around
from offline_rl.utils.random import Random

GAMMA = 0.5


def episodes() -> Dataset:
    """Rows 0-3 terminate, rows 4-9 are cut by time; observation = row, action = row / 10."""
    rows = np.arange(10)
    following = rows[:, None] + 1.0
    following[3], following[9] = 50, 60
    return Dataset.from_arrays(
        rows[:, None].astype(np.float32),
        rows[:, None] / 10,
        2.0**rows,
        rows == 3,
        rows == 9,
        following,
    )


def batch_of(beside: str = "oldest", columns: dict | None = None, **sizes):
    """500 chunks, by their present row."""
    sizes = {"n_obs_steps": 3, "horizon": 5, "n_action_steps": 2} | sizes
    buffer = ReplayBuffer.from_dataset(episodes(), columns=columns)
    source = Chunks(buffer, beside=beside, **sizes)
    data = {k: v[0] for k, v in source.tensors().items()}
    batch = source.sample(data, Random(torch.tensor(0), torch.tensor(0)), 500, GAMMA)
    present = batch.observations[:, -1, 0].int().tolist()
    assert set(present) == set(range(10))
    return batch, {row: present.index(row) for row in range(10)}


def first_and_last(row: int) -> tuple[int, int]:
    return (0, 3) if row < 4 else (4, 9)


@pytest.mark.parametrize("beside", ["oldest", "present"])
def test_history_and_window_are_the_episodes_own_rows_and_its_edges_repeated(beside: str):
    batch, places = batch_of(beside)
    start = -2 if beside == "oldest" else 0
    for row, place in places.items():
        first, last = first_and_last(row)
        seen = [max(row + k, first) for k in (-2, -1, 0)]
        taken = [row + start + k for k in range(5)]
        inside = [min(max(k, first), last) for k in taken]
        assert batch.observations[place, :, 0].tolist() == seen
        assert (10 * batch.actions[place, :, 0]).round().tolist() == inside
        assert batch.real[place].tolist() == [first <= k <= last for k in taken]


def test_a_chunk_is_paid_its_executed_steps_and_bootstraps_behind_them_unless_terminated():
    batch, places = batch_of(n_action_steps=3)
    for row, place in places.items():
        _, last = first_and_last(row)
        done = range(row, min(row + 2, last) + 1)
        paid = sum(GAMMA**k * 2.0**r for k, r in enumerate(done))
        assert batch.rewards[place].item() == pytest.approx(paid)
        ends = done[-1] == 3
        assert batch.discount[place].item() == pytest.approx(0 if ends else GAMMA ** len(done))
        after = {3: 50, 9: 60}.get(done[-1], done[-1] + 1)
        assert batch.next_observations[place, -1, 0].item() == after
        first, _ = first_and_last(row)
        before = [max(done[-1] + k, first) for k in (-1, 0)]
        assert batch.next_observations[place, :-1, 0].tolist() == before


def test_a_chunk_costs_what_its_executed_steps_cost_discounted():
    """Costs 1, 2, 4, 8, … discounted by a half: as much for each executed step as for the first."""
    rows = np.arange(10)
    columns = {"costs": 2.0**rows, "timesteps": rows, "next_actions": rows[:, None] + 1}
    columns |= {"mc_returns": 10 * rows}
    batch, places = batch_of(n_action_steps=3, columns=columns)
    for row, place in places.items():
        last = min(row + 2, first_and_last(row)[1])
        assert batch.costs[place] == (last - row + 1) * 2**row
        assert (batch.timesteps[place], batch.mc_returns[place]) == (row, 10 * row)
        assert batch.next_actions[place] == last + 1


def test_one_step_without_history_is_a_transition():
    batch, places = batch_of(n_obs_steps=1, horizon=1, n_action_steps=1)
    assert batch.next_observations.shape == (500, 1, 1)
    assert batch.rewards[places[5]].item() == 2.0**5
    assert batch.discount[places[9]].item() == GAMMA


def test_a_ring_that_came_round_has_no_history_before_its_oldest_row():
    buffer = ReplayBuffer((1,), 1, 4)
    for row in range(6):  # of one endless episode, of which rows 2 to 5 are left
        buffer.append(
            0,
            {
                "observations": np.full((1, 1), row),
                "actions": np.zeros((1, 1)),
                "rewards": np.zeros(1),
                "terminated": np.zeros(1),
                "truncated": np.zeros(1),
                "next_observations": np.full((1, 1), row + 1),
            },
        )
    data = {k: v[0] for k, v in buffer.tensors().items()}
    rows, real = around(data, torch.tensor([2, 3, 0, 1]), -2, 2)  # of the steps 2, 3, 4, 5
    steps = data["observations"][rows][..., 0].int().tolist()
    assert steps == [[2, 2, 2, 3, 4], [2, 2, 3, 4, 5], [2, 3, 4, 5, 5], [3, 4, 5, 5, 5]]
    assert real.sum(1).tolist() == [3, 4, 4, 3]

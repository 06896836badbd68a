"""Tests of action chunks: how observations, actions and rewards align within an episode."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer, rows_around
from offline_rl.replay.chunks import Chunks, Histories
from offline_rl.utils.random import Random

GAMMA = 0.5


def episodes() -> Dataset:
    """Return rows 0-3, terminated, and 4-9, truncated; observation = row, action = row / 10."""
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


def batch_of(
    chunk_start: str = "oldest",
    columns: dict | None = None,
    partial: str = "bootstrap",
    data: Dataset | None = None,
    **sizes,
):
    """Return a batch of 500 chunks, and the index in it of each current row."""
    sizes = {"n_obs_steps": 3, "horizon": 5, "n_action_steps": 2} | sizes
    buffer = ReplayBuffer.from_dataset(data or episodes(), columns=columns)
    source = Chunks(buffer, chunk_start=chunk_start, partial=partial, **sizes)
    tensors = {k: v[0] for k, v in source.tensors().items()}
    batch = source.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 500, GAMMA)
    present = batch.observations[:, -1, 0].int().tolist()
    assert set(present) == set(range(10))
    return batch, {row: present.index(row) for row in range(10)}


def first_and_last(row: int) -> tuple[int, int]:
    return (0, 3) if row < 4 else (4, 9)


@pytest.mark.parametrize("chunk_start", ["oldest", "present"])
def test_observations_and_actions_are_the_episodes_rows_with_its_edges_repeated(chunk_start: str):
    batch, places = batch_of(chunk_start)
    start = -2 if chunk_start == "oldest" else 0
    for row, place in places.items():
        first, last = first_and_last(row)
        observed = [max(row + k, first) for k in (-2, -1, 0)]
        chunk = [row + start + k for k in range(5)]
        clamped = [min(max(k, first), last) for k in chunk]
        assert batch.observations[place, :, 0].tolist() == observed
        assert (10 * batch.actions[place, :, 0]).round().tolist() == clamped
        assert batch.valid[place].tolist() == [first <= k <= last for k in chunk]


def test_a_chunk_sums_the_rewards_of_its_executed_steps_and_bootstraps_unless_terminated():
    batch, places = batch_of(n_action_steps=3)
    for row, place in places.items():
        _, last = first_and_last(row)
        executed = range(row, min(row + 2, last) + 1)
        rewards = sum(GAMMA**k * 2.0**r for k, r in enumerate(executed))
        assert batch.rewards[place].item() == pytest.approx(rewards)
        discount = 0 if executed[-1] == 3 else GAMMA ** len(executed)
        assert batch.discount[place].item() == pytest.approx(discount)
        assert batch.bootstrap_mask[place] == (executed[-1] != 3)
        after = {3: 50, 9: 60}.get(executed[-1], executed[-1] + 1)
        assert batch.next_observations[place, -1, 0].item() == after
        first, _ = first_and_last(row)
        previous = [max(executed[-1] + k, first) for k in (-1, 0)]
        assert batch.next_observations[place, :-1, 0].tolist() == previous


def test_a_chunk_sums_the_discounted_costs_of_its_executed_steps():
    """Costs 1, 2, 4, 8, … discounted by a half: every executed step adds the same amount."""
    rows = np.arange(10)
    columns = {"costs": 2.0**rows, "timesteps": rows, "next_actions": rows[:, None] + 1}
    columns |= {"mc_returns": 10 * rows}
    batch, places = batch_of(n_action_steps=3, columns=columns)
    for row, place in places.items():
        last = min(row + 2, first_and_last(row)[1])
        assert batch.costs[place] == (last - row + 1) * 2**row
        assert (batch.timesteps[place], batch.mc_returns[place]) == (row, 10 * row)
        assert batch.next_actions[place] == last + 1


@pytest.mark.parametrize("chunk_start", ["oldest", "present"])
def test_chunks_that_an_episodes_end_cuts_short_can_have_the_weight_zero(chunk_start: str):
    """Row 3 terminates and row 9 is truncated: three executed steps fit up to rows 1 and 7."""
    kept, _ = batch_of(chunk_start, n_action_steps=3)
    batch, places = batch_of(chunk_start, n_action_steps=3, partial="drop")
    assert kept.weights is None
    for row, place in places.items():
        assert batch.weights[place] == (row <= 1 or 4 <= row <= 7)
    for name in ("observations", "actions", "rewards", "discount", "next_observations", "valid"):
        assert torch.equal(getattr(batch, name), getattr(kept, name))


SUCCESSES = (2, 5, 6)  # rows that terminate, although their episodes go on


def demonstrations() -> Dataset:
    """Return rows 0-3 and 4-9, both truncated; the task is solved in rows 2, 5 and 6."""
    data, rows = episodes(), np.arange(10)
    solved = np.isin(rows, SUCCESSES)
    ends = np.isin(rows, (3, 9))
    return replace(data, terminated=solved, truncated=ends, continues=solved)


def test_an_episode_goes_on_after_a_terminated_row():
    data = demonstrations()
    assert data.episode_ends.tolist() == [3, 9]
    assert data.take(np.arange(1, 7)).episode_ends.tolist() == [2, 5]  # rows 3 and 6
    returns = data.monte_carlo_returns(GAMMA)
    expected = [3, 4, 4, 8, 32, 32, 64]  # 2 ** row, halved per step, up to a solved row
    assert returns[:7].tolist() == expected


@pytest.mark.parametrize("partial", ["bootstrap", "drop"])
def test_a_chunk_goes_on_after_a_terminated_row_and_does_not_bootstrap(partial: str):
    """Compared with a loop over single rows, by the two rules that `Chunks` states."""
    sizes = {"n_obs_steps": 1, "horizon": 3, "n_action_steps": 3}
    batch, places = batch_of(partial=partial, data=demonstrations(), **sizes)
    for row, place in places.items():
        _, last = first_and_last(row)
        executed = [k for k in range(row, row + 3) if k <= last]
        assert batch.valid[place].tolist() == [k <= last for k in range(row, row + 3)]
        actions = [min(k, last) for k in range(row, row + 3)]
        assert (10 * batch.actions[place, :, 0]).round().tolist() == actions
        total, mask = 0.0, 1
        for k in executed:
            total += GAMMA ** (k - row) * 2.0**k if mask or partial == "drop" else 0
            mask = min(mask, k not in SUCCESSES)
        assert batch.rewards[place].item() == pytest.approx(total)
        assert batch.bootstrap_mask[place] == mask
        assert batch.discount[place].item() == pytest.approx(mask * GAMMA ** len(executed))
        if partial == "drop":
            assert batch.weights[place] == (len(executed) == 3)


def test_a_chunk_ends_with_a_terminated_row_if_the_row_after_it_has_no_successor():
    """Rows 3 and 9 have no next observation, so they are no transitions; row 4 follows row 2."""
    rows = np.arange(10)
    columns = rows[:, None] / 10, 2.0**rows, rows < 0, np.isin(rows, (3, 9))
    data = Dataset.from_arrays(rows[:, None].astype(np.float32), *columns)
    data = replace(data, terminated=rows == 2, continues=rows == 2)
    assert np.flatnonzero(data.usable).tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    source = Chunks(ReplayBuffer.from_dataset(data), n_obs_steps=1, horizon=3, n_action_steps=3)
    tensors = {k: v[0] for k, v in source.tensors().items()}
    batch = source.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 200, GAMMA)
    present = batch.observations[:, 0, 0]
    lengths = torch.where(present > 3, 9 - present, 3 - present).clamp(max=3)
    assert batch.valid.sum(1).tolist() == lengths.tolist()


def test_observations_before_a_terminated_row_stay_in_the_history():
    batch, places = batch_of(data=demonstrations())
    assert batch.observations[places[7], :, 0].tolist() == [5, 6, 7]
    assert batch.observations[places[3], :, 0].tolist() == [1, 2, 3]


def test_an_n_step_transition_ends_with_a_terminated_row():
    buffer = ReplayBuffer.from_dataset(demonstrations()).with_n_step(3)
    data = {k: v[0] for k, v in buffer.tensors().items()}
    batch = buffer.sample(data, Random(torch.tensor(0), torch.tensor(0)), 500, GAMMA)
    present = batch.observations[:, 0].int().tolist()
    for row, (total, discount) in {
        0: (3, 0),  # 1 + 2 / 2 + 4 / 4
        2: (4, 0),
        3: (8, GAMMA),  # truncated
        4: (32, 0),
        7: (3 * 2**7, GAMMA**3),
    }.items():
        place = present.index(row)
        assert batch.rewards[place].item() == total
        assert batch.discount[place].item() == pytest.approx(discount)


def test_a_decision_of_several_environment_steps_counts_as_so_many_powers_of_gamma():
    """Rewards 2 ** row. Row 2 lasts three steps, row 3 two and terminates; the others last one."""
    steps = np.array([1.0, 1, 3, 2, 1, 1, 1, 1, 1, 1])
    batch, places = batch_of(n_action_steps=3, columns={"steps": steps})
    for row, (rewards, taken) in {
        0: (1 + GAMMA * 2 + GAMMA**2 * 4, 5),
        1: (2 + GAMMA * 4 + GAMMA**4 * 8, 6),
        2: (4 + GAMMA**3 * 8, 5),
        8: (2**8 + GAMMA * 2**9, 2),
    }.items():
        place = places[row]
        assert batch.rewards[place].item() == pytest.approx(rewards)
        assert batch.steps[place] == taken
        discount = 0 if row in (1, 2) else GAMMA**taken
        assert batch.discount[place].item() == pytest.approx(discount)


def test_a_chunk_of_one_step_with_one_observation_is_a_transition():
    batch, places = batch_of(n_obs_steps=1, horizon=1, n_action_steps=1)
    assert batch.next_observations.shape == (500, 1, 1)
    assert batch.rewards[places[5]].item() == 2.0**5
    assert batch.discount[places[9]].item() == GAMMA


def test_observations_in_a_full_ring_do_not_go_back_before_its_oldest_row():
    buffer = ReplayBuffer((1,), 1, 4)
    for row in range(6):  # one endless episode; the ring keeps rows 2 to 5
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
    rows, valid = rows_around(data, torch.tensor([2, 3, 0, 1]), -2, 2)  # around steps 2, 3, 4, 5
    steps = data["observations"][rows][..., 0].int().tolist()
    assert steps == [[2, 2, 2, 3, 4], [2, 2, 3, 4, 5], [2, 3, 4, 5, 5], [3, 4, 5, 5, 5]]
    assert valid.sum(1).tolist() == [3, 4, 4, 3]


@pytest.mark.parametrize("n_step", [1, 3])
def test_histories_repeat_the_first_observation_and_agree_with_the_buffer_in_all_else(n_step):
    """The next history ends with the observation after the last row of the transition."""
    data = episodes()
    buffer = ReplayBuffer.from_dataset(data).with_n_step(n_step)
    source = Histories(buffer, 3).with_n_step(n_step)
    tensors = {k: v[0] for k, v in source.tensors().items()}
    batch, plain = (
        x.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 200, GAMMA)
        for x in (source, buffer)
    )
    for name in ("actions", "rewards", "discount", "bootstrap_mask"):
        torch.testing.assert_close(getattr(batch, name), getattr(plain, name), rtol=0, atol=0)
    torch.testing.assert_close(batch.observations[:, -1], plain.observations)
    seen = set()
    for history, following in zip(batch.observations, batch.next_observations, strict=True):
        row = int(history[-1])
        seen.add(row)
        first, last = first_and_last(row)
        assert history[:, 0].tolist() == [max(row + k, first) for k in (-2, -1, 0)]
        end = min(row + n_step - 1, last)
        next_observation = {3: 50, 9: 60}.get(end, end + 1)
        assert following[:, 0].tolist() == [max(end - 1, first), end, next_observation]
    assert seen == set(range(10))

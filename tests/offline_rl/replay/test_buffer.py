"""Tests of the replay buffer: the contents of batches, within episodes."""

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer, n_step, rows_around
from offline_rl.replay.chunks import Chunks, Sequences
from offline_rl.replay.columns import columns as columns_of
from offline_rl.replay.mixtures import Mixture, WithExpert
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random

GAMMA = 0.9


def random(update: int = 0) -> Random:
    return Random(torch.tensor(0), torch.tensor(update))


def two_episodes(stored_next: bool = True) -> Dataset:
    """Return rows 0-2, terminated, and 3-6, truncated; reward = 10 ** (row - 3)."""
    rows = np.arange(7)
    observations = rows[:, None].astype(np.float32)
    following = observations + 1
    following[2], following[6] = 50, 60
    return Dataset.from_arrays(
        observations,
        np.zeros((7, 1)),
        10.0 ** (rows - 3),
        rows == 2,
        rows == 6,
        following if stored_next else None,
    )


def stream(buffer: ReplayBuffer) -> dict[str, torch.Tensor]:
    return {k: v[0] for k, v in buffer.tensors().items()}


def draw(buffer: ReplayBuffer, size: int = 500):
    return buffer.sample(stream(buffer), random(), size, GAMMA)


def test_batches_hold_true_next_observations_and_bootstrap_unless_terminated():
    batch = draw(ReplayBuffer.from_dataset(two_episodes()))
    for s, s2, r, discount in zip(
        batch.observations[:, 0].tolist(),
        batch.next_observations[:, 0].tolist(),
        batch.rewards.tolist(),
        batch.discount.tolist(),
        strict=True,
    ):
        assert s2 == {2: 50, 6: 60}.get(s, s + 1)
        assert r == pytest.approx(10.0 ** (s - 3))
        assert discount == pytest.approx(0 if s == 2 else GAMMA)
    assert torch.equal(batch.bootstrap_mask, (batch.observations[:, 0] != 2).float())
    assert set(batch.observations[:, 0].tolist()) == set(range(7))


def test_an_experts_batch_has_other_rows_than_the_datas():
    data, expert = (ReplayBuffer.from_dataset(two_episodes()) for _ in range(2))
    expert.data["observations"] += 100
    both = WithExpert(data, expert)
    tensors = {name: stream(buffer) for name, buffer in (("data", data), ("expert", expert))}
    batch = both.sample(tensors, random(), 500, GAMMA)
    assert batch.expert is not None
    assert batch.expert.expert is None
    rows, expert_rows = batch.observations[:, 0], batch.expert.observations[:, 0]
    assert set(rows.tolist()) == set(range(7))
    assert set(expert_rows.tolist()) == {100 + k for k in range(7)}
    assert not torch.equal(rows, expert_rows - 100)


def test_a_time_out_row_without_next_observation_is_not_sampled_but_is_a_next_observation():
    batch = draw(ReplayBuffer.from_dataset(two_episodes(stored_next=False)))
    pairs = set(
        zip(batch.observations[:, 0].tolist(), batch.next_observations[:, 0].tolist(), strict=True)
    )
    assert {s for s, _ in pairs} == {0, 1, 2, 3, 4, 5}
    assert (5, 6) in pairs


def test_n_step_returns_stop_at_ends_and_are_discounted_per_step():
    data = stream(ReplayBuffer.from_dataset(two_episodes()))
    rows = torch.arange(7)
    columns, factor, last = n_step(data, rows, 3, GAMMA)
    total = columns["rewards"]
    for t in range(7):
        end = 2 if t <= 2 else 6
        taken = min(3, end - t + 1)
        expected = sum(GAMMA**k * 10.0 ** (t + k - 3) for k in range(taken))
        assert total[t].item() == pytest.approx(expected, rel=1e-5)
        assert last[t] == t + taken - 1
        assert factor[t].item() == pytest.approx(GAMMA**taken)


def test_columns_are_combined_over_n_steps_by_their_rules():
    """Costs 1, 2, 4, 8, … discounted by a half: 1 + 1 + 1 over three steps, times 2 ** row."""
    rows = np.arange(7)
    further = {"costs": 2.0**rows, "timesteps": rows, "next_actions": rows[:, None] + 1}
    further |= {"mc_returns": 10 * rows, "held_out": rows % 2}
    buffer = ReplayBuffer.from_dataset(two_episodes(), columns=further).with_n_step(3)
    batch = buffer.sample(stream(buffer), random(), 500, 0.5)
    for row, cost, last in ((0, 3, 2), (1, 4, 2), (2, 4, 2), (3, 24, 5), (5, 64, 6), (6, 64, 6)):
        k = batch.observations[:, 0].tolist().index(row)
        assert batch.costs[k] == cost
        assert (batch.timesteps[k], batch.mc_returns[k]) == (row, 10 * row)
        assert batch.held_out[k] == row % 2
        assert batch.next_actions[k] == last + 1  # that which follows the last of the steps


def test_a_row_of_several_environment_steps_counts_as_so_many_powers_of_gamma():
    """Rows of 3, 2, 5 and of 1, 4, 2, 3 environment steps; rows 2 and 6 end their episode."""
    steps, r = np.array([3.0, 2, 5, 1, 4, 2, 3]), 10.0 ** (np.arange(7) - 3)
    buffer = ReplayBuffer.from_dataset(two_episodes(), columns={"steps": steps, "costs": r})
    for n, expected in {
        1: {0: (r[0], 3), 1: (r[1], 2), 4: (r[4], 4)},
        2: {
            0: (r[0] + GAMMA**3 * r[1], 3 + 2),
            1: (r[1] + GAMMA**2 * r[2], 2 + 5),
            4: (r[4] + GAMMA**4 * r[5], 4 + 2),
            6: (r[6], 3),
        },
        3: {3: (r[3] + GAMMA * r[4] + GAMMA**5 * r[5], 1 + 4 + 2)},
    }.items():
        batch = draw(buffer.with_n_step(n))
        for row, (total, taken) in expected.items():
            k = batch.observations[:, 0].tolist().index(row)
            ended = row <= 2 < row + n
            assert batch.rewards[k].item() == batch.costs[k].item() == pytest.approx(total)
            assert batch.steps[k] == taken
            assert batch.discount[k].item() == pytest.approx(0 if ended else GAMMA**taken)
            assert batch.bootstrap_mask[k] == (not ended)
    sequences = draw(Sequences(buffer, 2))
    rows = sequences.observations[..., 0].int()
    expected = torch.where(rows == 2, 0, GAMMA ** torch.from_numpy(steps).float()[rows])
    torch.testing.assert_close(sequences.discount, expected)


def test_the_bootstrap_mask_is_zero_only_where_the_last_row_terminated():
    """Also with a discount of 0."""
    buffer = ReplayBuffer.from_dataset(two_episodes()).with_n_step(2)
    batch = buffer.sample(stream(buffer), random(), 500, 0.0)
    rows = batch.observations[:, 0]
    assert torch.equal(batch.bootstrap_mask, ((rows != 1) & (rows != 2)).float())
    assert not batch.discount.any()


def test_rows_that_an_environment_reports_need_their_number_of_steps():
    buffer = ReplayBuffer((1,), 1, 5, columns={"steps": ()})
    assert not buffer.waits_for_episode_end
    with pytest.raises(ValueError, match="steps"):
        buffer.append(0, episode(1, 2))
    buffer.append(0, episode(1, 2) | {"steps": np.array([4.0, 1])})
    assert buffer.newest(0, 2).extras["steps"].tolist() == [4, 1]
    for data, expected in ((buffer.newest(0, 2), [4, 1]), (two_episodes(), [1] * 7)):
        assert columns_of(["steps"], data, np.asarray)["steps"].tolist() == expected


def test_sources_without_n_step_transitions_refuse_them():
    buffer = ReplayBuffer.from_dataset(two_episodes())
    sizes = {"n_obs_steps": 1, "horizon": 2, "n_action_steps": 2}
    for source in (Chunks(buffer, **sizes), Sequences(buffer, 2), Rollouts(1, (2, 2), {})):
        assert source.with_n_step(1) is source
        name = type(source).__name__
        with pytest.raises(ValueError, match=f"{name} has no transitions of n_step=3"):
            source.with_n_step(3)
    both = Mixture(buffer, WithExpert(buffer, buffer), None).with_n_step(3)
    parts = (both.first, both.second.data, both.second.expert)
    assert [part.n_step for part in parts] == [3, 3, 3]
    assert (buffer.n_step, both.ratio) == (1, None)


def test_n_step_does_not_cross_a_dropped_time_out_row():
    """Two timed-out episodes without stored next observations: rows 3 and 7 are dropped."""
    ends = np.arange(8) % 4 == 3
    data = Dataset.from_arrays(
        np.arange(8)[:, None], np.zeros((8, 1)), np.ones(8), np.zeros(8, bool), ends
    )
    buffer = ReplayBuffer.from_dataset(data)
    columns, factor, last = n_step(stream(buffer), torch.arange(6), 5, 1.0)
    assert columns["rewards"].tolist() == [3, 2, 1, 3, 2, 1]
    assert last.tolist() == [2, 2, 2, 5, 5, 5]
    assert factor.tolist() == [1] * 6


def test_rows_around_a_row_repeat_the_edges_of_its_episode():
    data = stream(ReplayBuffer.from_dataset(two_episodes()))
    rows = torch.tensor([0, 1, 2, 3, 5])
    past, _ = rows_around(data, rows, -2, 0)
    future, valid = rows_around(data, rows, 0, 2)
    assert past.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 4, 5]]
    assert future.tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [3, 4, 5], [5, 6, 6]]
    assert valid.tolist() == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [True, True, True],
        [True, True, False],
    ]


def test_a_batch_of_sequences_has_the_discount_and_next_observation_of_every_step():
    """Discount and bootstrap mask are 0 where a step terminates, but not where it is truncated."""
    source = Sequences(ReplayBuffer.from_dataset(two_episodes()), 2)
    batch = source.sample({k: v[0] for k, v in source.tensors().items()}, random(), 100, GAMMA)
    rows, after = batch.observations[..., 0], batch.next_observations[..., 0]  # [B, H]
    assert set(rows[:, 0].tolist()) == set(range(7))
    assert torch.equal(batch.discount, torch.where(rows == 2, 0, GAMMA))
    assert torch.equal(batch.bootstrap_mask, torch.where(rows == 2, 0.0, 1.0))
    expected = torch.where(rows == 2, 50, torch.where(rows == 6, 60, rows + 1))
    assert torch.equal(after, expected)


def append(buffer: ReplayBuffer, t: int, *, terminated: bool = False, truncated: bool = False):
    """Append the transition t -> t + 0.5 with reward t to every stream."""

    def column(value: float, *shape: int) -> np.ndarray:
        return np.full((buffer.streams, *shape), value, np.float32)

    rows = {"observations": column(t, 1), "actions": column(0, 1), "rewards": column(t)}
    rows |= {"terminated": column(terminated), "truncated": column(truncated)}
    buffer.append(np.arange(buffer.streams), rows | {"next_observations": column(t + 0.5, 1)})


def episode(*times: float) -> dict[str, np.ndarray]:
    """Return the rows of an episode for one stream, truncated at its end."""
    t = np.asarray(times, np.float32)
    zero = np.zeros(len(t), np.float32)
    rows = {"observations": t[:, None], "actions": zero[:, None], "rewards": t}
    rows |= {"terminated": zero, "truncated": zero + (t == t[-1])}
    return rows | {"next_observations": t[:, None] + 0.5}


def sampled_rewards(buffer: ReplayBuffer, stream: int) -> set[float]:
    """Return the rewards of 400 transitions sampled from a stream."""
    data = {k: v[stream] for k, v in buffer.tensors().items()}
    return set(buffer.sample(data, random(), 400, GAMMA).rewards.tolist())


def test_every_stream_of_a_buffer_has_its_own_length():
    buffer = ReplayBuffer((1,), 1, 5, streams=2)
    buffer.append(0, episode(1, 2, 3))
    buffer.append(1, episode(10, 11, 12, 13))
    buffer.append(1, episode(14, 15))
    assert sampled_rewards(buffer, 0) == {1, 2, 3}
    assert sampled_rewards(buffer, 1) == {11, 12, 13, 14, 15}
    assert buffer.sizes.tolist() == [3, 5]


def test_a_dropped_episode_is_never_sampled_from_a_full_or_partial_ring():
    """A full ring loses the rows that the dropped ones had overwritten, and is filled again."""
    buffer = ReplayBuffer((1,), 1, 5, streams=2)
    buffer.append(0, episode(1, 2))
    buffer.append(0, episode(3, 4))
    buffer.drop(0, 2)
    assert sampled_rewards(buffer, 0) == {1, 2}
    buffer.append(1, episode(1, 2, 3, 4))
    buffer.append(1, episode(5, 6, 7))  # places 4, 0, 1
    buffer.drop(1, 3)
    assert sampled_rewards(buffer, 1) == {3, 4}
    buffer.append(1, episode(8))
    assert sampled_rewards(buffer, 1) == {3, 4, 8}
    data = {k: v[1] for k, v in buffer.tensors().items()}
    past, _ = rows_around(data, torch.tensor([3]), -2, 0)
    assert past.tolist() == [[2, 2, 3]]  # row 2 is the oldest that is left
    buffer.append(1, episode(9, 10))
    assert sampled_rewards(buffer, 1) == {3, 4, 8, 9, 10}


def test_a_buffer_refuses_columns_it_does_not_have_and_more_than_fits():
    buffer = ReplayBuffer((1,), 1, 2, columns={"mc_returns": ()})
    with pytest.raises(ValueError, match="mc_returns"):
        buffer.append(0, episode(1) | {"mc_return": np.zeros(1)})
    with pytest.raises(ValueError, match="3 rows do not fit"):
        buffer.append(0, episode(1, 2, 3) | {"mc_returns": np.zeros(3)})
    buffer.append(0, episode(1, 2) | {"mc_returns": np.array([5.0, 6.0])})
    assert set(buffer.sample(stream(buffer), random(), 50, GAMMA).mc_returns.tolist()) == {5, 6}


def test_rows_that_lack_a_column_are_hidden_until_their_episode_has_ended():
    """Rows of the running episode overwrite the oldest ones of a full ring and are not sampled."""
    buffer = ReplayBuffer((1,), 1, 5, columns={"mc_returns": ()})
    buffer.append(0, episode(1, 2, 3, 4))
    assert buffer.sizes.tolist() == [0]
    buffer.release(0, {"mc_returns": np.array([10.0, 9, 7, 4])})
    assert sampled_rewards(buffer, 0) == {1, 2, 3, 4}
    for t in (5, 6):
        append(buffer, t)
    assert sampled_rewards(buffer, 0) == {2, 3, 4}
    columns, _, _ = n_step(stream(buffer), torch.tensor([3]), 3, 1.0)
    assert columns["rewards"].tolist() == [4]  # what is hidden belongs to no return
    again = ReplayBuffer((1,), 1, 5, columns={"mc_returns": ()})
    again.load(0, buffer.stream_state(0))
    for one in (buffer, again):
        one.release(0, {"mc_returns": np.array([11.0, 6.0])})
        assert sampled_rewards(one, 0) == {2, 3, 4, 5, 6}
        batch = one.sample(stream(one), random(), 50, GAMMA)
        returns = dict(zip(batch.rewards.tolist(), batch.mc_returns.tolist(), strict=True))
        assert returns == {2: 9, 3: 7, 4: 4, 5: 11, 6: 6}
    append(buffer, 7)
    buffer.drop(0, 1)
    assert sampled_rewards(buffer, 0) == {3, 4, 5, 6}


def test_a_mixture_in_proportion_samples_as_from_one_buffer_of_all_rows():
    """A quarter of the samples are data, which has 7 rows, and experience 21."""
    online = ReplayBuffer((1,), 1, 100)
    mixture = Mixture(ReplayBuffer.from_dataset(two_episodes()), online, None)
    for count, share in ((21, 0.25), (7, 0.2)):
        online.append(0, episode(*range(100, 100 + count)))
        data = {
            name: {k: v[0] for k, v in part.items()} for name, part in mixture.tensors().items()
        }
        drawn = mixture.sample(data, random(count), 20_000, GAMMA).observations[:, 0]
        assert (drawn < 100).float().mean().item() == pytest.approx(share, abs=0.01)
        assert set(drawn.tolist()) == {*range(7), *range(100, 121)}


def test_a_ring_keeps_the_newest_rows_and_samples_all_of_them():
    buffer = ReplayBuffer((1,), 1, 5, streams=2)
    for t in range(8):
        append(buffer, t)
    for s in range(2):
        data = {k: v[s] for k, v in buffer.tensors().items()}
        batch = buffer.sample(data, random(), 400, GAMMA)
        assert set(batch.observations[:, 0].tolist()) == {3, 4, 5, 6, 7}
        assert torch.equal(batch.next_observations, batch.observations + 0.5)


def ends_in_a_ring() -> ReplayBuffer:
    """Return a ring with rows 102-106; 103 is terminated, 105 truncated."""
    buffer = ReplayBuffer((1,), 1, 5)
    for t in range(100, 107):
        append(buffer, t, terminated=t in (100, 103), truncated=t in (101, 105))
    return buffer


def test_rows_of_a_ring_bootstrap_at_a_time_out_and_not_at_a_termination():
    """The rows before an end reach it in two steps, and a time-out bootstraps."""
    ring = ends_in_a_ring()
    for n, expected in {
        1: {102: GAMMA, 103: 0, 104: GAMMA, 105: GAMMA, 106: GAMMA},
        2: {102: 0, 103: 0, 104: GAMMA**2, 105: GAMMA, 106: GAMMA},
    }.items():
        batch = draw(ring.with_n_step(n))
        discounts = dict(
            zip(batch.observations[:, 0].tolist(), batch.discount.tolist(), strict=True)
        )
        assert discounts == pytest.approx(expected)
        rows, after = batch.observations[:, 0], batch.next_observations[:, 0]
        assert set(after[rows == 105].tolist()) == {105.5}


@pytest.mark.parametrize("ratio", [0.5, None])
def test_rows_of_a_mixture_bootstrap_at_time_outs_of_both_and_at_terminations_of_neither(
    ratio: float | None,
):
    """Rows 2 (data) and 103 (experience) are terminated; rows 6 and 105 are truncated."""
    mixture = Mixture(ReplayBuffer.from_dataset(two_episodes()), ends_in_a_ring(), ratio)
    data = {name: {k: v[0] for k, v in part.items()} for name, part in mixture.tensors().items()}
    batch = mixture.sample(data, random(), 500, GAMMA)
    rows = batch.observations[:, 0]
    assert set(rows.tolist()) == {*range(7), *range(102, 107)}
    ended = (rows == 2) | (rows == 103)
    assert torch.equal(batch.discount, torch.where(ended, 0, GAMMA))
    assert torch.equal(batch.bootstrap_mask, (~ended).float())
    after = dict(zip(rows.tolist(), batch.next_observations[:, 0].tolist(), strict=True))
    assert (after[6], after[105]) == (60, 105.5)


def test_sequences_in_a_ring_stop_at_its_newest_and_oldest_row():
    buffer = ReplayBuffer((1,), 1, 5)
    for t in range(7):  # places 0..4 hold 5 6 2 3 4
        append(buffer, t)
    data = stream(buffer)
    columns, _, _ = n_step(data, torch.tensor([0, 1, 4]), 3, 1.0)
    assert columns["rewards"].tolist() == [5 + 6, 6, 4 + 5 + 6]
    past, _ = rows_around(data, torch.tensor([2, 3]), -2, 0)
    assert past.tolist() == [[2, 2, 2], [2, 2, 3]]


@pytest.mark.parametrize(
    ("ratio", "size", "count"), [(0.5, 8, 4), (0.25, 8, 2), (0.3, 9, 3), (1, 4, 4), (0, 4, 0)]
)
def test_a_mixture_keeps_its_ratio_in_every_part_of_the_batch(ratio: float, size: int, count: int):
    online = ReplayBuffer((1,), 1, 10)
    for t in range(100, 110):
        append(online, t)
    mixture = Mixture(ReplayBuffer.from_dataset(two_episodes()), online, ratio)
    data = {name: {k: v[0] for k, v in part.items()} for name, part in mixture.tensors().items()}
    batch = mixture.sample(data, random(), size, GAMMA)
    is_first = batch.observations[:, 0] < 100
    assert is_first.sum() == count
    if ratio == 0.5:
        assert [int(is_first[k : k + 2].sum()) for k in range(0, size, 2)] == [1] * (size // 2)


def test_an_impossible_ratio_is_refused():
    buffer = ReplayBuffer.from_dataset(two_episodes())
    with pytest.raises(UserError, match="between 0 and 1"):
        Mixture(buffer, buffer, 1.5)


def test_a_checkpoint_restores_a_ring():
    one, two = ReplayBuffer((1,), 1, 5), ReplayBuffer((1,), 1, 5)
    for t in range(8):
        append(one, t, truncated=t == 4)
    two.load(0, one.stream_state(0))
    for name, value in one.tensors().items():
        assert torch.equal(value, two.tensors()[name]), name

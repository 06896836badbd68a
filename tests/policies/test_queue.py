"""The queue of policies that answer with chunks, and the noise that they are given."""

import numpy as np
import pytest

from policies import noise
from policies.chunks import Queue
from policies.spec import Spec


class Planner:
    """Answers 100 times the oldest observation seen plus the present one, and counts from there."""

    def __init__(self, chunk_size: int = 5) -> None:
        self.chunk_size, self.asked = chunk_size, []

    def __call__(self, observations, drawn, rows):
        self.asked.append((observations[..., 0].tolist(), drawn, rows.tolist()))
        start = 100 * observations[:, 0, 0] + observations[:, -1, 0]
        return (start[:, None] + np.arange(self.chunk_size) / 10)[..., None].astype(np.float32)


def queue(planner, **options):
    made = Queue(planner, **({"n_obs_steps": 2, "n_action_steps": 3} | options))
    made.reset(np.array([7, 8]))
    return made


def steps(made, *observations):
    return [made.step(np.array(o, np.float32)[:, None])[:, 0].tolist() for o in observations]


def test_history_begins_with_the_first_observation_repeated_and_then_slides():
    planner = Planner()
    steps(queue(planner, n_obs_steps=3, n_action_steps=1), [1, 2], [3, 4], [5, 6])
    assert [asked[0] for asked in planner.asked] == [
        [[1, 1, 1], [2, 2, 2]],
        [[1, 1, 3], [2, 2, 4]],
        [[1, 3, 5], [2, 4, 6]],
    ]


def test_of_each_chunk_so_many_actions_are_executed_before_the_next_is_planned():
    planner = Planner()
    taken = steps(queue(planner), [1, 2], [3, 4], [5, 6], [7, 8], [9, 9])
    first = [[101, 202], [101.1, 202.1], [101.2, 202.2]]  # three of the first five
    second = [[507, 608], [507.1, 608.1]]
    np.testing.assert_allclose(taken, first + second, rtol=1e-5)
    assert len(planner.asked) == 2


def test_an_episode_that_begins_anew_is_planned_alone_and_forgets():
    planner = Planner()
    made = queue(planner)
    steps(made, [1, 2], [3, 4])
    made.reset(np.array([9]), np.array([1]))
    assert steps(made, [5, 60])[0][1] == 6060
    assert planner.asked[-1][2] == [1]
    steps(made, [7, 70])
    assert planner.asked[-1][2] == [0]  # each at its own time from then on


def test_noise_is_a_function_of_the_episodes_seed_and_the_number_of_the_decision():
    planner = Planner()
    made = queue(planner, n_action_steps=1, noise_shape=(4, 3))
    steps(made, [1, 2], [3, 4])
    first, second = planner.asked[0][1], planner.asked[1][1]
    assert first.shape == (2, 4, 3)
    expected = np.random.Generator(np.random.Philox(key=[8, 1])).standard_normal((4, 3), np.float32)
    np.testing.assert_array_equal(second[1], expected)
    made.reset(np.array([8]), np.array([0]))
    steps(made, [0, 0], [0, 0])
    np.testing.assert_array_equal(planner.asked[-1][1][0], expected)  # in another row as well
    everything = np.concatenate([first, second]).reshape(4, -1)
    assert len(np.unique(everything.round(6))) == everything.size


def test_where_no_noise_is_wanted_rows_are_empty():
    assert noise.normal(np.array([1, 2]), np.array([0, 0]), (0,)).shape == (2, 0)


def test_a_user_who_decides_gets_the_whole_chunk_at_any_time():
    planner = Planner()
    made = queue(planner)
    made.observe(np.array([[1.0], [2.0]]))
    made.observe(np.array([[3.0], [4.0]]))
    chunk = made.predict_chunk(np.array([1]))
    assert chunk.shape == (1, 5, 1)
    assert chunk[0, 0, 0] == 204
    assert made.decisions.tolist() == [0, 1]


def by_hand(chunks: list[np.ndarray], m: float) -> np.ndarray:
    """What all chunks of an episode, decided one a step, say of the last step: the oldest first."""
    now = len(chunks) - 1
    told = np.stack([chunk[now - k] for k, chunk in enumerate(chunks) if now - k < len(chunk)])
    weights = np.exp(-m * np.arange(len(told)))
    return (weights[:, None] * told).sum(0) / weights.sum()


@pytest.mark.parametrize("m", [0.0, 0.01, 0.7])
def test_blended_actions_are_weighted_means_of_all_that_was_decided_for_their_step(m: float):
    """Two episodes of chunks of three; the second begins anew in its third step, and forgets."""
    draw, told = np.random.default_rng(0), [list[np.ndarray](), list[np.ndarray]()]

    def plan(observations, drawn, rows):
        chunks = draw.normal(size=(len(rows), 3, 2)).astype(np.float32)
        for row, chunk in zip(rows, chunks, strict=True):
            told[row].append(chunk)
        return chunks

    made = queue(plan, n_obs_steps=1, n_action_steps=1, temporal_ensemble_coeff=m)
    for step in range(6):
        if step == 2:
            made.reset(np.array([9]), np.array([1]))
            told[1].clear()
        rows = np.array([1]) if step == 4 else None  # the first waits
        actions = made.step(np.zeros((2 if rows is None else 1, 1), np.float32), rows)
        expected = [by_hand(told[k], m) for k in ([0, 1] if rows is None else rows)]
        np.testing.assert_allclose(actions, expected, atol=1e-6)
        assert actions.dtype == np.float32


def test_chunks_are_blended_only_where_every_step_decides():
    with pytest.raises(
        ValueError,
        match=r"temporal_ensemble_coeff=0.01.* one action of each chunk.*n_action_steps=2",
    ):
        Spec((3,), 2, chunk_size=4, n_action_steps=2, temporal_ensemble_coeff=0.01)
    told = Spec((3,), 2, chunk_size=4, temporal_ensemble_coeff=0.01).to_json()
    assert Spec.from_json(told).temporal_ensemble_coeff == 0.01
    told.pop("temporal_ensemble_coeff")  # as in older bundles
    assert Spec.from_json(told).temporal_ensemble_coeff is None

"""The executor of chunk policies, and the noise for their chunks."""

import numpy as np
import pytest

from policies import noise
from policies.chunks import ChunkExecutor
from policies.spec import Spec


class Planner:
    """A plan whose chunk starts at 100 * oldest + present observation and rises by 0.1 per step."""

    def __init__(self, chunk_size: int = 5) -> None:
        self.chunk_size, self.calls = chunk_size, []

    def __call__(self, observations, noise, rows):
        self.calls.append((observations[..., 0].tolist(), noise, rows.tolist()))
        start = 100 * observations[:, 0, 0] + observations[:, -1, 0]
        return (start[:, None] + np.arange(self.chunk_size) / 10)[..., None].astype(np.float32)


def make_executor(planner, **options):
    executor = ChunkExecutor(planner, **({"n_obs_steps": 2, "n_action_steps": 3} | options))
    executor.reset(np.array([7, 8]))
    return executor


def run_steps(executor, *observations):
    return [executor.step(np.array(o, np.float32)[:, None])[:, 0].tolist() for o in observations]


def test_the_first_observation_fills_the_history_and_later_ones_are_appended():
    planner = Planner()
    run_steps(make_executor(planner, n_obs_steps=3, n_action_steps=1), [1, 2], [3, 4], [5, 6])
    assert [call[0] for call in planner.calls] == [
        [[1, 1, 1], [2, 2, 2]],
        [[1, 1, 3], [2, 2, 4]],
        [[1, 3, 5], [2, 4, 6]],
    ]


def test_n_action_steps_actions_are_executed_before_the_next_chunk_is_predicted():
    planner = Planner()
    actions = run_steps(make_executor(planner), [1, 2], [3, 4], [5, 6], [7, 8], [9, 9])
    first = [[101, 202], [101.1, 202.1], [101.2, 202.2]]  # three of five predicted actions
    second = [[507, 608], [507.1, 608.1]]
    np.testing.assert_allclose(actions, first + second, rtol=1e-5)
    assert len(planner.calls) == 2


def test_a_restarted_episode_gets_a_new_chunk_without_the_old_history():
    planner = Planner()
    executor = make_executor(planner)
    run_steps(executor, [1, 2], [3, 4])
    executor.reset(np.array([9]), np.array([1]))
    assert run_steps(executor, [5, 60])[0][1] == 6060
    assert planner.calls[-1][2] == [1]
    run_steps(executor, [7, 70])
    assert planner.calls[-1][2] == [0]  # the two episodes now predict chunks at different steps


def test_noise_is_a_function_of_the_episodes_seed_and_the_number_of_chunks():
    planner = Planner()
    executor = make_executor(planner, n_action_steps=1, noise_shape=(4, 3))
    run_steps(executor, [1, 2], [3, 4])
    first, second = planner.calls[0][1], planner.calls[1][1]
    assert first.shape == (2, 4, 3)
    expected = np.random.Generator(np.random.Philox(key=[8, 1])).standard_normal((4, 3), np.float32)
    np.testing.assert_array_equal(second[1], expected)
    executor.reset(np.array([8]), np.array([0]))
    run_steps(executor, [0, 0], [0, 0])
    np.testing.assert_array_equal(planner.calls[-1][1][0], expected)  # independent of the row
    everything = np.concatenate([first, second]).reshape(4, -1)
    assert len(np.unique(everything.round(6))) == everything.size


def test_the_noise_of_a_deterministic_policy_is_empty():
    assert noise.normal(np.array([1, 2]), np.array([0, 0]), (0,)).shape == (2, 0)


def test_predict_chunk_returns_the_complete_chunk_at_any_time():
    planner = Planner()
    executor = make_executor(planner)
    executor.observe(np.array([[1.0], [2.0]]))
    executor.observe(np.array([[3.0], [4.0]]))
    chunk = executor.predict_chunk(np.array([1]))
    assert chunk.shape == (1, 5, 1)
    assert chunk[0, 0, 0] == 204
    assert executor.decisions.tolist() == [0, 1]


def average_by_hand(chunks: list[np.ndarray], m: float) -> np.ndarray:
    """Return the weighted mean of all predictions for the last step. chunks: one per step."""
    last = len(chunks) - 1
    predictions = [chunk[last - k] for k, chunk in enumerate(chunks) if last - k < len(chunk)]
    weights = np.exp(-m * np.arange(len(predictions)))  # the oldest prediction first
    return (weights[:, None] * np.stack(predictions)).sum(0) / weights.sum()


@pytest.mark.parametrize("m", [0.0, 0.01, 0.7])
def test_temporal_ensembling_takes_the_weighted_mean_of_all_predictions_for_a_step(m: float):
    """Two episodes with chunks of three. The second one restarts at the third step."""
    draw, chunks_of = np.random.default_rng(0), [list[np.ndarray](), list[np.ndarray]()]

    def plan(observations, noise, rows):
        chunks = draw.normal(size=(len(rows), 3, 2)).astype(np.float32)
        for row, chunk in zip(rows, chunks, strict=True):
            chunks_of[row].append(chunk)
        return chunks

    executor = make_executor(plan, n_obs_steps=1, n_action_steps=1, temporal_ensemble_coeff=m)
    for step in range(6):
        if step == 2:
            executor.reset(np.array([9]), np.array([1]))
            chunks_of[1].clear()
        rows = np.array([1]) if step == 4 else None  # the first episode makes no step
        actions = executor.step(np.zeros((2 if rows is None else 1, 1), np.float32), rows)
        expected = [average_by_hand(chunks_of[k], m) for k in ([0, 1] if rows is None else rows)]
        np.testing.assert_allclose(actions, expected, atol=1e-6)
        assert actions.dtype == np.float32


def test_temporal_ensembling_needs_a_prediction_at_every_step():
    with pytest.raises(
        ValueError, match=r"temporal_ensemble_coeff=0.01 .* requires n_action_steps=1, not 2"
    ):
        Spec((3,), 2, chunk_size=4, n_action_steps=2, temporal_ensemble_coeff=0.01)
    values = Spec((3,), 2, chunk_size=4, temporal_ensemble_coeff=0.01).to_json()
    assert Spec.from_json(values).temporal_ensemble_coeff == 0.01

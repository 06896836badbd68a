"""Running episodes of a policy: history, chunks, memory and noise."""

import numpy as np
import pytest

from policies import noise
from policies.episodes import RunningEpisodes
from policies.spec import Spec


class Policy:
    """A policy with chunks of 100 * oldest + present observation + 0.1 * step."""

    def __init__(self, chunk_size: int = 5) -> None:
        self.chunk_size, self.calls = chunk_size, []

    def __call__(self, observations, memory, noise, rows):
        self.calls.append((observations[..., 0].tolist(), noise, rows.tolist()))
        start = 100 * observations[:, 0, 0] + observations[:, -1, 0]
        chunks = start[:, None] + np.arange(self.chunk_size) / 10
        return chunks[..., None].astype(np.float32), memory


def make_episodes(policy, **options):
    episodes = RunningEpisodes(policy, **({"n_obs_steps": 2, "n_action_steps": 3} | options))
    episodes.reset(np.array([7, 8]))
    return episodes


def run_steps(episodes, *observations):
    return [episodes.step(np.array(o, np.float32)[:, None])[:, 0].tolist() for o in observations]


def test_the_first_observation_fills_the_history_and_later_ones_are_appended():
    policy = Policy()
    run_steps(make_episodes(policy, n_obs_steps=3, n_action_steps=1), [1, 2], [3, 4], [5, 6])
    assert [call[0] for call in policy.calls] == [
        [[1, 1, 1], [2, 2, 2]],
        [[1, 1, 3], [2, 2, 4]],
        [[1, 3, 5], [2, 4, 6]],
    ]


def test_n_action_steps_actions_are_executed_before_the_next_chunk_is_predicted():
    policy = Policy()
    actions = run_steps(make_episodes(policy), [1, 2], [3, 4], [5, 6], [7, 8], [9, 9])
    first = [[101, 202], [101.1, 202.1], [101.2, 202.2]]  # three of five predicted actions
    second = [[507, 608], [507.1, 608.1]]
    np.testing.assert_allclose(actions, first + second, rtol=1e-5)
    assert len(policy.calls) == 2


def test_a_restarted_episode_gets_a_new_chunk_without_the_old_history():
    policy = Policy()
    episodes = make_episodes(policy)
    run_steps(episodes, [1, 2], [3, 4])
    episodes.reset(np.array([9]), np.array([1]))
    assert run_steps(episodes, [5, 60])[0][1] == 6060
    assert policy.calls[-1][2] == [1]
    run_steps(episodes, [7, 70])
    assert policy.calls[-1][2] == [0]  # the two episodes now predict chunks at different steps


def test_noise_is_a_function_of_the_episodes_seed_and_the_number_of_chunks():
    policy = Policy()
    episodes = make_episodes(policy, n_action_steps=1, noise_shape=(4, 3))
    run_steps(episodes, [1, 2], [3, 4])
    first, second = policy.calls[0][1], policy.calls[1][1]
    assert first.shape == (2, 4, 3)
    expected = np.random.Generator(np.random.Philox(key=[8, 1])).standard_normal((4, 3), np.float32)
    np.testing.assert_array_equal(second[1], expected)
    episodes.reset(np.array([8]), np.array([0]))
    run_steps(episodes, [0, 0], [0, 0])
    np.testing.assert_array_equal(policy.calls[-1][1][0], expected)  # independent of the row
    everything = np.concatenate([first, second]).reshape(4, -1)
    assert len(np.unique(everything.round(6))) == everything.size


def test_the_restart_of_an_episode_does_not_change_the_noise_of_the_others():
    policy = Policy()
    episodes = make_episodes(policy, n_action_steps=1, noise_shape=(2,))
    run_steps(episodes, [1, 2], [3, 4])
    episodes.reset(np.array([9]), np.array([1]))
    run_steps(episodes, [5, 6])
    for row, key in enumerate([[7, 2], [9, 0]]):  # seed and number of the decision
        expected = np.random.Generator(np.random.Philox(key=key)).standard_normal(2, np.float32)
        np.testing.assert_array_equal(policy.calls[-1][1][row], expected)


def test_the_noise_of_a_deterministic_policy_is_empty():
    assert noise.normal(np.array([1, 2]), np.array([0, 0]), (0,)).shape == (2, 0)


def test_predict_chunk_returns_the_complete_chunk_at_any_time():
    policy = Policy()
    episodes = make_episodes(policy)
    episodes.observe(np.array([[1.0], [2.0]]))
    episodes.observe(np.array([[3.0], [4.0]]))
    chunk = episodes.predict_chunk(np.array([1]))
    assert chunk.shape == (1, 5, 1)
    assert chunk[0, 0, 0] == 204
    assert episodes.decisions.tolist() == [0, 1]


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

    def decide(observations, memory, noise, rows):
        chunks = draw.normal(size=(len(rows), 3, 2)).astype(np.float32)
        for row, chunk in zip(rows, chunks, strict=True):
            chunks_of[row].append(chunk)
        return chunks, memory

    episodes = make_episodes(decide, n_obs_steps=1, n_action_steps=1, temporal_ensemble_coeff=m)
    for step in range(6):
        if step == 2:
            episodes.reset(np.array([9]), np.array([1]))
            chunks_of[1].clear()
        rows = np.array([1]) if step == 4 else None  # the first episode makes no step
        actions = episodes.step(np.zeros((2 if rows is None else 1, 1), np.float32), rows)
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


class Counter:
    """A policy whose actions are the number of its decisions plus the sum of all rewards."""

    def initial_memory(self, count: int) -> dict[str, np.ndarray]:
        return {"total": np.zeros((count, 1), np.float32), "rewards": np.zeros(count, np.float32)}

    def decide(self, observations, memory, noise, rows):
        total = memory["total"] + 1 + memory["rewards"][:, None]
        return np.repeat(total[:, None], 2, 1), memory | {"total": total}


def count(n_action_steps: int = 2) -> RunningEpisodes:
    policy = Counter()
    episodes = RunningEpisodes(
        policy.decide, policy.initial_memory, n_obs_steps=2, n_action_steps=n_action_steps
    )
    episodes.reset(np.array([7, 8]))
    return episodes


def test_the_memory_changes_with_each_decision_of_its_episode_only():
    """The second episode restarts after three steps, and does not make the fifth step."""
    episodes, nothing = count(), np.zeros((2, 1), np.float32)
    assert episodes.step(nothing)[:, 0].tolist() == [1, 1]
    episodes.add_rewards(np.array([10.0, 100.0]))
    episodes.step(nothing)
    episodes.add_rewards(np.array([1.0, 1.0]))  # a decision gets the sum of both steps
    assert episodes.step(nothing)[:, 0].tolist() == [13, 103]
    episodes.reset(np.array([9]), np.array([1]))
    episodes.add_rewards(np.array([5.0, 5.0]))  # a new episode has no rewards yet
    assert episodes.step(nothing)[:, 0].tolist() == [13, 1]
    assert episodes.step(nothing[:1], np.array([0]))[:, 0].tolist() == [19]
    assert episodes.step(nothing)[:, 0].tolist() == [19, 1]


def test_a_fork_continues_without_changing_the_original():
    episodes, nothing = count(1), np.ones((2, 1), np.float32)
    episodes.step(nothing)
    before = episodes.state(np.arange(2))
    first, second = episodes.fork(), episodes.fork()
    assert first.step(2 * nothing).tolist() == second.step(2 * nothing).tolist() == [[2], [2]]
    after = episodes.state(np.arange(2))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    assert first.state(np.array([0]))["observations"].ravel().tolist() == [1, 2]


def test_stored_episodes_continue_like_the_original():
    episodes, other, nothing = count(), count(), np.ones((2, 1), np.float32)
    for _ in range(3):
        episodes.step(nothing)
        episodes.add_rewards(np.array([1.0, 2.0]))
    for rows in (np.array([0]), np.array([1])):
        other.load(rows, episodes.state(rows))
    for _ in range(3):
        np.testing.assert_array_equal(episodes.step(nothing), other.step(nothing))


def test_stored_episodes_continue_their_temporal_ensemble():
    """The predictions before the copy are 0 and 10, and those after it are 20: means by hand."""
    options = {"n_obs_steps": 1, "n_action_steps": 1, "temporal_ensemble_coeff": 0.0}
    values = iter([0, 10, 20, 20])

    def decide(observations, memory, noise, rows):
        return np.full((len(rows), 3, 1), next(values), np.float32), memory

    episodes, other = make_episodes(decide, **options), make_episodes(decide, **options)
    assert run_steps(episodes, [0, 0], [0, 0]) == [[0, 0], [5, 5]]
    other.load(np.arange(2), episodes.state(np.arange(2)))
    assert run_steps(other, [0, 0]) == [[10, 10]]
    assert run_steps(episodes, [0, 0]) == [[10, 10]]

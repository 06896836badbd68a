"""Tests of Dataset: episodes, next observations, returns and selection of episodes."""

from dataclasses import replace

import numpy as np
import pytest
from d4rl_files import steps, two_episodes, with_next

from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError


def from_d4rl(arrays: dict[str, np.ndarray]) -> Dataset:
    words = {"terminals": "terminated", "timeouts": "truncated"}
    return Dataset.from_arrays(**{words.get(key, key): value for key, value in arrays.items()})


def episodes(lengths: list[int], rewards: list[float]) -> Dataset:
    """Return episodes that time out, each with a constant reward."""
    arrays = steps(sum(lengths))
    arrays["rewards"] = np.repeat(np.float32(rewards), lengths)
    arrays["timeouts"][np.cumsum(lengths) - 1] = True
    return from_d4rl(with_next(arrays))


def test_without_next_observations_only_the_time_out_row_is_lost():
    data = from_d4rl(two_episodes())
    assert (data.num_rows, data.usable.sum()) == (1003, 3 + 999)
    assert data.terminated.sum() == 1
    assert not data.usable[1002]
    with pytest.raises(UserError, match="next observation of 1 time-out rows"):
        data.next_observations


def test_with_next_observations_the_time_out_row_stays_and_bootstraps():
    arrays = with_next(two_episodes())
    data = from_d4rl(arrays)
    assert data.usable.sum() == 3 + 1000
    assert np.flatnonzero(data.terminated).tolist() == [2]
    np.testing.assert_array_equal(data.next_observations, arrays["next_observations"])


def test_next_observations_are_stored_only_where_they_are_not_the_next_row():
    data = from_d4rl(with_next(two_episodes()))
    assert len(data.observations) == 1003 + 2


def test_a_next_observation_that_differs_from_the_next_row_is_kept():
    arrays = with_next(two_episodes())
    arrays["next_observations"][500] += 1
    np.testing.assert_array_equal(from_d4rl(arrays).next_observations, arrays["next_observations"])


def test_an_end_remains_an_end_if_the_next_episode_begins_in_the_same_state():
    arrays = with_next(two_episodes())
    arrays["next_observations"][2] = arrays["observations"][3]
    assert from_d4rl(arrays).next_index[2] >= 1003


def test_final_observations_are_equivalent_to_next_observations():
    arrays = with_next(two_episodes())
    after = arrays.pop("next_observations")
    data = from_d4rl(arrays | {"final_observations": after[[2, 1002]]})
    np.testing.assert_array_equal(data.next_observations, after)


def test_no_successor_lies_in_another_episode():
    data = from_d4rl(two_episodes())
    episode = np.repeat(np.arange(data.num_episodes), data.episode_lengths())
    inside = data.next_index[data.usable]
    np.testing.assert_array_equal(episode[inside], episode[data.usable])


def test_a_last_row_without_flag_is_truncated():
    data = from_d4rl(steps(5))
    assert data.truncated.tolist() == [False] * 4 + [True]
    assert not data.usable[4]


def test_the_callers_arrays_are_not_changed():
    arrays = steps(5)
    arrays["actions"][0, 0] = 1 + 5e-7
    before = {key: array.copy() for key, array in arrays.items()}
    data = from_d4rl(arrays)
    assert data.actions.max() == 1
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, before[key])


def test_episodes_and_returns_of_a_hand_made_case():
    arrays = steps(6)
    arrays["rewards"] = np.float32([1, 2, 3, 10, 20, 100])
    arrays["terminals"][2] = arrays["timeouts"][4] = True
    data = from_d4rl(arrays)
    assert data.episode_starts.tolist() == [0, 3, 5]
    assert data.episode_ends.tolist() == [2, 4, 5]
    assert data.episode_lengths().tolist() == [3, 2, 1]
    assert data.episode_returns().tolist() == [6, 30, 100]
    assert data.monte_carlo_returns(0.5).tolist() == [2.75, 3.5, 3, 20, 20, 100]
    s = data.summary()
    assert (s.rows, s.usable, s.episodes, s.terminated, s.truncated) == (6, 4, 3, 1, 2)
    assert (s.length_min, s.length_mean, s.length_max) == (1, 2, 3)
    assert s.return_std == pytest.approx(np.std([6, 30, 100]))


def test_monte_carlo_returns_equal_the_recursion():
    data = episodes([7, 1, 30, 12], [1, -2, 0.5, 3])
    expected = np.zeros(data.num_rows)
    ends = data.terminated | data.truncated
    for t in reversed(range(data.num_rows)):
        expected[t] = data.rewards[t] + (0 if ends[t] else 0.9 * expected[t + 1])
    np.testing.assert_allclose(data.monte_carlo_returns(0.9), expected, rtol=1e-6)


def test_monte_carlo_returns_use_the_tail_after_a_truncation_but_not_after_a_termination():
    data = episodes([3, 2, 1], [1, 10, 100])
    ended = np.arange(6) == 4  # the second episode
    data = replace(data, terminated=ended, truncated=data.truncated & ~ended)
    returns = data.monte_carlo_returns(0.5, np.array([8.0, 16.0, 32.0]))
    np.testing.assert_allclose(returns, [1 + 0.5 * 3.5, 1 + 0.5 * 5, 1 + 0.5 * 8, 15, 10, 116])


def test_returns_are_summed_in_double_precision():
    """Float32 sums of 0.1 over 100,000 steps are off by more than 1e-4."""
    total = episodes([100_000], [0.1]).episode_returns()[0]
    assert abs(float(total) - 100_000 * float(np.float32(0.1))) < 1e-6


def test_top_episodes_keeps_the_best_tenth_of_trajectories_in_file_order():
    returns = list(range(20))
    returns[3], returns[19] = 100, -5
    best = episodes([2] * 20, returns).top_episodes(0.1)
    assert best.episode_returns().tolist() == [200, 36]
    assert best.num_rows == 4
    assert best.usable.all()


def test_top_timesteps_stays_below_the_share_of_rows():
    """10 of 20 rows: 6 fit, 6 + 4 is not below 10 (kzl/decision-transformer's rule)."""
    data = episodes([4, 6, 10], [2, 3, 0])
    assert data.top_timesteps(0.5).episode_lengths().tolist() == [6]
    assert data.top_timesteps(0.55).episode_lengths().tolist() == [4, 6]
    assert data.top_timesteps(0.01).episode_lengths().tolist() == [6]


def test_the_best_trajectories_and_the_best_timesteps_are_different_sets():
    data = episodes([1] * 9 + [100], [1] * 9 + [1])
    assert data.top_episodes(0.1).num_rows == 100
    data = episodes([100] * 9 + [1], [0] * 9 + [1])
    assert data.top_episodes(0.1).num_rows == 1
    assert data.top_timesteps(0.2).num_rows == 101


@pytest.mark.parametrize("fraction", [0, -1, 1.5, float("nan")])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float):
    with pytest.raises(UserError, match="is out of range"):
        episodes([2, 2], [0, 1]).top_episodes(fraction)


def test_a_fraction_of_less_than_one_episode_is_refused():
    with pytest.raises(UserError, match="less than one"):
        episodes([2, 2], [0, 1]).top_episodes(0.1)


def test_chosen_episodes_keep_their_transitions():
    arrays = with_next(two_episodes()) | {"extras": {"costs": np.arange(1003.0)}}
    data = from_d4rl(arrays)
    chosen = data.select([1])
    np.testing.assert_array_equal(chosen.next_observations, data.next_observations[3:])
    np.testing.assert_array_equal(chosen.extras["costs"], np.arange(3.0, 1003))
    assert len(chosen.observations) == 1001


def test_scalars_in_columns_and_other_number_types_are_converted():
    a = steps(4)
    data = Dataset.from_arrays(
        a["observations"].astype(np.float64),
        a["actions"].astype(np.float64),
        a["rewards"][:, None],
        np.array([[0], [0], [0], [1]]),
    )
    assert data.observations.dtype == data.actions.dtype == data.rewards.dtype == np.float32
    assert data.rewards.shape == data.terminated.shape == (4,)
    assert data.terminated.dtype == data.truncated.dtype == bool


def test_images_stay_uint8():
    a = steps(4)
    images = np.zeros((4, 3, 8, 8), np.uint8)
    data = Dataset.from_arrays(images, a["actions"], a["rewards"], a["terminals"])
    assert data.observations.dtype == np.uint8


def test_numbers_too_large_for_float32_are_refused():
    a = steps(4)
    a["rewards"] = np.array([0, 1e300, 0, 0])
    with pytest.raises(UserError, match="rewards has inf first in row 1"):
        from_d4rl(a)


@pytest.mark.parametrize("units", [{"action_scale": 4}, {"action_range": [-4, 4]}])
def test_arrays_may_have_d4rls_names_and_actions_in_other_units(units: dict) -> None:
    rng = np.random.default_rng(0)
    s, a = rng.normal(size=(6, 3)), rng.uniform(-1, 1, (6, 2))
    ends = np.arange(6) == 2, np.arange(6) == 5
    data = Dataset.from_arrays(s, 4 * a, np.ones(6), terminals=ends[0], timeouts=ends[1], **units)
    np.testing.assert_allclose(data.actions, a, rtol=1e-6)
    assert (data.terminated == ends[0]).all()
    assert (data.truncated == ends[1]).all()
    assert data.spec is not None
    assert (data.spec.action_low, data.spec.action_high) == ((-4, -4), (4, 4))


def of_actions(actions: np.ndarray, **units: object) -> Dataset:
    count = len(actions)
    rewards, ends = np.zeros(count), np.arange(count) == count - 1
    return Dataset.from_arrays(np.zeros((count, 1)), actions, rewards, ends, **units)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float64])
@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"action_scale": 2}, [0, 0.5, 1]),
        ({"action_scale": 4}, [0, 0.25, 0.5]),
        ({"action_range": [0, 2]}, [-1, 0, 1]),
        ({"action_range": "data"}, [-1, 0, 1]),
    ],
)
def test_integer_actions_with_a_range_are_continuous_in_its_units(dtype, units, expected):
    data = of_actions(np.array([[0], [1], [2]], dtype), **units)
    assert data.actions.dtype == np.float32
    assert data.actions[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_one_dimensional_actions_are_refused_with_any_range(dtype):
    for units in ({"action_scale": 2}, {"action_range": [0, 2]}, {"action_range": "data"}):
        with pytest.raises(UserError, match=r"actions have shape \[3\]; \[N, A\] is expected"):
            of_actions(np.array([0, 1, 2], dtype), **units)


def test_negative_integer_actions_are_continuous():
    data = of_actions(np.array([[-1], [0], [1]]))
    assert data.actions.dtype == np.float32
    assert data.actions[:, 0].tolist() == [-1, 0, 1]


def test_bfloat16_keeps_its_range():
    torch = pytest.importorskip("torch")
    large = torch.tensor([[2.0**17], [1.0]], dtype=torch.bfloat16)  # more than float16 holds
    assert of_actions(large, action_scale=2.0**17).actions[0, 0] == 1


def test_actions_outside_the_given_range_are_refused_in_its_units():
    with pytest.raises(UserError, match=r"column 1 reaches from 0 to 5, .* limits are -4 and 4"):
        of_actions(np.array([[0.0, 5], [1, 0]]), action_scale=4)


def test_actions_beyond_1_by_rounding_are_clipped_with_a_note():
    """Float16 and bfloat16 have 11 and 8 significant bits; float32 errors are not worth a note."""
    for action, note in ((1 + 2e-6, ""), (1 + 2**-10, "up to 0.1%"), (1 + 2**-7, "0.8%")):
        data = of_actions(np.array([[-0.98], [action]]))
        assert data.actions.tolist() == [[np.float32(-0.98)], [1]]
        assert (note in " ".join(data.notes)) if note else not data.notes
    for options in ({}, {"action_range": [-1, 1]}):
        with pytest.raises(UserError, match=r"from -0\.98 to 1\.01.* clip the"):
            of_actions(np.array([[-0.98], [1.01]]), **options)
    data = of_actions(np.array([[-0.97], [1 + 2**-10]]), action_range=[-1, 1])
    assert data.actions.max() == 1

"""Progress rewards and falls of progress, on episodes whose values are known in closed form."""

from itertools import combinations

import numpy as np
import pytest

from offline_rl.data import Dataset
from offline_rl.data.augment.progress import find_successes, label_progress, largest_falls
from offline_rl.utils.errors import UserError

REWARDS = [0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 1]  # three episodes: rows 0-4, 5-7, 8-10
ENDS = np.isin(np.arange(11), [4, 7, 10])


def demonstrations(*, next_observations: bool = True, **extras) -> Dataset:
    """Return three episodes; the observation of row t is t, and the last one's next is t + 0.5."""
    rows = np.arange(11.0)[:, None]
    following = np.where(ENDS[:, None], rows + 0.5, rows + 1) if next_observations else None
    columns = np.zeros((11, 1)), np.array(REWARDS), np.zeros(11), ENDS
    return Dataset.from_arrays(
        rows, *columns, following, extras={k: np.array(v) for k, v in extras.items()}
    )


def test_the_task_ends_where_the_last_run_of_successes_begins():
    success, ends = find_successes(demonstrations(), 1.0)
    assert success.tolist() == [True, False, True]
    assert ends.tolist() == [3, 7, 10]


def test_an_episode_of_successes_alone_ends_its_task_in_its_own_first_row():
    zeros = np.zeros((5, 1))
    rewards, ends = np.array([0, 1, 1, 1, 1]), np.isin(np.arange(5), [1, 4])
    success, last = find_successes(Dataset.from_arrays(zeros, zeros, rewards, ends), 1.0)
    assert (success.tolist(), last.tolist()) == ([True, True], [1, 2])


def test_without_a_reward_of_success_every_episode_succeeds_at_its_end():
    success, ends = find_successes(demonstrations(), None)
    assert success.all()
    assert ends.tolist() == [4, 7, 10]


@pytest.mark.parametrize("next_observations", [True, False])
def test_the_return_of_a_frame_is_gamma_to_the_steps_until_success(next_observations):
    data = label_progress(demonstrations(next_observations=next_observations), 1.0)
    assert data.observations[: data.num_rows, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    expected = [0.9**3, 0.9**2, 0.9, 1, 0, 0, 0, 0.9**2, 0.9, 1]
    np.testing.assert_allclose(data.monte_carlo_returns(0.9), expected, rtol=1e-6)
    assert np.flatnonzero(data.terminated).tolist() == [3, 6, 9]
    assert not data.truncated.any()
    assert data.usable.all()


def test_a_retry_adds_the_attempt_before_it_as_a_failure():
    retry = [0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0]  # the one in row 6 is in a failed episode
    data = label_progress(demonstrations(retry=retry), 1.0, "retry")
    added = slice(10, None)
    assert data.observations[10 : data.num_rows, 0].tolist() == [0, 1, 2, 8, 9]
    assert data.rewards[added].tolist() == [0] * 5
    assert data.terminated[added].tolist() == [False, False, True, False, True]
    following = data.observations[data.next_index[added], 0]
    assert following[[0, 1, 3]].tolist() == [1, 2, 9]


def test_a_retry_at_the_end_of_the_task_or_after_it_is_no_failure():
    retry = [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1]  # the tasks end in rows 3 and 10
    assert label_progress(demonstrations(retry=retry), 1.0, "retry").num_rows == 10


def test_a_data_set_without_success_or_without_the_column_is_refused():
    with pytest.raises(UserError, match="no episode ends with a reward of at least 2"):
        label_progress(demonstrations(), 2.0)
    with pytest.raises(UserError, match="has no column 'retry', only cost"):
        label_progress(demonstrations(cost=np.zeros(11)), None, "retry")


@pytest.mark.parametrize("window", [1, 3, 20])
def test_falls_are_the_largest_differences_between_an_earlier_and_a_later_frame(window):
    data = demonstrations()
    values = np.random.default_rng(window).uniform(size=11)
    falls = largest_falls(values, data, window)
    for start, end in ((0, 4), (5, 7), (8, 10)):
        for row in range(start, end + 1):
            frames = values[row : min(row + window, end) + 1]
            pairs = [i - j for i, j in combinations(frames, 2)]
            assert falls[row] == pytest.approx(max([0.0, *pairs]))


def test_progress_that_rises_has_no_falls():
    assert not largest_falls(np.arange(11.0), demonstrations(), 5).any()

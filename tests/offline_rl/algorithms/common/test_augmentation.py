"""New episodes and weights of episodes for policies conditioned on a return and a cost."""

import numpy as np
import pytest

from offline_rl.algorithms.common.safety.augmentation import (
    Targets,
    append_episodes,
    assign,
    best_returns,
    frequent_episodes,
    make_targets,
)
from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError


def episodes(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return costs and returns of random episodes; higher costs allow higher returns."""
    random = np.random.default_rng(1)
    costs = random.integers(0, 30, count).astype(np.float64)
    return costs, 10 * costs * random.random(count)


def test_new_episodes_repeat_near_steps_of_no_higher_cost() -> None:
    """One of the pairs with the same nearest episode has it, others have one of similar return."""
    costs, returns = episodes()
    own, random = np.stack([costs, returns], 1), np.random.default_rng(0)
    new = np.stack([random.uniform(0, 30, 40), random.uniform(150, 400, 40)], 1)
    found = assign(own, new, 25.0, np.random.RandomState(0))
    nearest = []
    for cost, value in new:
        allowed = [k for k in range(60) if costs[k] <= cost]
        nearest.append(min(allowed, key=lambda k: np.hypot(costs[k] - cost, returns[k] - value)))
    assert len({*nearest}) < 40
    for k in {*nearest}:
        group = [found[j] for j in range(40) if nearest[j] == k]
        assert group[0] == k
        assert all(costs[x] <= costs[k] and returns[x] >= returns[k] - 25 for x in group)
    released = assign(own, new, 25.0, np.random.RandomState(0), as_released=True)
    assert sorted(released) == sorted(found)  # the same episodes, for other pairs
    assert (released != found).any()


def test_new_returns_are_above_a_polynomial_through_the_best_episodes() -> None:
    """The best returns are 10 times the cost plus 5, and all costs occur four times."""
    costs = np.repeat(np.arange(21.0), 4)
    returns = 10 * costs + 5
    options = {"share": 0.5, "degree": 1, "max_return": 400.0}
    new = make_targets(costs, returns, min_gain=7.0, max_decrease=20.0, **options)
    np.testing.assert_allclose(new.costs, np.linspace(0, 20, 42))
    assert (new.returns >= 10 * new.costs + 12 - 1e-9).all()
    assert (new.returns <= 400).all()
    assert (costs[new.episodes] <= new.costs).all()
    flat = make_targets(costs, 0 * returns, min_gain=0.0, max_decrease=20.0, **options)
    assert (flat.returns >= 0).all()  # one best episode is a polynomial of degree 0
    np.testing.assert_allclose(flat.costs, new.costs)


def test_rare_episodes_are_left_out_and_frequent_ones_thinned() -> None:
    costs = np.array([0.0] * 15 + [50.0] * 3 + [100.0] * 2)
    kept = frequent_episodes(costs, np.zeros(20), np.random.RandomState(0))
    assert (np.sum(kept < 15), *kept[kept >= 15]) == (10, 15, 16, 17)
    assert len({*kept.tolist()}) == 13
    everything = frequent_episodes(np.arange(4.0), np.arange(4.0), np.random.RandomState(0))
    assert everything.tolist() == [0, 1, 2, 3]


def test_the_best_return_at_each_cost_never_falls() -> None:
    costs, returns = episodes()
    limits, best = best_returns(costs, returns)
    assert len(limits) <= 16
    for limit, value in zip(limits, best, strict=True):
        assert value == returns[costs <= limit].max()


def data() -> Dataset:
    """Return episodes of 2, 3 and 4 steps with costs 0, 3 and 40; the second one terminates."""
    number = np.arange(9, dtype=np.float32)
    ends = np.isin(number, [1, 4, 8])
    terminated = number == 4
    return Dataset.from_arrays(
        number[:, None],
        number[:, None] / 10,
        number,
        terminated,
        ends & ~terminated,
        number[:, None] + 0.5,
        extras={"costs": np.array([0, 0, 1, 1, 1, 10, 10, 10, 10], np.float32)},
    )


def test_new_episodes_have_the_steps_of_their_episode_and_offsets_of_their_targets() -> None:
    new = Targets(np.array([1, 1, 0]), np.array([2.0, 5.0, 1.0]), np.array([20.0, 9.0, 0.0]))
    more = append_episodes(data(), new, 30.0)
    numbers = [*range(9), 2, 3, 4, 2, 3, 4, 0, 1]
    assert more.rewards.tolist() == numbers
    assert more.observations[:17, 0].tolist() == numbers
    assert (more.next_observations[:, 0] == more.observations[:17, 0] + 0.5).all()
    assert more.episode_lengths().tolist() == [2, 3, 4, 3, 3, 2]
    assert more.terminated.tolist() == [x == 4 for x in numbers]
    firsts = more.episode_starts
    # returns 1, 9 and 26, costs 0, 3 and 40
    assert more.extras["return_offset"][firsts].tolist() == [0, 0, 0, 11, 0, -1]
    assert more.extras["cost_offset"][firsts].tolist() == [0, 0, 0, -1, 2, 1]
    weights = more.extras["sampling_weights"]
    np.testing.assert_allclose(weights[firsts] * [2, 3, 4, 3, 3, 2], [30, 27, 0, 28, 25, 29])
    assert (weights[:2] == 15).all()


def test_a_highest_cost_that_excludes_every_episode_is_refused() -> None:
    none = Targets(np.zeros(0, int), np.zeros(0), np.zeros(0))
    expensive = data().select([2])
    with pytest.raises(UserError, match="every episode costs at least 40, and max_episode_cost=40"):
        append_episodes(expensive, none, 40.0)

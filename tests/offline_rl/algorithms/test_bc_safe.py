"""BC-Safe: which episodes are kept, and what is learned from them."""

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import taught

from offline_rl.algorithms.bc_safe import BCSafe, Config, near_frontier, pareto_optimal
from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError
from policies.spec import Spec


def episodes(costs: Any, returns: Any, action: Any = 0.0) -> Dataset:
    """Return a data set of episodes of two steps. The second step has half of cost and return."""
    costs, returns = np.asarray(costs, float), np.asarray(returns, float)
    actions = np.repeat(np.broadcast_to(action, costs.shape), 2)[:, None]
    index, last = np.repeat(np.arange(len(costs)), 2), np.tile([False, True], len(costs))
    halves = [np.repeat(x / 2, 2) for x in (returns, costs)]
    return Dataset.from_arrays(
        index[:, None], actions, halves[0], ~last & last, last, extras={"costs": halves[1]}
    )


def kept_episodes(data: Dataset, **config: Any) -> list[int]:
    part, _ = BCSafe(Spec((1,), 1), Config(**config)).prepare(data)
    return part.observations[part.episode_starts, 0].astype(int).tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("safe", [0, 1, 2]),  # at most 10
        ("risky", [6, 7]),  # at least 20
        ("boundary", [2, 3, 4]),  # above 5, at most 15
    ],
)
def test_whole_episodes_are_kept_by_their_undiscounted_cost(name: str, expected: list[int]):
    data = episodes([0, 5, 10, 11, 15, 16, 20, 40], np.arange(8))
    assert kept_episodes(data, target_cost=10.0, episodes_kept=name) == expected


def test_the_best_of_the_safe_episodes_can_be_kept():
    """`top_fraction` of bc applies to the episodes that are kept."""
    data = episodes([0, 0, 0, 0, 90], [1, 4, 2, 3, 99])
    assert kept_episodes(data, target_cost=1.0, top_fraction=0.5) == [1, 3]


def test_no_episode_within_the_limit_is_refused():
    with pytest.raises(UserError, match=r"safe with target_cost=2 keeps no .* cost 3 to 7\."):
        kept_episodes(episodes([3, 7], [1, 2]), target_cost=2.0)


def test_pareto_optimal_episodes_are_those_that_no_other_surpasses():
    draw = np.random.default_rng(1)
    costs, returns = draw.integers(0, 9, 60).astype(float), draw.integers(0, 20, 60).astype(float)
    expected = [
        not any(
            (c <= costs[k] and r >= returns[k]) and (c, r) != (costs[k], returns[k])
            for c, r in zip(costs, returns, strict=True)
        )
        for k in range(60)
    ]
    assert pareto_optimal(costs, returns).tolist() == expected
    assert 1 < sum(expected) < 60


# Costs and returns of 50 episodes. The released function removes these four
# (liuzuxin/OSRL:osrl/common/dataset.py at 03a4586, with OApackage 2.7).
COSTS = [5, 7, 7, 4, 7, 7, 7, 0, 3, 4, 2, 3, 5, 6, 4, 1, 5, 6, 1, 4, 2, 7, 0, 3, 7]
COSTS += [3, 1, 6, 7, 7, 7, 2, 5, 7, 4, 7, 4, 1, 3, 4, 2, 5, 3, 7, 1, 5, 0, 1, 4, 3]
RETURNS = [49, 56, 55, 52, 52, 56, 57, 27, 49, 50, 46, 49, 50, 53, 50, 41, 54, 53, 39, 48]
RETURNS += [43, 56, 30, 51, 55, 47, 41, 53, 56, 56, 58, 42, 55, 56, 50, 58, 51, 42, 48, 50]
RETURNS += [45, 50, 50, 55, 37, 56, 30, 38, 54, 47]
REMOVED = [0, 12, 19, 41]


def test_the_episodes_near_the_frontier_are_those_of_the_released_code():
    mask = near_frontier(np.array(COSTS, float), np.array(RETURNS, float))
    assert np.flatnonzero(~mask).tolist() == REMOVED


def test_on_a_straight_frontier_episodes_within_a_fifth_of_the_range_are_kept():
    """The frontier is R = 10 C and the range of returns is 40, so the last one is 8 below it."""
    data = episodes([0, 1, 2, 3, 4, 2, 2, 2], [0, 10, 20, 30, 40, 12.1, 11.9, 5])
    assert kept_episodes(data, target_cost=1.0, episodes_kept="frontier") == [0, 1, 2, 3, 4, 5]
    assert BCSafe.uses_rewards(Config(target_cost=1.0, episodes_kept="frontier"))
    assert not BCSafe.uses_rewards(Config(target_cost=1.0))


def test_the_policy_imitates_the_safe_episodes_alone():
    data = episodes([0, 50] * 4, [1, 9] * 4, action=[0.6, -0.6] * 4)
    part, _ = BCSafe(Spec((1,), 1), Config(target_cost=10.0)).prepare(data)
    state = taught(BCSafe, part, num_updates=200, lr=1e-2, hidden=(16,))
    safe = torch.tensor([[0.0], [2.0], [4.0]])
    assert state.policy(safe).flatten().tolist() == pytest.approx([0.6] * 3, abs=0.05)

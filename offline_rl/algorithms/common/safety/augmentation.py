"""Augmentation and weights of episodes for policies conditioned on a return and a cost.

A new episode has a target return that the data does not reach at its cost. It repeats the steps of
the nearest episode that does not cost more. Thus, the policy acts like a good and safe episode if
its target return is impossible within its cost limit. Liu et al., ICML 2023, arXiv:2302.07351,
section 4.

Shapes: E episodes, J new episodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.utils.errors import UserError
from policies import channels

COST_CELLS, RETURN_CELLS = 10, 50  # grid on which rare episodes are left out
KNOTS = 16  # maximum number of costs in a table of best returns
# columns, and the extras of the data that are added to them in new episodes
OFFSETS = {"mc_returns": "return_offset", "mc_costs": "cost_offset"}
RARE, FREQUENT = 2, 10  # cells of at most RARE episodes are dropped; others keep FREQUENT


class Targets(NamedTuple):
    """New episodes: those of the data with other targets."""

    episodes: np.ndarray  # [J], index of the episode with these steps
    costs: np.ndarray  # [J], cost that replaces the episode's own
    returns: np.ndarray  # [J], return that replaces the episode's own


def make_targets(
    costs: np.ndarray,
    returns: np.ndarray,
    *,
    share: float,
    degree: int,
    max_return: float,
    min_gain: float,
    max_decrease: float,
    as_released: bool = False,
    seed: int = 0,
) -> Targets:
    """Return new episodes with evenly spaced costs and returns above those of the data.

    costs, returns: [E], float64, of the data's episodes.  share: J as a share of the episodes.
    degree: degree of the polynomial that approximates the best return at each cost.
    max_return: largest new return.  min_gain: smallest distance of new returns to the polynomial.
    max_decrease, as_released: see `assign`.
    """
    random = np.random.RandomState(seed)
    kept = frequent_episodes(costs, returns, random)
    costs, returns = costs[kept], returns[kept]
    best = pareto_optimal(costs, returns)
    degree = min(degree, len(np.unique(costs[best])) - 1)
    frontier = np.poly1d(np.polyfit(costs[best], returns[best], degree))
    new_costs = np.linspace(costs.min(), costs.max(), int(share * len(costs)))
    new_returns = random.uniform(frontier(new_costs) + min_gain, max_return)
    own, new = np.stack([costs, returns], 1), np.stack([new_costs, new_returns], 1)
    episodes = assign(own, new, max_decrease, random, as_released=as_released)
    return Targets(kept[episodes], new_costs, new_returns)


def frequent_episodes(
    costs: np.ndarray, returns: np.ndarray, random: np.random.RandomState
) -> np.ndarray:
    """Return the indices of the episodes that have others with a similar cost and return.

    If no cell of the grid has more than two episodes, all episodes are returned.
    """
    cells = dict[tuple[float, float], list[int]]()
    indices = [
        np.floor_divide(x - x.min(), np.ptp(x) / count) if np.ptp(x) else np.zeros(len(x))
        for x, count in ((costs, COST_CELLS), (returns, RETURN_CELLS))
    ]
    for episode, cell in enumerate(zip(*indices, strict=True)):
        cells.setdefault(cell, []).append(episode)
    groups = [np.array(group) for group in cells.values() if len(group) > RARE]
    groups = [x if len(x) <= FREQUENT else random.permutation(x)[:FREQUENT] for x in groups]
    return np.concatenate(groups) if groups else np.arange(len(costs))


def assign(
    own: np.ndarray,
    new: np.ndarray,
    max_decrease: float,
    random: np.random.RandomState,
    *,
    as_released: bool = False,
) -> np.ndarray:
    """Return the episode that each new pair of cost and return is assigned to, [J].

    It is the nearest episode that does not cost more. If several pairs have the same nearest
    episode, all but the first one are assigned to random episodes that cost no more than it and
    whose return is at most `max_decrease` lower. Nearer episodes are more likely.
    own: [E, 2], cost and return of each episode.  new: [J, 2].
    as_released: return the episodes in the authors' order, grouped by nearest episode. The order of
    the new pairs differs, so that many of them get the episode of another pair.
    """
    groups = dict[int, list[int]]()  # nearest episode -> its new pairs
    for k, pair in enumerate(new):
        distance = np.hypot(*(own - pair).T)
        nearest = int(np.where(own[:, 0] <= pair[0], distance, np.inf).argmin())
        groups.setdefault(nearest, []).append(k)
    episodes, order = list[int](), list[int]()
    for nearest, pairs in groups.items():
        cost, lowest = own[nearest] - [0, max_decrease]
        others = np.flatnonzero((own[:, 0] <= cost) & (own[:, 1] >= lowest))
        weights = 1 / (np.hypot(*(own[others] - own[nearest]).T) + 1)
        episodes.append(nearest)
        if repeats := len(pairs) - 1:
            drawn = random.choice(len(others), size=repeats, p=weights / weights.sum())
            episodes += others[drawn].tolist()
        order += pairs
    result = np.empty(len(new), np.int64)
    result[np.arange(len(new)) if as_released else order] = episodes
    return result


def pareto_optimal(costs: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Return a mask of the episodes without a better one in cost or return, [E].

    A better episode is at least as good in both and different in one.
    """
    order = np.lexsort((-returns, costs))  # by cost, and by falling return at equal cost
    c, r = costs[order], returns[order]
    first = np.searchsorted(c, c)  # the first episode with this cost has the highest return
    below = np.append(-np.inf, np.maximum.accumulate(r))[first]  # highest return at a lower cost
    mask = np.zeros(len(costs), bool)
    mask[order] = (r == r[first]) & (r > below)
    return mask


def best_returns(
    costs: np.ndarray, returns: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return increasing costs, and the best return of the data within each of these costs."""
    best = pareto_optimal(costs, returns)
    c, first = np.unique(costs[best], return_index=True)
    at = np.unique(np.linspace(0, len(c) - 1, KNOTS).round().astype(int))
    return tuple(c[at].tolist()), tuple(returns[best][first][at].tolist())


def append_episodes(data: Dataset, new: Targets, max_episode_cost: float) -> Dataset:
    """Return the data with the new episodes at its end, and the columns that describe them.

    `sampling_weights`, [N + M]: the weight max(max_episode_cost - cost, 0) of the row's episode,
    divided by its number of rows. `return_offset`, `cost_offset`, [N + M]: what is added to the
    returns- and costs-to-go; 0 in the data's episodes.
    Raises UserError if all weights are 0.
    """
    costs, returns, own = data.episode_costs(), data.episode_returns(), data.episode_lengths()
    lengths = np.append(own, own[new.episodes])
    weights = np.maximum(max_episode_cost - np.append(costs, new.costs), 0) / lengths
    if not weights.any():
        raise UserError(
            f"{data.path or data.name}: every episode costs at least {costs.min():g}, and "
            f"max_episode_cost={max_episode_cost:g} excludes them. Increase "
            "algorithm.max_episode_cost."
        )
    columns = {
        "sampling_weights": weights,
        "return_offset": np.append(0 * returns, new.returns - returns[new.episodes]),
        "cost_offset": np.append(0 * costs, new.costs - costs[new.episodes]),
    }
    starts = data.episode_starts[new.episodes]
    added = [np.arange(a, a + n) for a, n in zip(starts, own[new.episodes], strict=True)]
    count = data.num_rows
    rows = np.concatenate([np.arange(count), *added])
    extra_rows = np.arange(count, channels.size(data.observations))
    after = data.next_index[rows]
    shift = np.where(after < count, np.arange(len(rows)) - rows, len(rows) - count)
    extras = {name: x[rows] for name, x in data.extras.items()}
    extras |= {name: np.repeat(x, lengths).astype(np.float32) for name, x in columns.items()}
    return replace(
        data,
        observations=channels.take(data.observations, np.concatenate([rows, extra_rows])),
        next_index=np.where(after < 0, -1, after + shift),
        actions=data.actions[rows],
        rewards=data.rewards[rows],
        terminated=data.terminated[rows],
        truncated=data.truncated[rows],
        extras=extras,
        continues=None if data.continues is None else data.continues[rows],
    )

"""Additional columns of a batch, and how each is computed from a data set.

An algorithm lists the columns that it requires. A new column needs a field of `Batch`, a function
here, and an entry of `STEPS`, which says how several steps are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Maker = Callable[["Dataset"], np.ndarray]  # preprocessed data -> [N, …]


def costs(data: Dataset) -> np.ndarray:
    """Return the cost of each step, [N]. Raises KeyError if the data has none."""
    return data.extras["costs"]


def next_actions(data: Dataset) -> np.ndarray:
    """Return the next row's action, [N, A]; in an episode's last row its own action."""
    following = np.arange(data.num_rows) + 1
    following[data.episode_ends] -= 1
    return data.actions[following]


def timesteps(data: Dataset) -> np.ndarray:
    """Return the index of each step in its episode, from 0, [N]."""
    starts = np.repeat(data.episode_starts, data.episode_lengths())
    return np.arange(data.num_rows) - starts


def held_out(data: Dataset) -> np.ndarray:
    """Return 1 in all rows of about 20 % of the episodes (validation) and 0 elsewhere, [N].

    A checksum of an episode's first action decides, so that the split needs no random numbers.
    """
    first = np.ascontiguousarray(data.actions[data.episode_starts], np.float32)
    validation = [crc32(action.tobytes()) % 5 == 0 for action in first]
    return np.repeat(np.asarray(validation, np.float32), data.episode_lengths())


_makers = (costs, held_out, next_actions, timesteps)
MAKERS: dict[str, Maker] = {maker.__name__: maker for maker in _makers}
COLUMNS = ("mc_returns", *MAKERS)  # each algorithm defines its own Monte Carlo returns
# The value of a column for an n-step transition or a chunk: that of its first or last step, the
# sum over its steps, or the discounted sum, as for rewards. Costs use the discount of the batch,
# because a cost critic bootstraps with `Batch.discount`; a cost critic with another discount would
# need its own column and discount.
Steps = Literal["first", "last", "sum", "discounted"]
STEPS: dict[str, Steps] = {
    "rewards": "discounted",
    "costs": "discounted",
    "mc_returns": "first",
    "timesteps": "first",
    "held_out": "first",
    "next_actions": "last",
}
# Columns that an environment reports at every step, with their key in `infos`. All other columns
# are computed from complete episodes.
STEP_INFOS = {"costs": "cost"}
OF_ACTIONS = ("next_actions",)  # [N, A]; all others are [N]


def columns(needs: Iterable[str], data: Dataset, mc_returns: Maker) -> dict[str, np.ndarray]:
    """Compute the columns that `needs` lists; "expert" is not a column and is skipped."""
    makers = MAKERS | {"mc_returns": mc_returns}
    return {name: makers[name](data) for name in needs if name != "expert"}


def shapes(needs: Iterable[str], action_dim: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each of these columns."""
    return {name: (action_dim,) * (name in OF_ACTIONS) for name in needs if name != "expert"}

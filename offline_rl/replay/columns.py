"""Additional columns of a batch, and the functions that compute them from a data set.

An algorithm lists the columns that it requires. A new column needs a field in `Batch`, a function
in this file, and an entry in `STEPS`, which defines how several steps are combined.
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
    """Return the action of the next row, [N, A]; the last row of an episode repeats its action."""
    following = np.arange(data.num_rows) + 1
    following[data.episode_ends] -= 1
    return data.actions[following]


def timesteps(data: Dataset) -> np.ndarray:
    """Return the index of each step within its episode, from 0, [N]."""
    starts = np.repeat(data.episode_starts, data.episode_lengths())
    return np.arange(data.num_rows) - starts


def held_out(data: Dataset) -> np.ndarray:
    """Return 1 in all rows of about 20 % of the episodes (validation) and 0 elsewhere, [N].

    An episode is chosen by a checksum of its first action, so that the split needs no random
    numbers.
    """
    first = np.ascontiguousarray(data.actions[data.episode_starts], np.float32)
    validation = [crc32(action.tobytes()) % 5 == 0 for action in first]
    return np.repeat(np.asarray(validation, np.float32), data.episode_lengths())


_makers = (costs, held_out, next_actions, timesteps)
MAKERS: dict[str, Maker] = {maker.__name__: maker for maker in _makers}
COLUMNS = ("mc_returns", *MAKERS)  # each algorithm defines its own Monte Carlo returns
# How the steps of an n-step transition or a chunk give the value of a column: the value of the
# first or last step, the sum, or the discounted sum. Costs are discounted like rewards, because
# cost critics bootstrap with `Batch.discount`. A cost critic with another discount would need a
# column and a discount of its own.
Steps = Literal["first", "last", "sum", "discounted"]
STEPS: dict[str, Steps] = {
    "rewards": "discounted",
    "costs": "discounted",
    "mc_returns": "first",
    "timesteps": "first",
    "held_out": "first",
    "next_actions": "last",
}
# Columns that an environment reports at every step -> key in `infos`. All other columns are
# computed from complete episodes.
STEP_INFOS = {"costs": "cost"}
OF_ACTIONS = ("next_actions",)  # columns [N, A]; all others are [N]


def columns(needs: Iterable[str], data: Dataset, mc_returns: Maker) -> dict[str, np.ndarray]:
    """Compute the columns that `needs` lists; the entry "expert" is no column and is skipped."""
    makers = MAKERS | {"mc_returns": mc_returns}
    return {name: makers[name](data) for name in needs if name != "expert"}


def shapes(needs: Iterable[str], action_dim: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each of these columns."""
    return {name: (action_dim,) * (name in OF_ACTIONS) for name in needs if name != "expert"}

"""The columns of a batch beyond the usual five: one registry, each name with its maker.

An algorithm says which it `needs`; a new column is a field of `Batch`, a function here, and an
entry of `STEPS`, which says what stands for several steps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Maker = Callable[["Dataset"], np.ndarray]  # data as it is learned from -> [N, …]


def costs(data: Dataset) -> np.ndarray:
    """What a step costs, [N]. Raises KeyError where the data does not say."""
    return data.extras["costs"]


def next_actions(data: Dataset) -> np.ndarray:
    """The following row's action, [N, A]; at an episode's end the row's own."""
    following = np.arange(data.num_rows) + 1
    following[data.episode_ends] -= 1
    return data.actions[following]


def timesteps(data: Dataset) -> np.ndarray:
    """A row's place in its episode, from 0, [N]."""
    starts = np.repeat(data.episode_starts, data.episode_lengths())
    return np.arange(data.num_rows) - starts


def held_out(data: Dataset) -> np.ndarray:
    """1 in all rows of about one in five episodes, [N]: which ones, their first action decides."""
    first = np.ascontiguousarray(data.actions[data.episode_starts], np.float32)
    chosen = [crc32(action.tobytes()) % 5 == 0 for action in first]
    return np.repeat(np.asarray(chosen, np.float32), data.episode_lengths())


_made = (costs, held_out, next_actions, timesteps)
MAKERS: dict[str, Maker] = {made.__name__: made for made in _made}
COLUMNS = ("mc_returns", *MAKERS)  # the returns' maker is the algorithm's: what counts differs
# What a transition of several steps, or a chunk, has of a column: the value of its first or last
# step, their sum, or their sum discounted by the batch's discount, as of rewards. Costs are
# discounted so because a cost critic bootstraps by the same `Batch.discount`; one with a discount
# of its own needs a column and a discount of its own.
Steps = Literal["first", "last", "sum", "discounted"]
STEPS: dict[str, Steps] = {
    "rewards": "discounted",
    "costs": "discounted",
    "mc_returns": "first",
    "timesteps": "first",
    "held_out": "first",
    "next_actions": "last",
}
# column -> the key of an environment's infos that has it at every step; all other columns are made
# of whole episodes
TOLD = {"costs": "cost"}
OF_ACTIONS = ("next_actions",)  # [N, A]; all others are [N]


def columns(needs: Iterable[str], data: Dataset, mc_returns: Maker) -> dict[str, np.ndarray]:
    """The columns that `needs` names, but for an expert's batch, which is none."""
    makers = MAKERS | {"mc_returns": mc_returns}
    return {name: makers[name](data) for name in needs if name != "expert"}


def shapes(needs: Iterable[str], action_dim: int) -> dict[str, tuple[int, ...]]:
    """The shape of a row of each of these columns."""
    return {name: (action_dim,) * (name in OF_ACTIONS) for name in needs if name != "expert"}

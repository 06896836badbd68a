"""The columns of a batch beyond the usual five: one registry, each name with its maker.

An algorithm says which it `needs`; a new column is a function here, its name among `MAKERS`, and a
field of `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Maker = Callable[["Dataset"], np.ndarray]  # data as it is learnt from -> [N, …]


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


MAKERS: dict[str, Maker] = {made.__name__: made for made in (costs, next_actions, timesteps)}
COLUMNS = ("mc_returns", *MAKERS)  # the returns' maker is the algorithm's: what counts differs
OF_ACTIONS = ("next_actions",)  # [N, A]; all others are [N]


def columns(needs: Iterable[str], data: Dataset, mc_returns: Maker) -> dict[str, np.ndarray]:
    """The columns that `needs` names, but for an expert's batch, which is none."""
    makers = MAKERS | {"mc_returns": mc_returns}
    return {name: makers[name](data) for name in needs if name != "expert"}


def shapes(needs: Iterable[str], action_dim: int) -> dict[str, tuple[int, ...]]:
    """The shape of a row of each of these columns."""
    return {name: (action_dim,) * (name in OF_ACTIONS) for name in needs if name != "expert"}

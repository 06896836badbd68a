"""Columns of a batch besides observations and actions: one declaration for each.

An algorithm lists the columns that it requires. A new column needs an entry in `COLUMNS` and a
field of `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Maker = Callable[["Dataset"], np.ndarray]  # preprocessed data -> [N, …]


@dataclass(frozen=True)
class Column:
    """Declaration of a column.

    over_steps: how the value of an n-step transition or a chunk is computed from its rows. In a
    discounted sum, the weight of a row is gamma to the power of the environment steps before it.
    """

    over_steps: Literal["first", "last", "sum", "discounted"]
    make: Maker | None = None  # computes the column from a data set; None: computed elsewhere
    info: str = ""  # key in `infos` of each environment step; empty: needs complete episodes
    source: str = ""  # column that `make` reads, if that is one of `infos`
    of_actions: bool = False  # a row has the shape [A]; otherwise it is a number


def costs(data: Dataset) -> np.ndarray:
    """Return the cost of each step, [N]. Raises KeyError if the data has none."""
    return data.extras["costs"]


def mc_costs(data: Dataset) -> np.ndarray:
    """Return the undiscounted cost from each step to the end of its episode, [N] float32.

    Raises KeyError if the data has no costs.
    """
    each = costs(data).astype(np.float64)
    spent = np.cumsum(each)
    totals = np.repeat(spent[data.episode_ends], data.episode_lengths())
    return (totals - spent + each).astype(np.float32)


def steps(data: Dataset) -> np.ndarray:
    """Return the number of environment steps of each row's decision, [N]; by default 1."""
    return data.extras.get("steps", np.ones(data.num_rows, np.float32))


def sampling_weights(data: Dataset) -> np.ndarray:
    """Return the relative probability with which `WeightedSequences` start at each row, [N].

    It is 1 unless the algorithm adds it to the data.
    """
    return data.extras.get("sampling_weights", np.ones(data.num_rows, np.float32))


def next_actions(data: Dataset) -> np.ndarray:
    """Return the action of the next row, [N, A]; the last row of an episode repeats its action."""
    following = np.arange(data.num_rows) + 1
    following[data.episode_ends] -= 1
    return data.actions[following]


def previous_actions(data: Dataset) -> np.ndarray:
    """Return the action of the row before, [N, A]; zero at the start of an episode."""
    before = np.roll(data.actions, 1, axis=0)
    before[data.episode_starts] = 0
    return before


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


# Costs are discounted like rewards. Only the bootstrap of a cost critic may have another discount.
COLUMNS = {
    "rewards": Column("discounted"),  # a column of every data set
    "mc_returns": Column("first"),  # each algorithm defines its own Monte Carlo returns
    "costs": Column("discounted", costs, info="cost"),
    "mc_costs": Column("first", mc_costs, source="costs"),
    "held_out": Column("first", held_out),
    "next_actions": Column("last", next_actions, of_actions=True),
    "previous_actions": Column("first", previous_actions, of_actions=True),
    "timesteps": Column("first", timesteps),
    "steps": Column("sum", steps, info="steps"),
    "sampling_weights": Column("first", sampling_weights),
}


def columns(needs: Iterable[str], data: Dataset, mc_returns: Maker) -> dict[str, np.ndarray]:
    """Compute the columns that `needs` lists. The entry "expert" is skipped: it is no column."""
    makers = {name: column.make for name, column in COLUMNS.items() if column.make is not None}
    makers["mc_returns"] = mc_returns
    return {name: makers[name](data) for name in with_sources(needs)}


def with_sources(needs: Iterable[str]) -> list[str]:
    """Return the columns that `needs` lists, and the columns from which they are computed."""
    names = [name for name in needs if name != "expert"]
    return list(dict.fromkeys([*names, *(COLUMNS[n].source for n in names if COLUMNS[n].source)]))


def shapes(needs: Iterable[str], action_dim: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each of these columns."""
    return {name: (action_dim,) * COLUMNS[name].of_actions for name in with_sources(needs)}


def reported(names: Iterable[str]) -> dict[str, str]:
    """Return {column: key of its info} for those of `names` that environments report at each step.

    All other columns are computed from complete episodes.
    """
    return {name: COLUMNS[name].info for name in names if name in COLUMNS and COLUMNS[name].info}

"""The replay buffer stores and samples a data set, or environment steps of a run, on the device.

Each observation is stored once. The next observation of row t is `observations[next_index[t]]`:
usually the next row, or an extra row at the end of an episode.

    observations  | o0 o1 o2 | o0' o1' | … rows in time order … | extra rows: ends of episodes
    next_index    |  1  2  x |   4   y | …

Observation channels are tensors `observations/<channel>`; images are uint8. A data set in which
an episode continues after a terminated row has the tensor `continues`, which is 1 in such rows.

`sample` consists of tensor operations on `tensors()`, so that it is part of the compiled update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.columns import COLUMNS, reported
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels

Tensors = dict[str, Tensor]


class ReplayBuffer(Source):
    """Transitions of S independent streams, one ring buffer per stream.

    Each seed has one stream; data that all seeds share is a single stream. Every stream has room
    for `capacity` rows. Streams grow independently. Each appended row has an extra row for its next
    observation.
    """

    def __init__(
        self,
        observation_shape: Any,
        action_dim: int,
        capacity: int,
        *,
        streams: int = 1,
        columns: Mapping[str, tuple[int, ...]] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate an empty buffer.

        observation_shape: one shape, or {channel: shape}.
        columns: additional columns of a batch, {name: shape of one row}.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((streams, *shape), dtype=dtype, device=device)

        def zero_observations(shape: tuple[int, ...]) -> Tensor:
            image = channels.is_image(shape)
            return zeros(2 * capacity, *shape, dtype=torch.uint8 if image else torch.float32)

        observations = channels.map_channels(zero_observations, observation_shape)
        self.capacity, self.streams, self.device = capacity, streams, torch.device(device)
        self.n_step, self.columns = 1, dict(columns or {})  # n_step: see `with_n_step`
        self.data: Tensors = channels.flatten({"observations": observations}) | {
            "next_index": zeros(capacity, dtype=torch.int32),
            "actions": zeros(capacity, action_dim),
            "rewards": zeros(capacity),
            "terminated": zeros(capacity, dtype=torch.uint8),
            "truncated": zeros(capacity, dtype=torch.uint8),
            "size": zeros(dtype=torch.int64),
            "oldest": zeros(dtype=torch.int64),
            "newest": zeros(dtype=torch.int64),
        }
        self.data |= {name: zeros(capacity, *shape) for name, shape in self.columns.items()}
        self.data["next_index"] += torch.arange(capacity, 2 * capacity, device=device).int()
        self.added = np.zeros(streams, int)  # rows appended to each stream and not dropped
        self.sizes = np.zeros(streams, int)  # rows that can be sampled
        self.hidden = np.zeros(streams, int)  # newest rows, not sampled until their episode ends

    @property
    def waits_for_episode_end(self) -> bool:
        """True if rows are hidden until their episode ends, because a column needs all its steps.

        An example is the column of Monte Carlo returns.
        """
        return self.columns.keys() != reported(self.columns).keys()

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        columns: Mapping[str, np.ndarray] | None = None,
        device: torch.device | str = "cpu",
    ) -> ReplayBuffer:
        """Build a buffer with one stream that holds all usable rows of `dataset`.

        columns: additional columns of a batch, [N, …] each.
        """
        usable = dataset.usable
        if not usable.any():
            raise UserError(
                f"{dataset.name}: no row is a transition, because no row has a next observation. "
                "Use data with next observations, or an algorithm for imitation."
            )
        rows, order = np.flatnonzero(usable), observation_order(dataset)
        # The observation of an unusable row may be the next observation of the row before it. So
        # all observations are stored, and the row before is truncated.
        truncated = dataset.truncated | (~np.append(usable[1:], True) & ~dataset.terminated)
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        self = cls.__new__(cls)
        self.capacity, self.streams, self.device = len(rows), 1, torch.device(device)
        self.added, self.sizes = np.array([len(rows)]), np.array([len(rows)])
        self.hidden = np.zeros(1, int)
        self.n_step, self.columns = 1, {k: v.shape[1:] for k, v in (columns or {}).items()}

        def to_device(x: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device, dtype)[None]

        def ordered(x: np.ndarray) -> Tensor:
            dtype = torch.uint8 if x.dtype == np.uint8 else torch.float32
            return to_device(x if in_order else x[order], dtype)

        in_order = len(rows) == dataset.num_rows
        observations = channels.map_channels(ordered, dataset.observations)
        self.data = channels.flatten({"observations": observations}) | {
            "next_index": to_device(position[dataset.next_index[rows]], torch.int32),
            "actions": to_device(dataset.actions[rows]),
            "rewards": to_device(dataset.rewards[rows]),
            "terminated": to_device(dataset.terminated[rows], torch.uint8),
            "truncated": to_device(truncated[rows], torch.uint8),
            "size": torch.full((1,), len(rows), dtype=torch.int64, device=self.device),
            "oldest": torch.zeros(1, dtype=torch.int64, device=self.device),
            "newest": torch.full((1,), len(rows) - 1, dtype=torch.int64, device=self.device),
        }
        if dataset.continues is not None:
            continues = dataset.continues & np.append(usable[1:], True)
            self.data["continues"] = to_device(continues[rows], torch.uint8)
        for name, values in (columns or {}).items():
            self.data[name] = to_device(values[rows])
        return self

    @staticmethod
    def bytes_for(dataset: Dataset) -> int:
        """Return the bytes that `from_dataset` allocates, without additional columns."""
        parts = channels.parts(dataset.observations)
        observations = sum(x.size * (1 if x.dtype == np.uint8 else 4) for x in parts)
        row = 4 * (dataset.actions.shape[1] + 2) + 2  # actions, reward, next index, two flags
        return observations + row * dataset.num_rows

    def append(self, streams: int | np.ndarray, rows: Mapping[str, Any]) -> None:
        """Append T transitions to one stream, or one transition to each of T streams.

        streams: number of the stream, or T different numbers.
        rows: {name of a batch's column: [T, …]}. Columns that are computed from complete episodes
        may be left out. The rows are then hidden until `release` passes these columns.
        Raises ValueError if a column is missing or unknown, or if there are too many rows.
        """
        rows = channels.flatten(rows)
        names = {"actions", "rewards", "terminated", "truncated"}
        for name in channels.flatten({"observations": channels.get(self.data, "observations")}):
            names |= {name, f"next_{name}"}
        names |= reported(self.columns).keys()
        hide = self.waits_for_episode_end and rows.keys() == names
        if not hide and rows.keys() != names | self.columns.keys():
            expected = sorted(names | self.columns.keys())
            raise ValueError(f"the buffer's columns are {expected}, found {sorted(rows)}")
        count = len(rows["rewards"])
        if isinstance(streams, int):
            if count > self.capacity:
                raise ValueError(f"{count} rows do not fit into a buffer of {self.capacity} rows")
            stream, offset = np.full(count, streams), np.arange(count)
        else:
            stream, offset = streams, np.zeros(count, int)
        position = (self.added[stream] + offset) % self.capacity
        at, row, extra_row = map(torch.from_numpy, (stream, position, position + self.capacity))
        for name, values in rows.items():
            is_next = name.startswith("next_observations")
            column = self.data[name.removeprefix("next_") if is_next else name]
            tensor = torch.from_numpy(np.ascontiguousarray(values))
            column[at, extra_row if is_next else row] = tensor.to(column)
        changed = np.unique(stream)
        grown = count if isinstance(streams, int) else 1
        self.added[changed] += grown
        self.hidden[changed] += grown if hide else 0
        self.sizes[changed] += 0 if hide else grown
        self.sizes[changed] = np.minimum(self.sizes[changed], self.capacity - self.hidden[changed])
        self._update_counts()

    def release(self, stream: int, columns: Mapping[str, np.ndarray]) -> None:
        """Make the hidden rows of a stream available for sampling.

        columns: the columns of these rows that `append` did not receive.
        """
        count, end = int(self.hidden[stream]), int(self.added[stream])
        positions = torch.from_numpy(np.arange(end - count, end) % self.capacity)
        for name, values in columns.items():
            tensor = torch.from_numpy(np.ascontiguousarray(values))
            self.data[name][stream, positions] = tensor.to(self.data[name])
        self.sizes[stream] += count
        self.hidden[stream] = 0
        self._update_counts()

    def drop(self, stream: int, count: int) -> None:
        """Remove the newest `count` rows of a stream.

        If the buffer is full, the older rows that these had overwritten are not restored.
        """
        self.added[stream] -= count
        if self.hidden[stream]:
            self.hidden[stream] -= count
        else:
            self.sizes[stream] -= count
        self._update_counts()

    def _update_counts(self) -> None:
        """Copy the sizes, oldest and newest rows of the streams to the tensors of `sample`."""
        end = self.added - self.hidden
        ends = {"newest": end - 1, "oldest": end - self.sizes}
        self.data["size"].copy_(torch.from_numpy(self.sizes))
        for name, row in ends.items():
            self.data[name].copy_(torch.from_numpy(row % self.capacity))

    def newest(self, stream: int, count: int) -> Dataset:
        """Return the newest `count` rows of a stream, including hidden ones, as a data set."""
        end = int(self.added[stream])
        positions = torch.from_numpy(np.arange(end - count, end) % self.capacity)
        observations = channels.get(self.data, "observations")

        def at(rows: Tensor) -> Any:
            return channels.map_channels(lambda x: x[stream, rows].cpu().numpy(), observations)

        names = ("actions", "rewards", "terminated", "truncated")
        rows: dict[str, Any] = {n: self.data[n][stream, positions].cpu().numpy() for n in names}
        for flag in ("terminated", "truncated"):
            rows[flag] = rows[flag].astype(bool)
        rows["observations"], next_observations = at(positions), at(positions + self.capacity)
        extras = {
            name: self.data[name][stream, positions].cpu().numpy()
            for name in reported(self.columns)
        }
        return Dataset.from_arrays(**rows, next_observations=next_observations, extras=extras)

    def all_rows(self, stream: int) -> Dataset:
        """Return all rows of a stream as a data set, the oldest first."""
        return self.newest(stream, min(int(self.added[stream]), self.capacity))

    def stream_state(self, stream: int) -> Tensors:
        """Return the tensors of a stream that a checkpoint stores; `load` restores them."""
        rows = min(int(self.added[stream]), self.capacity)
        left_out = ("size", "oldest", "newest", "next_index")
        columns = {k: v[stream, :rows] for k, v in self.data.items() if k not in left_out}
        ends = {
            f"next_{k}": v[stream, self.capacity : self.capacity + rows]
            for k, v in self.data.items()
            if k.startswith("observations")
        }
        counts = torch.tensor([c[stream] for c in (self.added, self.sizes, self.hidden)])
        return columns | ends | {"added": counts}

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Restore one stream from the tensors that `stream_state` returned."""
        self.added[stream], self.sizes[stream], self.hidden[stream] = rows["added"].tolist()
        count = min(int(self.added[stream]), self.capacity)
        for name, value in rows.items():
            if name.startswith("next_observations"):
                column = self.data[name.removeprefix("next_")]
                column[stream, self.capacity : self.capacity + count] = value
            elif name != "added":
                self.data[name][stream, :count] = value
        self._update_counts()

    def with_n_step(self, n_step: int) -> ReplayBuffer:
        """Return a view of this buffer that samples n-step transitions."""
        if n_step == self.n_step:
            return self
        view = copy.copy(self)
        view.n_step = n_step
        return view

    def tensors(self) -> Tensors:
        """Return the tensors that `sample` reads, [S, …] each; their addresses never change."""
        return self.data

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Sample `batch_size` transitions of one stream, uniformly with replacement.

        data: `tensors()` of the stream, without the leading axis.
        """
        rows = (data["oldest"] + random.integers(data["size"], (batch_size,))) % self.capacity
        return self.batch_at(data, rows, discount)

    def batch_at(self, data: Tensors, rows: Tensor, discount: float | Tensor) -> Batch:
        """Return the transitions that start at `rows` [B] of one stream."""
        columns, factor, last = n_step(data, rows, self.n_step, discount)
        bootstraps = 1 - data["terminated"][last]
        return Batch(
            observations=observations_at(data, rows),
            actions=data["actions"][rows],
            discount=factor * bootstraps,
            next_observations=observations_at(data, data["next_index"][last]),
            bootstrap_mask=bootstraps.float(),
            **columns,
        )


def observation_order(dataset: Dataset) -> np.ndarray:
    """Return the data set's row of each observation in the buffer: usable rows first, [M]."""
    rows = np.flatnonzero(dataset.usable)
    all_rows = np.arange(channels.size(dataset.observations))
    return np.concatenate([rows, np.setdiff1d(all_rows, rows)])


def observations_at(data: Tensors, rows: Tensor) -> Any:
    """Return the observations of `rows`: a tensor, or one per channel by name.

    With the tensor `slots`, the images of row r are in row `slots[r]` of their tensors.
    """
    observations = channels.get(data, "observations")
    if "slots" not in data:
        return channels.take(observations, rows)
    at = {True: data["slots"][rows], False: rows}
    return channels.map_channels(lambda x: x[at[channels.is_image(x.shape[1:])]], observations)


def discount_of(data: Tensors, rows: Tensor, discount: float | Tensor) -> float | Tensor:
    """Return the discount of each row: gamma, or gamma**steps if the data has the column `steps`.

    discount: gamma.
    """
    return discount ** data["steps"][rows] if "steps" in data else discount


def n_step(
    data: Tensors, rows: Tensor, n: int, discount: float | Tensor
) -> tuple[dict[str, Any], float | Tensor, Tensor]:
    """Return transitions of n rows that start at `rows` [B].

    A transition has m <= n rows: it stops at the first row that terminates, and at the last row of
    the episode or of the data. Returns the columns, combined over the rows as `columns.COLUMNS`
    declares; the product of the rows' discounts; and the last row. All are [B].
    """
    names = [name for name in COLUMNS if name in data]
    if n == 1:
        columns = {name: data[name][rows] for name in names}
        return columns, discount_of(data, rows, discount), rows
    around, inside = transition_rows(data, rows, n)  # [B, n]
    last_rows = around[:, -1]
    sums = [name for name in names if COLUMNS[name].over_steps in ("sum", "discounted")]
    columns = {name: torch.zeros_like(data[name][rows]) for name in sums}
    factor = torch.ones_like(columns["rewards"])
    for k in range(n):
        for name in sums:
            is_discounted = COLUMNS[name].over_steps == "discounted"
            weight = inside[:, k] * factor if is_discounted else inside[:, k]
            columns[name] = columns[name] + weight * data[name][around[:, k]]
        row_discount = discount_of(data, around[:, k], discount)
        factor = torch.where(inside[:, k], factor * row_discount, factor)
    for name in names:
        if name not in sums:
            columns[name] = data[name][last_rows if COLUMNS[name].over_steps == "last" else rows]
    return columns, factor, last_rows


def transition_rows(data: Tensors, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the rows of n-step transitions that start at `rows` [B], and a mask, [B, n] each.

    A transition stops at the first row that terminates, and at the last row of the episode or of
    the data. The last row is then repeated up to length n, and the mask is False there.
    """
    around, inside = rows_around(data, rows, 0, n - 1)
    if "continues" not in data:
        return around, inside
    terminated = data["terminated"][around] * inside
    inside = inside & (terminated.cumsum(1) == terminated)  # no earlier row has terminated
    last = inside.sum(1, keepdim=True) - 1
    offset = torch.arange(n, device=rows.device).clamp(max=last)
    return around.take_along_dim(offset, 1), inside


def rows_around(data: Tensors, rows: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Return the rows at the offsets from `first` to `last` relative to each of `rows` [B].

    Returns the rows and a mask, [B, last - first + 1] each. Where an offset leaves the episode or
    the data, its first or last row is repeated and the mask is False.
    """
    capacity = len(data["rewards"])
    behind = steps_to_edge(data, rows, -first, -1)
    ahead = steps_to_edge(data, rows, last, 1)
    offset = torch.arange(first, last + 1, device=rows.device)
    clamped = offset.clamp(-behind[:, None], ahead[:, None])
    return (rows[:, None] + clamped) % capacity, clamped == offset


def steps_to_edge(data: Tensors, rows: Tensor, limit: int, direction: int) -> Tensor:
    """Return how far the episode of each of `rows` extends backward (-1) or forward (1), [B].

    limit: the maximum number of steps that are counted.
    """
    if limit < 1:
        return torch.zeros_like(rows)
    offset = torch.arange(limit, device=rows.device)
    if direction > 0:  # the next row belongs to the episode unless `row` is an episode's end
        row = (rows[:, None] + offset) % len(data["rewards"])
        edge = row == data["newest"]
    else:  # the previous row, `row`, belongs to the episode unless it is an episode's end
        row = (rows[:, None] - offset - 1) % len(data["rewards"])
        edge = (row + 1) % len(data["rewards"]) == data["oldest"]
    ended = (data["terminated"][row] + data["truncated"][row]) > 0
    if "continues" in data:
        ended = ended & (data["continues"][row] == 0)
    return ((ended | edge).cumsum(1) == 0).sum(1)

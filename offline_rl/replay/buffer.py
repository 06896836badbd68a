"""The replay buffer: logged data or a run's own experience, on the device, sampled there.

Observations are stored once. Row t's next observation is `observations[next_index[t]]`: usually the
following row, a row of its own where an episode ends.

    observations  | o0 o1 o2 | o0' o1' | … rows in time order … | extra rows: ends of episodes
    next_index    |  1  2  x |   4   y | …

Where channels are observed they are tensors `observations/<channel>`, pictures in uint8.

Sampling is a tensor program over `tensors()`, so that it runs inside the compiled update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch
from offline_rl.replay.columns import COLUMNS, STEPS, TOLD
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Tensors = dict[str, Tensor]


class ReplayBuffer:
    """Transitions of S independent streams (S = 1 for data that all seeds share), each a ring.

    Every stream has `capacity` rows and a length of its own. Appended rows keep their next
    observation in the extra rows.
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
        """observation_shape: or one for each channel by name.

        columns: the shape of a row of further batch columns.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((streams, *shape), dtype=dtype, device=device)

        def seen(shape: tuple[int, ...]) -> Tensor:
            picture = channels.is_picture(shape)
            return zeros(2 * capacity, *shape, dtype=torch.uint8 if picture else torch.float32)

        observed = channels.each(seen, observation_shape)
        self.capacity, self.streams, self.device = capacity, streams, torch.device(device)
        self.n_step, self.columns = 1, dict(columns or {})  # n_step: see `after`
        self.data: Tensors = channels.flat({"observations": observed}) | {
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
        self.added = np.zeros(streams, int)  # rows appended to each stream and not taken back
        self.sizes = np.zeros(streams, int)  # of these, rows that may be sampled
        self.hidden = np.zeros(streams, int)  # the newest ones, which may not: an episode goes on

    @property
    def awaits_ends(self) -> bool:
        """True if rows count once their episode has ended, of which some columns are made."""
        return any(name not in TOLD for name in self.columns)

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        columns: Mapping[str, np.ndarray] | None = None,
        device: torch.device | str = "cpu",
    ) -> ReplayBuffer:
        """All usable rows of `dataset`, one stream. columns: further batch columns, [N, …] each."""
        usable = dataset.usable
        if not usable.any():
            raise UserError(f"{dataset.name}: no row can serve as a transition")
        rows = np.flatnonzero(usable)
        # a dropped row's observation may still be its predecessor's next: all observations are
        # kept, those of usable rows first, and for the predecessor the episode is cut
        cut = dataset.truncated | (~np.append(usable[1:], True) & ~dataset.terminated)
        every = np.arange(channels.size(dataset.observations))
        order = np.concatenate([rows, np.setdiff1d(every, rows)])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self = cls.__new__(cls)
        self.capacity, self.streams, self.device = len(rows), 1, torch.device(device)
        self.added, self.sizes = np.array([len(rows)]), np.array([len(rows)])
        self.hidden = np.zeros(1, int)
        self.n_step, self.columns = 1, {k: v.shape[1:] for k, v in (columns or {}).items()}

        def put(x: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device, dtype)[None]

        def seen(x: np.ndarray) -> Tensor:
            picture = x.dtype == np.uint8
            return put(x if same else x[order], torch.uint8 if picture else torch.float32)

        same = len(rows) == dataset.num_rows
        observed = channels.each(seen, dataset.observations)
        self.data = channels.flat({"observations": observed}) | {
            "next_index": put(place[dataset.next_index[rows]], torch.int32),
            "actions": put(dataset.actions[rows]),
            "rewards": put(dataset.rewards[rows]),
            "terminated": put(dataset.terminated[rows], torch.uint8),
            "truncated": put(cut[rows], torch.uint8),
            "size": torch.full((1,), len(rows), dtype=torch.int64, device=self.device),
            "oldest": torch.zeros(1, dtype=torch.int64, device=self.device),
            "newest": torch.full((1,), len(rows) - 1, dtype=torch.int64, device=self.device),
        }
        for name, values in (columns or {}).items():
            self.data[name] = put(values[rows])
        return self

    @staticmethod
    def bytes_for(dataset: Dataset) -> int:
        """What `from_dataset` keeps, further columns left out."""
        parts = channels.parts(dataset.observations)
        observations = sum(x.size * (1 if x.dtype == np.uint8 else 4) for x in parts)
        row = 4 * (dataset.actions.shape[1] + 2) + 2  # actions, reward, next index, two flags
        return observations + row * dataset.num_rows

    def append(self, streams: int | np.ndarray, rows: Mapping[str, Any]) -> None:
        """Transitions, [T, …] by the names of a batch's columns: T of one stream, or one of each.

        streams: a number, or T different ones. Further columns may be left out, but for `TOLD`:
        then the rows stay hidden until `release` gives them. Raises ValueError where a column is
        missing or unknown, or more is appended than fits.
        """
        rows = channels.flat(rows)
        names = {"actions", "rewards", "terminated", "truncated"}
        for name in channels.flat({"observations": channels.of(self.data, "observations")}):
            names |= {name, f"next_{name}"}
        names |= self.columns.keys() & TOLD.keys()
        hide = self.awaits_ends and rows.keys() == names
        if not hide and rows.keys() != names | self.columns.keys():
            expected = sorted(names | self.columns.keys())
            raise ValueError(f"the buffer's columns are {expected}, found {sorted(rows)}")
        count = len(rows["rewards"])
        if isinstance(streams, int):
            if count > self.capacity:
                raise ValueError(f"{count} rows at once, where {self.capacity} fit into the buffer")
            stream, later = np.full(count, streams), np.arange(count)
        else:
            stream, later = streams, np.zeros(count, int)
        place = (self.added[stream] + later) % self.capacity
        at, first, end = map(torch.from_numpy, (stream, place, place + self.capacity))
        for name, values in rows.items():
            ends = name.startswith("next_observations")
            column = self.data[name.removeprefix("next_") if ends else name]
            fresh = torch.from_numpy(np.ascontiguousarray(values))
            column[at, end if ends else first] = fresh.to(column)
        own = np.unique(stream)
        grown = count if isinstance(streams, int) else 1
        self.added[own] += grown
        self.hidden[own] += grown if hide else 0
        self.sizes[own] += 0 if hide else grown
        self.sizes[own] = np.minimum(self.sizes[own], self.capacity - self.hidden[own])
        self._count()

    def release(self, stream: int, columns: Mapping[str, np.ndarray]) -> None:
        """The hidden rows of a stream may be sampled from now on; columns: what they lacked."""
        count, end = int(self.hidden[stream]), int(self.added[stream])
        place = torch.from_numpy(np.arange(end - count, end) % self.capacity)
        for name, values in columns.items():
            fresh = torch.from_numpy(np.ascontiguousarray(values))
            self.data[name][stream, place] = fresh.to(self.data[name])
        self.sizes[stream] += count
        self.hidden[stream] = 0
        self._count()

    def drop(self, stream: int, count: int) -> None:
        """Takes back the newest `count` rows of a stream: they are never sampled again.

        What they had overwritten in a full ring is lost with them.
        """
        self.added[stream] -= count
        if self.hidden[stream]:
            self.hidden[stream] -= count
        else:
            self.sizes[stream] -= count
        self._count()

    def _count(self) -> None:
        """Tells `sample` of the streams' lengths."""
        end = self.added - self.hidden
        ends = {"newest": end - 1, "oldest": end - self.sizes}
        self.data["size"].copy_(torch.from_numpy(self.sizes))
        for name, row in ends.items():
            self.data[name].copy_(torch.from_numpy(row % self.capacity))

    def newest(self, stream: int, count: int) -> Dataset:
        """The newest `count` rows of a stream, hidden ones too: an episode, or its beginning."""
        from offline_rl.data.dataset import Dataset

        end = int(self.added[stream])
        place = torch.from_numpy(np.arange(end - count, end) % self.capacity)
        seen = channels.of(self.data, "observations")

        def at(rows: Tensor) -> Any:
            return channels.each(lambda x: x[stream, rows].cpu().numpy(), seen)

        names = ("actions", "rewards", "terminated", "truncated")
        rows: dict[str, Any] = {n: self.data[n][stream, place].cpu().numpy() for n in names}
        for flag in ("terminated", "truncated"):
            rows[flag] = rows[flag].astype(bool)
        rows["observations"], after = at(place), at(place + self.capacity)
        told = self.columns.keys() & TOLD.keys()
        extras = {name: self.data[name][stream, place].cpu().numpy() for name in told}
        return Dataset.from_arrays(**rows, next_observations=after, extras=extras)

    def everything(self, stream: int) -> Dataset:
        """All rows in use of a stream, the oldest first."""
        return self.newest(stream, min(int(self.added[stream]), self.capacity))

    def filled(self, stream: int) -> Tensors:
        """The rows in use of a stream: what a checkpoint holds of an online buffer."""
        rows = min(int(self.added[stream]), self.capacity)
        left_out = ("size", "oldest", "newest", "next_index")
        kept = {k: v[stream, :rows] for k, v in self.data.items() if k not in left_out}
        ends = {
            f"next_{k}": v[stream, self.capacity : self.capacity + rows]
            for k, v in self.data.items()
            if k.startswith("observations")
        }
        counts = torch.tensor([c[stream] for c in (self.added, self.sizes, self.hidden)])
        return kept | ends | {"added": counts}

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Puts back what `filled` gave for one stream."""
        added = rows["added"].reshape(-1).tolist()  # before format 3 of checkpoints one number
        count = min(added[0], self.capacity)
        counts = added if len(added) == 3 else [added[0], count, 0]
        self.added[stream], self.sizes[stream], self.hidden[stream] = counts
        for name, value in rows.items():
            if name.startswith("next_observations"):
                column = self.data[name.removeprefix("next_")]
                column[stream, self.capacity : self.capacity + count] = value
            elif name != "added":
                self.data[name][stream, :count] = value
        self._count()

    def after(self, n_step: int) -> ReplayBuffer:
        """The same rows as transitions that bootstrap after `n_step` steps."""
        other = copy.copy(self)
        other.n_step = n_step
        return other

    def tensors(self) -> Tensors:
        """The tensors that `sample` reads, [S, …] each; their addresses never change."""
        return self.data

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """`batch_size` transitions of one stream, uniformly with replacement.

        data: `tensors()` without the leading axis.
        """
        rows = (data["oldest"] + random.integers(data["size"], (batch_size,))) % self.capacity
        columns, factor, last = n_step(data, rows, self.n_step, discount)
        return Batch(
            observations=observed(data, rows),
            actions=data["actions"][rows],
            discount=factor,
            next_observations=observed(data, data["next_index"][last]),
            **columns,
        )


def observed(data: Tensors, rows: Tensor) -> Any:
    """What is seen in `rows`: a tensor, or one for each channel by name."""
    return channels.take(channels.of(data, "observations"), rows)


def n_step(
    data: Tensors, rows: Tensor, n: int, discount: float | Tensor
) -> tuple[dict[str, Any], Tensor, Tensor]:
    """From each of `rows` [B] up to n steps on, or to the episode's or the data's last row.

    Returns rewards and further columns of these m <= n steps, as `columns.STEPS` says, discount**m
    or 0 where the last of these rows terminated, and that last row; [B] each.
    """
    names = [name for name in ("rewards", *COLUMNS) if name in data]
    if n == 1:
        found = {name: data[name][rows] for name in names}
        return found, discount * (1 - data["terminated"][rows]), rows
    sums = [name for name in names if STEPS[name] in ("sum", "discounted")]
    found = {name: torch.zeros_like(data[name][rows]) for name in sums}
    last, factor = rows, torch.ones_like(found["rewards"])
    for row, inside in steps(data, rows, n):
        for name in sums:
            weight = inside * factor if STEPS[name] == "discounted" else inside
            found[name] = found[name] + weight * data[name][row]
        factor = torch.where(inside, factor * discount, factor)
        last = torch.where(inside, row, last)
    for name in names:
        if name not in sums:
            found[name] = data[name][last if STEPS[name] == "last" else rows]
    return found, factor * (1 - data["terminated"][last]), last


def steps(data: Tensors, rows: Tensor, n: int) -> list[tuple[Tensor, Tensor]]:
    """The n rows from each of `rows` on, [B] each, and whether each is of the same episode."""
    capacity, inside, found = len(data["rewards"]), torch.ones_like(rows, dtype=torch.bool), []
    for k in range(n):
        row = (rows + k) % capacity
        found.append((row, inside))
        ended = (data["terminated"][row] + data["truncated"][row]) > 0
        inside = inside & ~ended & (row != data["newest"])
    return found

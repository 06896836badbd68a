"""The replay buffer: offline data, online data and mixtures of both, on the device, sampled there.

Observations are stored once. Row t's next observation is `observations[next_index[t]]`: usually the
following row, a row of its own where an episode ends.

    observations  | o0 o1 o2 | o0' o1' | … rows in time order … | extra rows: ends of episodes
    next_index    |  1  2  x |   4   y | …

Sampling is a tensor program over `tensors()`, so that it runs inside the compiled update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch
from offline_rl.replay.columns import COLUMNS
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

Tensors = dict[str, Tensor]


class ReplayBuffer:
    """Transitions of S independent streams (S = 1 for data that all seeds share), each a ring.

    Every stream has `capacity` rows. Appended rows keep their next observation in the extra rows.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        action_dim: int,
        capacity: int,
        *,
        streams: int = 1,
        n_step: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """n_step: steps after which a transition bootstraps."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((streams, *shape), dtype=dtype, device=device)

        self.capacity, self.streams, self.device = capacity, streams, torch.device(device)
        self.n_step = n_step
        self.data: Tensors = {
            "observations": zeros(2 * capacity, *observation_shape),
            "next_index": zeros(capacity, dtype=torch.int32),
            "actions": zeros(capacity, action_dim),
            "rewards": zeros(capacity),
            "terminated": zeros(capacity, dtype=torch.uint8),
            "truncated": zeros(capacity, dtype=torch.uint8),
            "size": zeros(dtype=torch.int64),
            "newest": zeros(dtype=torch.int64),
        }
        self.data["next_index"] += torch.arange(capacity, 2 * capacity, device=device).int()
        self.added = 0  # rows ever appended to each stream

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        *,
        columns: Mapping[str, np.ndarray] | None = None,
        n_step: int = 1,
        device: torch.device | str = "cpu",
    ) -> ReplayBuffer:
        """All usable rows of `dataset`, one stream. columns: further batch columns, [N, …] each."""
        usable = dataset.usable
        if not usable.any():
            raise UserError(f"{dataset.name}: no row can serve as a transition")
        rows = np.flatnonzero(usable)
        # a dropped row's observation may still be its predecessor's next: keep all observations,
        # reorder so that the usable rows come first
        # and it ends the episode for that predecessor
        cut = dataset.truncated | (~np.append(usable[1:], True) & ~dataset.terminated)
        order = np.concatenate([rows, np.setdiff1d(np.arange(len(dataset.observations)), rows)])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self = cls.__new__(cls)
        self.capacity, self.streams, self.device = len(rows), 1, torch.device(device)
        self.added, self.n_step = len(rows), n_step

        def put(x: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device, dtype)[None]

        same = len(rows) == dataset.num_rows
        self.data = {
            "observations": put(dataset.observations if same else dataset.observations[order]),
            "next_index": put(place[dataset.next_index[rows]], torch.int32),
            "actions": put(dataset.actions[rows]),
            "rewards": put(dataset.rewards[rows]),
            "terminated": put(dataset.terminated[rows], torch.uint8),
            "truncated": put(cut[rows], torch.uint8),
            "size": torch.full((1,), len(rows), dtype=torch.int64, device=self.device),
            "newest": torch.full((1,), len(rows) - 1, dtype=torch.int64, device=self.device),
        }
        for name, values in (columns or {}).items():
            self.data[name] = put(values[rows])
        return self

    @staticmethod
    def bytes_for(dataset: Dataset) -> int:
        """What `from_dataset` keeps, further columns left out."""
        observations = dataset.observations[0].size * len(dataset.observations)
        row = 4 * (dataset.actions.shape[1] + 2) + 2  # actions, reward, next index, two flags
        return 4 * observations + row * dataset.num_rows

    def append(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_observations: np.ndarray,
    ) -> None:
        """One transition for each stream: [S, *obs], [S, A], [S], [S], [S], [S, *obs]."""
        row = self.added % self.capacity
        put = torch.from_numpy
        self.data["observations"][:, row] = put(observations)
        self.data["observations"][:, self.capacity + row] = put(next_observations)
        self.data["actions"][:, row] = put(actions)
        self.data["rewards"][:, row] = put(rewards.astype(np.float32))
        self.data["terminated"][:, row] = put(terminated.astype(np.uint8))
        self.data["truncated"][:, row] = put(truncated.astype(np.uint8))
        self.added += 1
        self.data["size"].fill_(min(self.added, self.capacity))
        self.data["newest"].fill_(row)

    def filled(self) -> Tensors:
        """The rows in use, [S, …] each: what a checkpoint of an online buffer holds."""
        rows = min(self.added, self.capacity)
        kept = {
            k: v[:, :rows]
            for k, v in self.data.items()
            if k not in ("size", "newest", "next_index")
        }
        ends = self.data["observations"][:, self.capacity : self.capacity + rows]
        added = torch.full((self.streams,), self.added)
        return kept | {"next_observations": ends, "added": added}

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Puts back what `filled` gave for one stream."""
        self.added = int(rows["added"])
        count = min(self.added, self.capacity)
        for name, value in rows.items():
            if name == "next_observations":
                self.data["observations"][stream, self.capacity : self.capacity + count] = value
            elif name != "added":
                self.data[name][stream, :count] = value
        self.data["size"].fill_(count)
        self.data["newest"].fill_((self.added - 1) % self.capacity)

    def tensors(self) -> Tensors:
        """The tensors that `sample` reads, [S, …] each; their addresses never change."""
        return self.data

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """`batch_size` transitions of one stream, uniformly with replacement.

        data: `tensors()` without the leading axis.
        """
        rows = random.integers(data["size"], (batch_size,))
        columns: dict[str, Any] = {name: data[name][rows] for name in COLUMNS if name in data}
        rewards, factor, last = n_step(data, rows, self.n_step, discount)
        return Batch(
            observations=data["observations"][rows],
            actions=data["actions"][rows],
            rewards=rewards,
            discount=factor,
            next_observations=data["observations"][data["next_index"][last]],
            **columns,
        )


def n_step(
    data: Tensors, rows: Tensor, n: int, discount: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """From each of `rows` [B] up to n steps on, or to the episode's or the data's last row.

    Returns the discounted sum of the m <= n rewards, discount**m or 0 where the last of these rows
    terminated, and that last row; [B] each.
    """
    if n == 1:
        return data["rewards"][rows], discount * (1 - data["terminated"][rows]), rows
    last, total = rows, torch.zeros_like(data["rewards"][rows])
    factor = torch.ones_like(total)
    for row, inside in steps(data, rows, n):
        total = total + inside * factor * data["rewards"][row]
        factor = torch.where(inside, factor * discount, factor)
        last = torch.where(inside, row, last)
    return total, factor * (1 - data["terminated"][last]), last


def steps(data: Tensors, rows: Tensor, n: int) -> list[tuple[Tensor, Tensor]]:
    """The n rows from each of `rows` on, [B] each, and whether each is of the same episode."""
    capacity, inside, found = len(data["rewards"]), torch.ones_like(rows, dtype=torch.bool), []
    for k in range(n):
        row = (rows + k) % capacity
        found.append((row, inside))
        ended = (data["terminated"][row] + data["truncated"][row]) > 0
        inside = inside & ~ended & (row != data["newest"])
    return found

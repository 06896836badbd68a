"""Ring buffers that programs of the engine write, such as transitions predicted by a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer, Tensors
from offline_rl.utils.random import Random
from policies import channels


class Ring(Source):
    """The newest rows that `Engine.fill` wrote, one ring of `capacity` rows for each seed.

    Rows, their order and their counts stay on the device. Batches are those of a `ReplayBuffer`.
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
        """Allocate empty rings; the arguments are those of `ReplayBuffer`."""
        options: Any = {"streams": streams, "columns": columns, "device": device}
        self.buffer = ReplayBuffer(observation_shape, action_dim, capacity, **options)

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.data

    def with_n_step(self, n_step: int) -> Ring:
        """Return a view of these rings that samples n-step transitions."""
        view = copy.copy(self)
        view.buffer = self.buffer.with_n_step(n_step)
        return view

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`."""
        return self.buffer.sample(data, random, batch_size, discount)

    def write(self, rows: Mapping[str, Any], update: Tensor) -> None:
        """Append n rows to the ring of every seed.

        rows: the columns of the buffer, with `next_observations`, [S, n, …] each. Rows of an
        episode follow one another, and its last row is terminated or truncated. The mask `valid`,
        if there is one, selects the rows that are stored. `keep`, [S], if there is one, is the
        number of newest rows that stay; the others are removed. update: not used.
        Raises ValueError if a column is missing or unknown, or if n exceeds the capacity.
        """
        data, capacity, rows = self.buffer.data, self.buffer.capacity, channels.flatten(rows)
        stored = {name for name in data if name not in ("next_index", "size", "oldest", "newest")}
        stored |= {f"next_{name}" for name in stored if name.startswith("observations")}
        if rows.keys() - {"valid", "keep"} != stored:
            raise ValueError(f"the ring's columns are {sorted(stored)}, found {sorted(rows)}")
        seeds, n = rows["rewards"].shape
        if n > capacity:
            raise ValueError(f"{n} rows do not fit into a ring of {capacity} rows")
        seed, place = (torch.arange(k, device=self.buffer.device) for k in (seeds, n))
        seed, order, count = seed[:, None], place.expand(seeds, n), torch.full_like(seed, n)
        if "valid" in rows:  # rows to store come first, in their order
            order = (~rows["valid"].bool()).byte().argsort(dim=1, stable=True)
            count = rows["valid"].bool().sum(1)
        end = data["oldest"] + data["size"]
        at = (end[:, None] + place) % capacity  # [S, n]
        is_stored = place < count[:, None]
        for name, values in rows.items():
            if name in ("valid", "keep"):
                continue
            is_next = name.startswith("next_observations")
            column = data[name.removeprefix("next_") if is_next else name]
            position = at + capacity if is_next else at
            old, new = column[seed, position], values[seed, order].to(column.dtype)
            mask = is_stored.reshape(seeds, n, *[1] * (new.dim() - 2))
            column[seed, position] = torch.where(mask, new, old)
        most = rows.get("keep", torch.full_like(count, capacity)).clamp(max=capacity)
        size = torch.minimum(data["size"] + count, most)
        data["oldest"].copy_((end + count - size) % capacity)
        data["newest"].copy_((end + count - 1) % capacity)
        data["size"].copy_(size)

    def stream_state(self, stream: int) -> Tensors:
        """Return the tensors of a seed's ring that a checkpoint stores. Waits for the device."""
        self._copy_counts()
        return self.buffer.stream_state(stream)

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Restore one seed's ring from the tensors that `stream_state` returned."""
        self._copy_counts()
        self.buffer.load(stream, rows)

    def _copy_counts(self) -> None:
        """Copy the row counts from the device to the host's counters of the buffer."""
        sizes, oldest = (self.buffer.data[k].cpu().numpy() for k in ("size", "oldest"))
        self.buffer.sizes, self.buffer.added = sizes.copy(), oldest + sizes

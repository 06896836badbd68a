"""Streaming batches of a data set that does not fit into the memory of the device or the machine.

The data stays in (memory-mapped) arrays. While the device runs the current updates, a thread of
the host gathers the batches of the next `AHEAD` ones. The rows of an update depend on the seed and
the update alone (`utils/random.py`), so the batches are bit for bit those of a `ReplayBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels
from policies.channels import Observations

AHEAD = 64  # approximate number of updates whose batches are on the device at a time


class Stream:
    """A source of uniform batches of transitions, equal to those of `buffer.ReplayBuffer`."""

    def __init__(
        self,
        dataset: Dataset,
        seeds: Sequence[int],
        batch_size: int,
        *,
        normalize: Callable[[Observations], Observations],
        columns: Mapping[str, np.ndarray],
        period: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """Stream the usable rows of `dataset`.

        dataset: with raw observations; its rewards and actions are already preprocessed.
        columns: additional columns of a batch, [N, …] each.
        period: number of updates that are launched together.
        """
        self.ahead = max(1, AHEAD // period) * period
        self.dataset, self.normalize = dataset, normalize
        self.rows = np.flatnonzero(dataset.usable)
        if not len(self.rows):
            raise UserError(f"{dataset.name}: no row can serve as a transition")
        self.columns = {**columns, "actions": dataset.actions, "rewards": dataset.rewards}
        self.seeds, self.batch_size = list(seeds), batch_size
        self.thread, self.pending = ThreadPoolExecutor(1), dict[int, Future[dict[str, Tensor]]]()
        self.block = -1  # block on the device: the updates from block * ahead on
        self.pinned = torch.device(device).type == "cuda"  # to copy while updates run
        self.data = {k: v.to(device) for k, v in self.gather(0).items()}

    def gather(self, block: int) -> dict[str, Tensor]:
        """Return the batches of a block of updates, [S, ahead, B, …] each, on the host."""
        updates = torch.arange(block * self.ahead, (block + 1) * self.ahead)
        size, seeds = torch.tensor(len(self.rows)), torch.tensor(self.seeds)

        def draw(seed: Tensor, update: Tensor) -> Tensor:
            return Random(seed, update).integers(size, (self.batch_size,))

        with torch.no_grad():
            indices = vmap(vmap(draw, (None, 0)), (0, None))(seeds, updates)  # [S, ahead, B]
        rows, data = self.rows[indices.numpy()], self.dataset
        host = {name: values[rows] for name, values in self.columns.items()}
        for word, at in (("observations", rows), ("next_observations", data.next_index[rows])):
            host |= channels.flatten({word: self.normalize(channels.take(data.observations, at))})
        host["continues"] = 1 - data.terminated[rows].astype(np.float32)
        dtypes = {k: np.uint8 if v.dtype == np.uint8 else np.float32 for k, v in host.items()}
        tensors = {k: torch.from_numpy(np.asarray(v, dtypes[k])) for k, v in host.items()}
        return {k: v.pin_memory() if self.pinned else v for k, v in tensors.items()}

    def prefetch(self, update: int) -> None:
        """Copy the batches of the block that contains `update` to the device."""
        block = update // self.ahead
        if block == self.block:
            return
        self.pending = {k: v for k, v in self.pending.items() if k == block}
        pending = self.pending.pop(block, None)
        batches = self.gather(block) if pending is None else pending.result()
        for name, values in batches.items():  # the CUDA stream orders this after launched updates
            self.data[name].copy_(values, non_blocking=True)
        self.block = block
        self.pending[block + 1] = self.thread.submit(self.gather, block + 1)

    def close(self) -> None:
        """End the thread that gathers batches."""
        self.thread.shutdown(cancel_futures=True)

    def tensors(self) -> dict[str, Tensor]:
        """See `replay.batch.Source`."""
        return self.data

    def sample(
        self, data: dict[str, Tensor], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Return the batch of the update that `random` belongs to."""
        random.site += 1  # the site of the row indices, which `gather` has drawn
        row = (random.update % self.ahead)[None]  # 1-d, because a 0-d index would need its value
        columns: dict[str, Any] = {k: v.index_select(0, row)[0] for k, v in data.items()}
        return Batch(discount=discount * columns.pop("continues"), **channels.unflatten(columns))

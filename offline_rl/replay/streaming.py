"""Sources for a data set that does not fit into the memory of the device or the machine.

The data stays in (memory-mapped) arrays. While the device runs a block of updates, a thread of the
host reads the data of the next block.

    Stream     the batches of the next block. The row indices of an update depend only on the seed
               and the update (`utils/random.py`), so the batches are bit for bit those of a
               `ReplayBuffer`.
    Rotation   one part of the data, of about a million rows, which is replaced regularly. Chunks
               and sequences need neighboring rows, so they are sampled from the current part.
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
from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer, Tensors
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels
from policies.channels import Observations

AHEAD = 64  # approximate number of updates in a block, whose batches are on the device together
# Defaults of Rotation: those of seohongpark/horizon-reduction and ColinQiyangLi/qc
# (`dataset_replace_interval`), whose files have a million rows
PART_ROWS = 1_000_000  # maximum number of rows of a part; a longer episode is a part by itself
PART_UPDATES = 1000  # number of updates with a part


class Stream(Source):
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

        dataset: raw observations, and preprocessed rewards and actions.
        columns: additional columns of a batch, [N, …] each.
        period: number of updates that are launched together; a block holds complete periods.
        """
        self.ahead = max(1, AHEAD // period) * period
        self.dataset, self.normalize = dataset, normalize
        self.rows = np.flatnonzero(dataset.usable)
        if not len(self.rows):
            raise UserError(
                f"{dataset.name}: no row is a transition, because no row has a next observation. "
                "Use data with next observations, or an algorithm for imitation."
            )
        self.columns = {**columns, "actions": dataset.actions, "rewards": dataset.rewards}
        self.seeds, self.batch_size = list(seeds), batch_size
        self.thread, self.pending = ThreadPoolExecutor(1), dict[int, Future[dict[str, Tensor]]]()
        self.block = -1  # block on the device; its first update is block * ahead
        self.pinned = torch.device(device).type == "cuda"  # pinned memory is copied during updates
        self.data = {k: v.to(device) for k, v in self.gather(0).items()}

    def gather(self, block: int) -> dict[str, Tensor]:
        """Return the batches of a block of updates, {column: [S, ahead, B, …]}, on the host."""
        updates = torch.arange(block * self.ahead, (block + 1) * self.ahead)
        size, seeds = torch.tensor(len(self.rows)), torch.tensor(self.seeds)

        def sample_rows(seed: Tensor, update: Tensor) -> Tensor:
            return Random(seed, update).integers(size, (self.batch_size,))

        with torch.no_grad():
            indices = vmap(vmap(sample_rows, (None, 0)), (0, None))(seeds, updates)  # [S, ahead, B]
        rows, data = self.rows[indices.numpy()], self.dataset
        host = {name: values[rows] for name, values in self.columns.items()}
        for name, at in (("observations", rows), ("next_observations", data.next_index[rows])):
            host |= channels.flatten({name: self.normalize(channels.take(data.observations, at))})
        host["bootstrap_mask"] = 1 - data.terminated[rows].astype(np.float32)
        dtypes = {k: np.uint8 if v.dtype == np.uint8 else np.float32 for k, v in host.items()}
        tensors = {k: torch.from_numpy(np.asarray(v, dtypes[k])) for k, v in host.items()}
        return {k: v.pin_memory() if self.pinned else v for k, v in tensors.items()}

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """Copy the batches of the block that contains `update` to the device."""
        block = update // self.ahead
        if block == self.block:
            return
        self.pending = {k: v for k, v in self.pending.items() if k == block}
        pending = self.pending.pop(block, None)
        batches = self.gather(block) if pending is None else pending.result()
        for name, values in batches.items():  # the CUDA stream copies after the launched updates
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
        """Return the batch of the update that `random` belongs to.

        Raises ValueError if `batch_size` is not the size that is streamed.
        """
        if batch_size != self.batch_size:
            raise ValueError(f"batches of {self.batch_size} rows are streamed, not {batch_size}")
        random.site += 1  # `gather` has made the update's first random call, for the row indices
        row = (random.update % self.ahead)[None]  # 1-d: a 0-d index would read the tensor's value
        columns: dict[str, Any] = {k: v.index_select(0, row)[0] for k, v in data.items()}
        mask = columns["bootstrap_mask"]
        factor = discount ** columns["steps"] if "steps" in columns else discount
        return Batch(discount=factor * mask, **channels.unflatten(columns))


class Rotation(ReplayBuffer):
    """A replay buffer that holds one part of a data set at a time.

    A part consists of complete episodes. The parts are used in the order of the data, and then from
    the first one again. The part of an update depends only on the index of the update.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        prepare: Callable[[Dataset], tuple[Dataset, Mapping[str, np.ndarray]]],
        device: torch.device | str = "cpu",
        rows: int = PART_ROWS,
        updates: int = PART_UPDATES,
    ) -> None:
        """Hold the first part of `dataset`.

        prepare: returns the preprocessed part and its additional columns. rows: maximum number of
        rows of a part. updates: number of updates with a part.
        """
        super().__init__(
            channels.shapes(dataset.observations), dataset.actions.shape[1], 1, device=device
        )
        self.dataset, self.prepare, self.updates = dataset, prepare, updates
        self.spans = spans_of(dataset, rows)
        self.thread, self.pending = ThreadPoolExecutor(1), dict[int, Future[Tensors]]()
        self.part, first = 0, self.gather(0)
        self.capacity = max(stop - start for start, stop in self.spans)
        # at most one extra row per row: the next observation at the end of an episode
        sizes = {k: self.capacity * (2 if k.startswith("observations") else 1) for k in first}
        self.data = {
            k: torch.zeros((1, sizes[k], *v.shape[2:]) if v.dim() > 1 else 1, dtype=v.dtype).to(
                self.device
            )
            for k, v in first.items()
        }
        self._copy(first)

    def gather(self, part: int) -> Tensors:
        """Return the tensors of a part, on the host."""
        data, columns = self.prepare(self.dataset.span(*self.spans[part]))
        tensors = ReplayBuffer.from_dataset(data, columns=columns).data
        pinned = self.device.type == "cuda"  # pinned memory is copied during updates
        return {k: v.pin_memory() if pinned else v for k, v in tensors.items()}

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """Copy the part of `update` to the device."""
        part = update // self.updates % len(self.spans)
        if part == self.part:
            return
        self.pending = {k: v for k, v in self.pending.items() if k == part}
        pending = self.pending.pop(part, None)
        self._copy(self.gather(part) if pending is None else pending.result())
        self.part, following = part, (part + 1) % len(self.spans)
        self.pending[following] = self.thread.submit(self.gather, following)

    def _copy(self, tensors: Tensors) -> None:
        for name, values in tensors.items():
            target = self.data[name]
            target = target[:, : values.shape[1]] if values.dim() > 1 else target
            target.copy_(values, non_blocking=True)

    def close(self) -> None:
        """End the thread that reads parts."""
        self.thread.shutdown(cancel_futures=True)


def spans_of(dataset: Dataset, rows: int) -> list[tuple[int, int]]:
    """Return the first row of each part and the row after its last one.

    A part has at most `rows` rows, unless it is a single longer episode.
    """
    stops, spans, start = dataset.episode_ends + 1, list[tuple[int, int]](), 0
    while start < dataset.num_rows:
        fitting = int(np.searchsorted(stops, start + rows, side="right")) - 1
        following = int(np.searchsorted(stops, start, side="right"))
        spans.append((start, int(stops[max(fitting, following)])))
        start = spans[-1][1]
    return spans

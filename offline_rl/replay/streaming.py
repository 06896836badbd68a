"""Batches of data that is larger than the device's memory, or than the machine's.

The data stays in its (memory-mapped) arrays. The batches of the next `AHEAD` updates are gathered
by a thread of the host while the device works through the present ones. Which rows an update draws
is a function of the seed and the update alone (`utils/random.py`), so the batches are those that a
`ReplayBuffer` of the same data would have given, to the bit.
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

AHEAD = 64  # updates, about, whose batches are on the device at a time


class Stream:
    """Uniform batches of single steps, as `buffer.ReplayBuffer` draws them; a `batch.Source`."""

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
        """dataset: raw observations, all else as it is learned from. columns: [N, …] each.

        period: the algorithm's, updates that are launched together.
        """
        self.ahead = max(1, AHEAD // period) * period
        self.dataset, self.normalize = dataset, normalize
        self.rows = np.flatnonzero(dataset.usable)
        if not len(self.rows):
            raise UserError(f"{dataset.name}: no row can serve as a transition")
        self.columns = {**columns, "actions": dataset.actions, "rewards": dataset.rewards}
        self.seeds, self.batch_size = list(seeds), batch_size
        self.thread, self.coming = ThreadPoolExecutor(1), dict[int, Future[dict[str, Tensor]]]()
        self.window = -1  # whose batches are on the device: updates window * ahead and following
        self.pinned = torch.device(device).type == "cuda"  # for copies beside the updates
        self.data = {k: v.to(device) for k, v in self.gather(0).items()}

    def gather(self, window: int) -> dict[str, Tensor]:
        """The batches of a window's updates, [S, ahead, B, …] each, on the host."""
        updates = torch.arange(window * self.ahead, (window + 1) * self.ahead)
        size, seeds = torch.tensor(len(self.rows)), torch.tensor(self.seeds)

        def draw(seed: Tensor, update: Tensor) -> Tensor:
            return Random(seed, update).integers(size, (self.batch_size,))

        with torch.no_grad():
            drawn = vmap(vmap(draw, (None, 0)), (0, None))(seeds, updates)  # [S, ahead, B]
        rows, data = self.rows[drawn.numpy()], self.dataset
        host = {name: values[rows] for name, values in self.columns.items()}
        for word, at in (("observations", rows), ("next_observations", data.next_index[rows])):
            host |= channels.flat({word: self.normalize(channels.take(data.observations, at))})
        host["going_on"] = 1 - data.terminated[rows].astype(np.float32)
        kinds = {k: np.uint8 if v.dtype == np.uint8 else np.float32 for k, v in host.items()}
        tensors = {k: torch.from_numpy(np.asarray(v, kinds[k])) for k, v in host.items()}
        return {k: v.pin_memory() if self.pinned else v for k, v in tensors.items()}

    def ready(self, update: int) -> None:
        """Puts on the device what `update` and those after it in its window will ask for."""
        window = update // self.ahead
        if window == self.window:
            return
        self.coming = {k: v for k, v in self.coming.items() if k == window}
        coming = self.coming.pop(window, None)
        fresh = self.gather(window) if coming is None else coming.result()
        for name, values in fresh.items():  # after what was launched before: the order of a stream
            self.data[name].copy_(values, non_blocking=True)
        self.window = window
        self.coming[window + 1] = self.thread.submit(self.gather, window + 1)

    def close(self) -> None:
        """End the thread that gathers batches."""
        self.thread.shutdown(cancel_futures=True)

    def tensors(self) -> dict[str, Tensor]:
        """See `replay.batch.Source`."""
        return self.data

    def sample(
        self, data: dict[str, Tensor], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """The batch of the update that `random` belongs to."""
        random.site += 1  # that of the rows, drawn by `gather`
        row = (random.update % self.ahead)[None]  # an index of no axes would ask for its value
        now: dict[str, Any] = {k: v.index_select(0, row)[0] for k, v in data.items()}
        return Batch(discount=discount * now.pop("going_on"), **channels.nested(now))

"""A source for data sets whose images are in videos, which are decoded during training.

All other columns of the data are on the device. Of the images, only those are there that a block of
updates reads. The rows of an update depend only on the seed and the update (`utils/random.py`), so
they are known in advance: while the device runs a block, threads decode the images of the next one.

    rows          0    1    2    3    4    5   …   M     of the data
    slots         .    0    1    .    .    2             row of the image; ".": none is read
    images        o1   o2   o5                           of the block, [P, H, W, C]

On a CPU, `images` has two halves. The next block is decoded to the half that is not in use. On a
GPU, it is decoded to pinned memory of the host, and copied when its first update is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer, Tensors, observation_order
from offline_rl.utils.random import Random
from policies import channels

BLOCK_BYTES = 128 << 20  # size of the images of a block, unless one period of updates needs more


class Pending(NamedTuple):
    """A block whose images are being decoded."""

    view: Source
    update: int  # first update of the block
    rows: np.ndarray  # rows whose images the block reads
    decoded: Future[None]


class PagedBuffer(Source):
    """A replay buffer that holds only the images of the current block of updates.

    Its batches, and those of chunks and histories that sample from it, are bit for bit those of a
    `ReplayBuffer` with all images. Call `allocate` before the first batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        seeds: Sequence[int],
        batch_size: int,
        *,
        columns: Mapping[str, np.ndarray],
        reads_next: bool = True,
        period: int = 1,
        device: torch.device | str = "cpu",
        make_random: Callable[[Tensor, Tensor], Random] = Random,
    ) -> None:
        """Page the images of `dataset`, which is already transformed.

        columns: additional columns of a batch, [N, …] each.
        reads_next: False: updates do not read next observations. Those of a batch are then
        arbitrary images.
        period: number of updates that are launched together; a block holds complete periods.
        make_random: returns the random numbers of a seed and an update, as in the engine.
        """
        observations = channels.flatten({"observations": dataset.observations})
        self.images = {k: x for k, x in observations.items() if channels.is_image(x.shape[1:])}
        vectors = {k: x for k, x in observations.items() if k not in self.images}
        self.order, count = observation_order(dataset), channels.size(dataset.observations)
        placeholder = {"": np.zeros((count, 0), np.float32)}
        kept = channels.get(vectors, "observations") or placeholder
        self.buffer = ReplayBuffer.from_dataset(
            replace(dataset, observations=kept), columns=columns
        )
        host = self.buffer.data
        # To find the rows that a batch reads, the same code samples from data in which the
        # observation of each row is its number.
        self.numbered = {k: x[0] for k, x in host.items() if not k.startswith("observations")}
        self.numbered["observations"] = torch.arange(count)
        self.device = torch.device(device)
        self.data: Tensors = {k: x.to(self.device) for k, x in host.items() if k != "observations/"}
        self.seeds, self.batch_size = torch.tensor(list(seeds)), batch_size
        self.reads_next, self.period, self.make_random = reads_next, period, make_random
        self.ahead = period  # number of updates in a block
        self.size = 0  # maximum number of images in a block
        self.first = 0  # row of the current block's first image, which is that of a half
        self.staging: Tensors = {}  # with a GPU: images of the next block, on the host
        self.copied: Any = None  # CUDA event after the last copy of the staged images
        self.thread = ThreadPoolExecutor(1)
        self.block: tuple[Source, int] | None = None  # current block: view and first update
        self.pending: Pending | None = None

    def allocate(self, views: Sequence[Source]) -> None:
        """Allocate space for the images that a block reads.

        views: the sources that sample from this one, or this source itself.
        """
        per_update = max(
            (self.rows_read(view, 0, 1, unique=False).size for view in views), default=1
        )
        image_bytes = sum(prod(x.shape[1:]) for x in self.images.values())
        periods = BLOCK_BYTES // (per_update * image_bytes * self.period)
        self.ahead = max(periods, 1) * self.period
        count = len(self.order)
        self.size = min(self.ahead * per_update, count)
        on_gpu = self.device.type == "cuda"
        for name, images in self.images.items():
            shape = (self.size, *images.shape[1:])
            if on_gpu:
                self.staging[name] = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
            shape = (1, self.size if on_gpu else 2 * self.size, *images.shape[1:])
            self.data[name] = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.data["slots"] = torch.zeros((1, count), dtype=torch.int32, device=self.device)
        if on_gpu:
            self.copied = torch.cuda.Event()

    def rows_read(
        self, view: Source, update: int, updates: int, *, unique: bool = True
    ) -> np.ndarray:
        """Return the rows of the observations that `view` reads in a block of updates, sorted."""

        def rows(seed: Tensor, update: Tensor) -> list[Tensor]:
            random = self.make_random(seed, update)
            batch = view.sample(self.numbered, random, self.batch_size, 1.0)
            read = [batch.observations, *([batch.next_observations] if self.reads_next else [])]
            return [x.long().reshape(-1) for x in read]

        block = torch.arange(update, update + updates)
        with torch.no_grad():
            read = vmap(vmap(rows, (None, 0)), (0, None))(self.seeds, block)
        numbers = torch.cat([x.reshape(-1) for x in read]).numpy()
        return np.unique(numbers) if unique else numbers

    @property
    def unused_half(self) -> int:
        """Row of the first image of the half that is not in use; 0 on a GPU."""
        return 0 if self.staging else self.size - self.first

    def gather(self, rows: np.ndarray) -> None:
        """Decode the images of `rows` to the half that is not in use, or to the host's memory."""
        if self.copied is not None:
            self.copied.synchronize()
        for name, images in self.images.items():
            staged = self.staging.get(name, self.data[name][0, self.unused_half :])
            target = staged[: len(rows)].numpy()
            if isinstance(images, VideoFrames):
                images.read(self.order[rows], target)
            else:
                np.take(images, self.order[rows], axis=0, out=target)

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """Make the images of the block that contains `update` available on the device.

        Raises UserError if an image cannot be decoded.
        """
        view = view or self
        if self.block is not None and self.block[0] is view:
            offset = update - self.block[1]
            if 0 <= offset <= self.ahead - self.period:
                return
        pending, self.pending = self.pending, None
        if pending is not None:  # wait, because the thread writes images
            pending.decoded.exception()
        if pending is not None and (pending.view, pending.update) == (view, update):
            rows = pending.rows
            pending.decoded.result()
        else:
            rows = self.rows_read(view, update, self.ahead)
            self.gather(rows)
        self.first = self.unused_half
        at, slots = torch.from_numpy(rows), torch.arange(len(rows), dtype=torch.int32) + self.first
        if self.staging:
            at, slots = (x.pin_memory().to(self.device, non_blocking=True) for x in (at, slots))
        self.data["slots"][0].index_copy_(0, at, slots)
        for name, images in self.staging.items():  # after the updates that were launched before
            self.data[name][0, : len(rows)].copy_(images[: len(rows)], non_blocking=True)
        if self.copied is not None:
            self.copied.record()
        self.block, following = (view, update), update + self.ahead
        rows = self.rows_read(view, following, self.ahead)
        decoded = self.thread.submit(self.gather, rows)
        self.pending = Pending(view, following, rows, decoded)

    def close(self) -> None:
        """End the thread that decodes images."""
        self.thread.shutdown(cancel_futures=True)

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.data

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`."""
        return self.buffer.sample(data, random, batch_size, discount)

"""Division of a replay buffer's rows into training and holdout rows of a dynamics model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.random import MASK, Random, mix

By = Literal["rows", "episodes"]  # unit that is held out
Part = Literal["training", "holdout", "all_training"]


class Split(Source):
    """One part of a replay buffer's rows.

    training: one batch for each ensemble member, concatenated. Each member has a fixed bootstrap
    sample of the training rows: as many rows as there are, sampled with replacement. Its batches
    are sampled from it, again with replacement.
    holdout, all_training: all rows of the part, independent of the batch size, padded to a fixed
    number of rows. `weights` are 1 for rows and 0 for padding.

    Rows whose next observation is not in the data are in no part: terminated rows of data without
    next observations. They are their own next rows in the buffer.
    The division is random, but the same for all seeds that share the buffer. When the buffer has
    new rows, all rows are divided again.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        part: Part,
        *,
        members: int = 1,
        share: float = 0.2,
        most: int = 1000,
        by: By = "rows",
    ) -> None:
        """Divide the rows of `buffer`.

        share, most: the holdout has this share of the rows, and at most this number of rows.
        by: hold out single rows, or complete episodes; then `most` is not used.
        """
        self.buffer, self.part, self.members = buffer, part, members
        self.share, self.most, self.by = share, most, by
        self.ends = np.zeros(buffer.streams, int)  # rows added to each stream at its last division
        shape, device = (buffer.streams, buffer.capacity), buffer.device
        self.data = {
            "order": torch.zeros(shape, dtype=torch.int32, device=device),  # holdout rows first
            "held": torch.zeros(buffer.streams, dtype=torch.int64, device=device),
            "count": torch.zeros(buffer.streams, dtype=torch.int64, device=device),  # divided rows
        }
        self.prefetch(0)

    def tensors(self) -> dict[str, Any]:
        """See `Source`."""
        return self.data | {"buffer": self.buffer.tensors()}

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """Divide the rows again if the buffer has new rows."""
        ends = self.buffer.added - self.buffer.hidden
        for stream in np.flatnonzero(self.ends != ends):
            first = ends[stream] - int(self.buffer.sizes[stream])
            rows = np.arange(first, ends[stream]) % self.buffer.capacity
            order, held = self._divide(int(stream), rows)
            self.data["order"][stream, : len(order)] = torch.from_numpy(order)
            self.data["held"][stream], self.data["count"][stream] = held, len(order)
        self.ends = ends

    def _divide(self, stream: int, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Return a permutation of the rows with the holdout first, and the holdout's size.

        rows: positions in the buffer, the oldest row first.
        """
        at, known = torch.from_numpy(rows), np.ones(len(rows), bool)
        if self.buffer.device.type != "meta":  # tensors of the meta device have no values
            known = self.buffer.data["next_index"][stream, at].cpu().numpy() != rows
        rows_of_parts, size = rows[known], int(known.sum())
        order = np.random.default_rng(size).permutation(size)
        if self.by == "rows":
            return rows_of_parts[order], min(int(self.share * size), self.most)
        flags = [self.buffer.data[k][stream, at] for k in ("terminated", "truncated")]
        ends = sum(flag.cpu().numpy().astype(int) for flag in flags) > 0
        episode = np.cumsum(ends) - ends
        held = np.random.default_rng(size).permutation(episode[-1] + 1)
        held = held[: int(self.share * len(held))]
        is_held = np.isin(episode[known], held)[order]
        order = np.concatenate([order[is_held], order[~is_held]])
        return rows_of_parts[order], int(is_held.sum())

    def sample(
        self, data: dict[str, Any], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Return `members * batch_size` training rows, or all rows of the part."""
        held = data["held"]
        count = held if self.part == "holdout" else data["count"] - held
        first = torch.zeros_like(held) if self.part == "holdout" else held
        if self.part == "training":
            place = random.integers(count, (self.members, batch_size))
            member = torch.arange(self.members, device=place.device)[:, None]
            key = mix((member * 0x9E3779B1 + random.seed * 0x1E3779B1) & MASK)
            at = (mix((place + key) & MASK) * count >> 32).flatten()
            return self.buffer.batch_at(data["buffer"], data["order"][first + at], discount)
        rows = self.buffer.capacity
        if self.part == "holdout" and self.by == "rows":
            rows = max(min(self.most, int(self.share * rows)), 1)
        place = torch.arange(rows, device=held.device)
        at = data["order"][first + place % count]
        batch = self.buffer.batch_at(data["buffer"], at, discount)
        return replace(batch, weights=(place < count).float())

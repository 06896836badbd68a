"""Batches of two sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer, Tensors
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random


class WithExpert:
    """Batches of `data`, each with as large a batch of `expert` beside it."""

    def __init__(self, data: ReplayBuffer, expert: ReplayBuffer) -> None:
        self.data, self.expert = data, expert

    def tensors(self) -> dict[str, Tensors]:
        """See `Source`."""
        return {"data": self.data.tensors(), "expert": self.expert.tensors()}

    def sample(
        self, data: dict[str, Tensors], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """`batch_size` transitions of each."""
        expert = self.expert.sample(data["expert"], random, batch_size, discount)
        return replace(self.data.sample(data["data"], random, batch_size, discount), expert=expert)


class Mixture:
    """Every batch a share `ratio` from `first`, the rest from `second`, interleaved.

    So every slice of a batch keeps the ratio, as RLPD needs it (Ball et al., arXiv:2302.02948).
    """

    def __init__(self, first: ReplayBuffer, second: ReplayBuffer, ratio: float = 0.5) -> None:
        """ratio: in [0, 1]."""
        if not 0 <= ratio <= 1:
            raise UserError(f"a mixing ratio is between 0 and 1, found {ratio}")
        self.first, self.second, self.ratio = first, second, ratio

    def tensors(self) -> dict[str, Tensors]:
        """See `Source`."""
        return {"first": self.first.tensors(), "second": self.second.tensors()}

    def sample(
        self, data: dict[str, Tensors], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """round(ratio * batch_size) transitions from the first, the rest from the second."""
        # place k is the first's where the running share passes a whole number
        share = np.floor(np.arange(batch_size + 1) * self.ratio + 0.5).astype(int)
        is_first = np.diff(share) > 0
        count = int(is_first.sum())
        parts = []
        if count:
            parts.append(self.first.sample(data["first"], random, count, discount))
        if count < batch_size:
            rest = batch_size - count
            parts.append(self.second.sample(data["second"], random, rest, discount))
        order = np.empty(batch_size, int)
        order[np.flatnonzero(is_first)] = np.arange(count)
        order[np.flatnonzero(~is_first)] = np.arange(count, batch_size)
        index = torch.from_numpy(order).to(parts[0].rewards.device)
        columns: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts])[index]
            for name in parts[0].__dataclass_fields__
            if all(getattr(part, name) is not None for part in parts)
        }
        return Batch(**columns)

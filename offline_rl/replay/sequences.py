"""Windows of consecutive steps, never across an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import Tensors, observed, steps
from offline_rl.replay.columns import COLUMNS
from offline_rl.utils.random import Random

if TYPE_CHECKING:
    from offline_rl.replay.batch import Source


def windows(
    data: Tensors, rows: Tensor, history: int, horizon: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of sequences around each of `rows` [B], never across an episode.

        time        t-history+1 … t | t … t+horizon-1
                    observations    | actions

    Returns rows of observations [B, history], the episode's first repeated before its start; rows
    of actions [B, horizon], its last repeated after its end; and whether the latter are real ones.
    """
    capacity = len(data["rewards"])
    ahead = steps(data, rows, horizon)
    inside = torch.stack([i for _, i in ahead], 1)
    count = inside.sum(1, keepdim=True)
    offset = torch.arange(horizon, device=rows.device)
    future = (rows[:, None] + offset.minimum(count - 1)) % capacity
    behind, first, going = [rows], rows, torch.ones_like(rows, dtype=torch.bool)
    for _ in range(history - 1):
        before = (first - 1) % capacity
        ended = (data["terminated"][before] + data["truncated"][before]) > 0
        going = going & ~ended & (first != data["oldest"])
        first = torch.where(going, before, first)
        behind.insert(0, first)
    return torch.stack(behind, 1), future, inside


class Windows:
    """Every batch windows of `length` steps, each from a uniformly drawn row on, [B, H, …].

    Where the episode ends within a window its last step is repeated; `real` says which are real.
    """

    def __init__(self, buffer: Source, length: int) -> None:
        """buffer: with the tensors of a `ReplayBuffer`."""
        self.buffer, self.length = buffer, length

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors()

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`; the discount is that of single steps."""
        start = (data["oldest"] + random.integers(data["size"], (batch_size,))) % len(
            data["rewards"]
        )
        _, rows, real = windows(data, start, 1, self.length)
        columns: dict[str, Any] = {name: data[name][rows] for name in COLUMNS if name in data}
        return Batch(
            observations=observed(data, rows),
            actions=data["actions"][rows],
            rewards=data["rewards"][rows],
            discount=discount * (1 - data["terminated"][rows]),
            next_observations=observed(data, data["next_index"][rows]),
            real=real,
            **columns,
        )

"""Chunks of consecutive actions and what was seen before them, never across an episode.

time                  t-1    t  | t+1  …
history of 2           o      o |                   present last
window of 4, oldest    a      a |  a      a         its first action beside the oldest observation
window of 4, present          a |  a      a      a  or beside the present one
executed 3                    r |  r      r         rewards summed, then what is seen next: t+3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import Tensors, observed
from offline_rl.replay.columns import COLUMNS, STEPS
from offline_rl.utils.random import Random

if TYPE_CHECKING:
    from offline_rl.replay.batch import Source


class Chunks:
    """Every batch chunks around a uniformly drawn row, the present: it is each row equally often.

    Of a batch are observations and next observations [B, n_obs_steps, *obs], actions [B, horizon, A],
    and `real` [B, horizon]: which of these are the episode's; before its start its first row is
    repeated, after its end its last. Rewards are the discounted sum over the `n_action_steps` actions
    from the present one on, or over those up to the episode's end, and further columns what
    `columns.STEPS` says; after so many steps it bootstraps, by gamma to their power, or 0 where the
    last of them terminated.
    """

    def __init__(
        self,
        buffer: Source,
        *,
        n_obs_steps: int,
        horizon: int,
        n_action_steps: int,
        beside: Literal["oldest", "present"] = "oldest",
    ) -> None:
        """buffer: with the tensors of a `ReplayBuffer`.  beside: where the first action lies."""
        self.buffer, self.n_obs_steps, self.horizon, self.n_action_steps = (
            buffer,
            n_obs_steps,
            horizon,
            n_action_steps,
        )
        self.first = 1 - n_obs_steps if beside == "oldest" else 0

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors()

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`."""
        present = (data["oldest"] + random.integers(data["size"], (batch_size,))) % len(
            data["rewards"]
        )
        seen, _ = around(data, present, 1 - self.n_obs_steps, 0)
        rows, real = around(data, present, self.first, self.first + self.horizon - 1)
        done, inside = around(data, present, 0, self.n_action_steps - 1)
        last, count = done[:, -1], inside.sum(1)
        power = torch.arange(self.n_action_steps, device=present.device)
        columns: dict[str, Any] = {}
        for name in ("rewards", *(name for name in COLUMNS if name in data)):
            if STEPS[name] in ("sum", "discounted"):
                weight = inside * discount**power if STEPS[name] == "discounted" else inside
                columns[name] = (weight * data[name][done]).sum(1)
            else:
                columns[name] = data[name][last if STEPS[name] == "last" else present]
        before, _ = (
            around(data, last, 2 - self.n_obs_steps, 0) if self.n_obs_steps > 1 else (None, None)
        )
        following = data["next_index"][last][:, None].long()
        after = following if before is None else torch.cat([before, following], 1)
        return Batch(
            observations=observed(data, seen),
            actions=data["actions"][rows],
            discount=discount**count * (1 - data["terminated"][last]),
            next_observations=observed(data, after),
            real=real,
            **columns,
        )


def around(data: Tensors, rows: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The rows from `first` to `last` beside each of `rows` [B], 0 being itself, [B, steps] each.

    Where the episode, or the data, begins or ends in between, its first or last row is repeated;
    the second says where it is not.
    """
    capacity = len(data["rewards"])
    behind = reach(data, rows, -first, -1)
    ahead = reach(data, rows, last, 1)
    offset = torch.arange(first, last + 1, device=rows.device)
    kept = offset.clamp(-behind[:, None], ahead[:, None])
    return (rows[:, None] + kept) % capacity, kept == offset


def reach(data: Tensors, rows: Tensor, most: int, direction: int) -> Tensor:
    """How many steps back (-1) or on (1) from each of `rows` its episode goes, at most `most`."""
    if most < 1:
        return torch.zeros_like(rows)
    way = torch.arange(most, device=rows.device)
    if direction > 0:  # it goes on behind a row that is no end
        row = (rows[:, None] + way) % len(data["rewards"])
        edge = row == data["newest"]
    else:  # it goes back before a row if the one before it is no end
        row = (rows[:, None] - way - 1) % len(data["rewards"])
        edge = (row + 1) % len(data["rewards"]) == data["oldest"]
    ended = (data["terminated"][row] + data["truncated"][row]) > 0
    return ((ended | edge).cumsum(1) == 0).sum(1)

"""Observation histories, action chunks, and sequences of steps, each within one episode.

time                        t-1    t  | t+1    t+2    t+3
n_obs_steps=2                o      o |                      the last one is the current observation
horizon=4, "oldest"          a      a |  a      a            starts at the oldest observation
horizon=4, "present"                a |  a      a      a     starts at the current observation
n_action_steps=3                    r |  r      r            sum of rewards; next observation: t+3
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import (
    Tensors,
    discount_of,
    n_step,
    observations_at,
    rows_around,
    transition_rows,
)
from offline_rl.replay.columns import COLUMNS
from offline_rl.utils.random import Random

WEIGHT_BITS = 38  # of the largest sampling weight; sums of 16 million rows fit into 63 bits


class Chunks(Source):
    """A source of batches of action chunks. The current step of a chunk is a uniformly sampled row.

    A batch has observations and next observations [B, n_obs_steps, *obs], actions [B, horizon, A],
    and the padding mask `valid` [B, horizon]. Before the start of an episode, the first row is
    repeated; after the end, the last row is repeated. `valid` is False there.

    Rewards are the discounted sum over the first m rows, from the current one on. m is
    `n_action_steps`, or smaller if the episode ends earlier or a row terminates earlier. Additional
    columns are combined as `columns.COLUMNS` declares. The next observations are those after row m.
    The discount is gamma**m, or 0 if row m terminated. With the column `steps`, the exponent is the
    sum of `steps` over these rows.

    A chunk that the end of the episode cuts short therefore bootstraps from the last observation,
    unless the episode terminated. An episode can continue after a row that terminated, as in
    demonstrations that continue after success. Actions and `valid` then include the later rows.

    partial="drop" is the rule of ColinQiyangLi/qc:utils/datasets.py. `weights` is 0 for chunks that
    the end of the episode cuts short, and 1 for others. Rewards after a row that terminated are
    included in the sum, and the discount is 0 if any row of the chunk terminated.
    """

    def __init__(
        self,
        buffer: Source,
        *,
        n_obs_steps: int,
        horizon: int,
        n_action_steps: int,
        chunk_start: Literal["oldest", "present"] = "oldest",
        partial: Literal["bootstrap", "drop"] = "bootstrap",
    ) -> None:
        """Sample from `buffer`, which has the tensors of a `ReplayBuffer`.

        chunk_start: time step of the chunk's first action: that of the oldest observation, or the
        current one; see the table above. partial: how critics use chunks that the end of an
        episode cuts short; see the class.
        """
        self.buffer, self.n_obs_steps = buffer, n_obs_steps
        self.horizon, self.n_action_steps = horizon, n_action_steps
        self.first = 1 - n_obs_steps if chunk_start == "oldest" else 0
        self.drops_partial = partial == "drop"

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors()

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """See `Source`."""
        self.buffer.prefetch(update, view or self)

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`."""
        current = (data["oldest"] + random.integers(data["size"], (batch_size,))) % len(
            data["rewards"]
        )
        rows, valid = rows_around(data, current, self.first, self.first + self.horizon - 1)
        if self.drops_partial:
            executed, inside = rows_around(data, current, 0, self.n_action_steps - 1)
            bootstraps = 1 - data["terminated"][executed].amax(1)
        else:
            executed, inside = transition_rows(data, current, self.n_action_steps)
            bootstraps = 1 - data["terminated"][executed[:, -1]]
        last_rows, count = executed[:, -1], inside.sum(1)
        power = torch.arange(self.n_action_steps, device=current.device)
        if "steps" in data:
            lengths = inside * data["steps"][executed]
            count, power = lengths.sum(1), lengths.cumsum(1) - lengths  # [B], [B, n_action_steps]
        columns: dict[str, Any] = {}
        for name in (name for name in COLUMNS if name in data):
            rule = COLUMNS[name].over_steps
            if rule in ("sum", "discounted"):
                weight = inside * discount**power if rule == "discounted" else inside
                columns[name] = (weight * data[name][executed]).sum(1)
            else:
                columns[name] = data[name][last_rows if rule == "last" else current]
        return Batch(
            observations=histories_at(data, current, self.n_obs_steps),
            actions=data["actions"][rows],
            discount=discount**count * bootstraps,
            next_observations=next_histories_at(data, last_rows, self.n_obs_steps),
            bootstrap_mask=bootstraps.float(),
            valid=valid,
            weights=inside[:, -1].float() if self.drops_partial else None,
            **columns,
        )


class Histories(Source):
    """A source of transitions whose observations are histories, [B, n_obs_steps, *obs].

    Other columns are those of a `ReplayBuffer`. Before the start of an episode, its first
    observation is repeated, as in acting.
    """

    def __init__(self, buffer: Source, n_obs_steps: int, n_step: int = 1) -> None:
        """Sample from `buffer`, which has the tensors of a `ReplayBuffer`.

        n_step: number of rows of a transition.
        """
        self.buffer, self.n_obs_steps, self.n_step = buffer, n_obs_steps, n_step

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors()

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """See `Source`."""
        self.buffer.prefetch(update, view or self)

    def with_n_step(self, n_step: int) -> Histories:
        """See `Source`."""
        return Histories(self.buffer, self.n_obs_steps, n_step)

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Sample the rows that `ReplayBuffer.sample` would sample."""
        count = len(data["rewards"])
        rows = (data["oldest"] + random.integers(data["size"], (batch_size,))) % count
        columns, factor, last = n_step(data, rows, self.n_step, discount)
        bootstraps = 1 - data["terminated"][last]
        return Batch(
            observations=histories_at(data, rows, self.n_obs_steps),
            actions=data["actions"][rows],
            discount=factor * bootstraps,
            next_observations=next_histories_at(data, last, self.n_obs_steps),
            bootstrap_mask=bootstraps.float(),
            **columns,
        )


def histories_at(data: Tensors, rows: Tensor, n_obs_steps: int) -> Any:
    """Return the observations up to each of `rows` [B], [B, n_obs_steps, *obs].

    Before the start of an episode, its first observation is repeated.
    """
    observed, _ = rows_around(data, rows, 1 - n_obs_steps, 0)
    return observations_at(data, observed)


def next_histories_at(data: Tensors, rows: Tensor, n_obs_steps: int) -> Any:
    """Return the observations up to the one after each of `rows` [B], [B, n_obs_steps, *obs]."""
    following = data["next_index"][rows][:, None].long()
    if n_obs_steps > 1:
        previous, _ = rows_around(data, rows, 2 - n_obs_steps, 0)
        following = torch.cat([previous, following], 1)
    return observations_at(data, following)


class Sequences(Source):
    """A source of batches of sequences of `length` steps; each starts at a uniformly sampled row.

    All columns are [B, length, …]. If the episode ends within a sequence, the last step is
    repeated, and the padding mask `valid` is False there.
    """

    def __init__(self, buffer: Source, length: int) -> None:
        """Sample from `buffer`, which has the tensors of a `ReplayBuffer`."""
        self.buffer, self.length = buffer, length

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors()

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """See `Source`."""
        self.buffer.prefetch(update, view or self)

    def sample(
        self, data: Tensors, random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """See `ReplayBuffer.sample`. The batch's discount refers to single rows."""
        start = self.sample_rows(data, random, batch_size)
        rows, valid = rows_around(data, start, 0, self.length - 1)
        columns: dict[str, Any] = {name: data[name][rows] for name in COLUMNS if name in data}
        bootstraps = 1 - data["terminated"][rows]
        return Batch(
            observations=observations_at(data, rows),
            actions=data["actions"][rows],
            discount=discount_of(data, rows, discount) * bootstraps,
            next_observations=observations_at(data, data["next_index"][rows]),
            bootstrap_mask=bootstraps.float(),
            valid=valid,
            **columns,
        )

    def sample_rows(self, data: Tensors, random: Random, count: int) -> Tensor:
        """Return the first rows of `count` sequences, [B]."""
        return (data["oldest"] + random.integers(data["size"], (count,))) % len(data["rewards"])


class WeightedSequences(Sequences):
    """Sequences that start at a row with a probability proportional to `sampling_weights`.

    In data that does not fit into memory, the probabilities are those within the current part.
    """

    def __init__(self, buffer: Source, length: int) -> None:
        """Sample from `buffer`, which has the column `sampling_weights` and does not grow."""
        super().__init__(buffer, length)
        self.cumulative = self._accumulate()  # [1, N] int64
        self._version = self._weights._version

    @property
    def _weights(self) -> Tensor:
        weights: Tensor = self.buffer.tensors()["sampling_weights"]
        return weights

    def _accumulate(self) -> Tensor:
        """Return cumulative sums of the weights as integers, whose order of summation is free."""
        weights, size = self._weights.double(), self.buffer.tensors()["size"]
        weights = weights * (torch.arange(weights.shape[1], device=weights.device) < size[:, None])
        return (weights / weights.amax(1, keepdim=True) * 2**WEIGHT_BITS).round().long().cumsum(1)

    def tensors(self) -> Tensors:
        """See `Source`."""
        return self.buffer.tensors() | {"cumulative": self.cumulative}

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """See `Source`."""
        super().prefetch(update, view)
        if self._version != self._weights._version:  # the buffer has another part of the data
            self._version = self._weights._version
            self.cumulative.copy_(self._accumulate())

    def sample_rows(self, data: Tensors, random: Random, count: int) -> Tensor:
        """Return the first rows of `count` sequences, [B]."""
        high, low = ((random.uniform((count,)) * 2**24).double() for _ in range(2))
        position = (high + low / 2**24) / 2**24  # uniform in [0, 1) with 48 bits
        cumulative = data["cumulative"]
        target = (position * cumulative[-1]).long().clamp(max=cumulative[-1] - 1)
        return torch.searchsorted(cumulative, target, right=True)

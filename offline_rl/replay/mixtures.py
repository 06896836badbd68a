"""Sources that combine the batches of two sources, or add a column to those of one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch, Source
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels


class WithExpert(Source):
    """A source of batches of `data`, each with a batch of `expert` of the same size."""

    def __init__(self, data: Source, expert: Source) -> None:
        self.data, self.expert = data, expert

    def tensors(self) -> dict[str, Any]:
        """See `Source`."""
        return {"data": self.data.tensors(), "expert": self.expert.tensors()}

    def with_n_step(self, n_step: int) -> WithExpert:
        """See `Source`."""
        return WithExpert(self.data.with_n_step(n_step), self.expert.with_n_step(n_step))

    def sample(
        self, data: dict[str, Any], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Sample `batch_size` transitions from each buffer."""
        expert = self.expert.sample(data["expert"], random, batch_size, discount)
        return replace(self.data.sample(data["data"], random, batch_size, discount), expert=expert)


class Marked(Source):
    """A source with a constant column, such as `imagined`: 1 for transitions of a model, else 0."""

    def __init__(self, source: Source, column: str, value: float) -> None:
        self.source, self.column, self.value = source, column, value

    def tensors(self) -> Any:
        """See `Source`."""
        return self.source.tensors()

    def with_n_step(self, n_step: int) -> Marked:
        """See `Source`."""
        return Marked(self.source.with_n_step(n_step), self.column, self.value)

    def sample(self, data: Any, random: Random, batch_size: int, discount: float | Tensor) -> Batch:
        """Sample a batch with the column."""
        batch = self.source.sample(data, random, batch_size, discount)
        marks: Any = {self.column: torch.full_like(batch.rewards, self.value)}
        return replace(batch, **marks)


class Mixture(Source):
    """A source of mixed batches: a fraction `ratio` from `first`, the rest from `second`.

    Transitions of both buffers are interleaved, so that every slice of a batch has the ratio, as
    RLPD requires (Ball et al., arXiv:2302.02948). With ratio=None, transitions are sampled
    uniformly from the rows of both, as if they were one buffer.
    """

    def __init__(self, first: Source, second: Source, ratio: float | None = 0.5) -> None:
        """Mix two buffers.

        ratio: in [0, 1]; None: in proportion to the current numbers of rows.
        """
        if ratio is not None and not 0 <= ratio <= 1:
            raise UserError(f"The mixing ratio is {ratio}. Use a number between 0 and 1.")
        self.first, self.second, self.ratio = first, second, ratio

    def tensors(self) -> dict[str, Any]:
        """See `Source`."""
        return {"first": self.first.tensors(), "second": self.second.tensors()}

    def with_n_step(self, n_step: int) -> Mixture:
        """See `Source`."""
        sources = self.first.with_n_step(n_step), self.second.with_n_step(n_step)
        return Mixture(*sources, self.ratio)

    def sample(
        self, data: dict[str, Any], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Sample round(ratio * batch_size) transitions from `first`, the rest from `second`."""
        if self.ratio is None:
            return self._sample_in_proportion(data, random, batch_size, discount)
        # transition k is from `first` if k * ratio, rounded, increases by 1 from k to k + 1
        share = np.floor(np.arange(batch_size + 1) * self.ratio + 0.5).astype(int)
        is_first = np.diff(share) > 0
        first_count = int(is_first.sum())
        batches = []
        if first_count:
            batches.append(self.first.sample(data["first"], random, first_count, discount))
        if first_count < batch_size:
            second_count = batch_size - first_count
            batches.append(self.second.sample(data["second"], random, second_count, discount))
        order = np.empty(batch_size, int)
        order[np.flatnonzero(is_first)] = np.arange(first_count)
        order[np.flatnonzero(~is_first)] = np.arange(first_count, batch_size)
        # a list becomes a constant of the graph; an array would be copied in every update
        index = torch.tensor(order.tolist(), device=batches[0].rewards.device)
        return columns_of(batches, lambda *columns: torch.cat(columns)[index])

    def _sample_in_proportion(
        self, data: dict[str, Any], random: Random, batch_size: int, discount: float | Tensor
    ) -> Batch:
        """Sample a full batch from each buffer, then choose one of the two for each transition.

        The probability of a buffer is its share of the rows.
        """
        first_size, second_size = data["first"]["size"], data["second"]["size"]
        batches = [
            self.first.sample(data["first"], random, batch_size, discount),
            self.second.sample(data["second"], random, batch_size, discount),
        ]
        is_first = random.integers(first_size + second_size, (batch_size,)) < first_size  # [B]

        def choose(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(is_first.reshape(-1, *[1] * (a.dim() - 1)), a, b)

        return columns_of(batches, choose)


def columns_of(batches: Sequence[Batch], join: Callable[..., Tensor]) -> Batch:
    """Build a batch of the columns that all `batches` have. `join` combines their columns."""
    columns: dict[str, Any] = {
        name: channels.map_channels(join, *(getattr(batch, name) for batch in batches))
        for name in batches[0].__dataclass_fields__
        if all(getattr(batch, name) is not None for batch in batches)
    }
    return Batch(**columns)

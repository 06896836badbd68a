"""The batch of an update, and the interface of the sources of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offline_rl.utils.random import Random


@dataclass(frozen=True)
class Batch:
    """B transitions, or B sequences or chunks of H steps.

    `discount` is gamma, or gamma**n for n-step transitions, and 0 where the episode terminated.
    Observations are a tensor, or {channel: tensor}; images are uint8. In sequences
    (`chunks.Sequences`) every column is [B, H, …]. Sequences and chunks have the padding mask
    `valid`.
    """

    observations: Any  # [B, O]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    discount: Tensor  # [B]
    next_observations: Any  # [B, O]
    # The following columns are present if the algorithm requires them.
    mc_returns: Tensor | None = None  # [B], Monte Carlo returns
    costs: Tensor | None = None  # [B]
    next_actions: Tensor | None = None  # [B, A]; the last row of an episode repeats its action
    held_out: Tensor | None = None  # [B], 1 for validation rows, on which models are not fitted
    timesteps: Tensor | None = None  # [B], index of the step within its episode, from 0
    valid: Tensor | None = None  # [B, H] bool, padding mask: False where a step is only repeated
    expert: Batch | None = None  # a batch of the same size from an expert's data


class Source(Protocol):
    """Interface of a source of batches, such as a replay buffer.

    `tensors()` returns tensors with a leading seed axis, of size 1 if all seeds share the data.
    Their memory addresses never change. `sample` receives the tensors of one seed, without this
    axis. A source may also have a method `prefetch(update)`, which is called before that update is
    launched.
    """

    def tensors(self) -> Any: ...

    def sample(
        self, data: Any, random: Random, batch_size: int, discount: float | Tensor
    ) -> Any: ...  # a Batch, or `rollouts.Decisions`


@dataclass(frozen=True)
class Sources:
    """The sources of a run; None for each source that the run does not have."""

    offline: Source | None = None  # the data set, without rows that the main phase cannot use
    online: Source | None = None  # the replay buffer of each seed's environment steps
    rollouts: Source | None = None  # on-policy rollouts of each seed's current policy
    every_row: Source | None = None  # all rows, for imitation; None if `offline` has them all

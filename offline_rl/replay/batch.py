"""The batch of an update, and the interface of the sources that batches are sampled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offline_rl.utils.random import Random


@dataclass(frozen=True)
class Batch:
    """B transitions, or B sequences or chunks of H steps.

    `discount` is gamma, gamma**n for n-step transitions, and 0 where the episode terminated.
    Observations are a tensor, or one tensor per channel by name; images are uint8. In sequences
    (`chunks.Sequences`) every column is [B, H, …]; sequences and chunks have `real`.
    """

    observations: Any  # [B, O]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    discount: Tensor  # [B]
    next_observations: Any  # [B, O]
    # The following columns are present if the algorithm requires them.
    mc_returns: Tensor | None = None  # [B], Monte Carlo returns
    costs: Tensor | None = None  # [B]
    next_actions: Tensor | None = None  # [B, A]; in an episode's last row its own action
    held_out: Tensor | None = None  # [B], 1 for validation rows, which models are not fitted to
    timesteps: Tensor | None = None  # [B], index of the step in its episode, from 0
    real: Tensor | None = None  # [B, H] bool: False for padding, a repeated first or last step
    expert: Batch | None = None  # a batch of the same size from an expert's data


class Source(Protocol):
    """Interface of everything that batches are sampled from, such as a replay buffer.

    `tensors()` have a leading seed axis, of size 1 if all seeds share them; their memory addresses
    never change. `sample` receives them without this axis. A source may have a method
    `prefetch(update)`, which is called before that update is launched.
    """

    def tensors(self) -> Any: ...

    def sample(
        self, data: Any, random: Random, batch_size: int, discount: float | Tensor
    ) -> Any: ...  # a Batch, or `rollouts.Decisions`


@dataclass(frozen=True)
class Sources:
    """The sources of a run; None for those that it does not have."""

    offline: Source | None = None  # the data set; only rows that the main phase can use
    online: Source | None = None  # the replay buffer of each seed's environment steps
    rollouts: Source | None = None  # on-policy rollouts of each seed's current policy
    every_row: Source | None = None  # the data set for imitation, if `offline` leaves rows out

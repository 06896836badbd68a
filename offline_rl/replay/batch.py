"""What an update learns from, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offline_rl.utils.random import Random


@dataclass(frozen=True)
class Batch:
    """B transitions. `discount` is gamma, 0 where the episode terminated, gamma**n for n steps.

    Observations are a tensor, or one for each channel by name, pictures in uint8.
    Or B windows of H steps (`sequences.Windows`): every column is [B, H, …], and `real` is given.
    """

    observations: Any  # [B, O]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    discount: Tensor  # [B]
    next_observations: Any  # [B, O]
    mc_returns: Tensor | None = None  # [B], where the algorithm's `needs` names it; likewise below
    costs: Tensor | None = None  # [B]
    next_actions: Tensor | None = None  # [B, A]; at an episode's end the row's own action
    held_out: Tensor | None = None  # [B], 1 where a model is judged by the row, not learned
    timesteps: Tensor | None = None  # [B], the row's place in its episode, from 0
    real: Tensor | None = None  # [B, H] bool: of the episode; else its last step, repeated
    expert: Batch | None = None  # as many transitions of an expert's


class Source(Protocol):
    """Where batches come from: a replay buffer or a mixture of them.

    `tensors()` have a leading axis: of one for each seed, or of 1 where all seeds share them; their
    addresses never change. `sample` gets them without it. Where there is a method `ready(update)`,
    it is called before the update of that number is launched.
    """

    def tensors(self) -> Any: ...

    def sample(
        self, data: Any, random: Random, batch_size: int, discount: float | Tensor
    ) -> Any: ...  # a Batch; of rollouts, `replay.rollouts.Decisions`


@dataclass(frozen=True)
class Sources:
    """What an algorithm may learn from; those that a run does not have are None."""

    offline: Source | None = None  # the data; only rows that the main phase can use
    online: Source | None = None  # each seed's own experience
    rollouts: Source | None = None  # decisions of its present policy
    every_row: Source | None = None  # the data for imitation, if `offline` leaves rows out

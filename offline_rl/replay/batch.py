"""The batch of an update, and the base class of the sources of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from offline_rl.utils.random import Random


@dataclass(frozen=True)
class Batch:
    """B transitions, or B sequences or chunks of H steps.

    `discount` is gamma, or gamma**n for transitions of n environment steps, and 0 where the episode
    terminated. A critic with a discount of its own, such as one of costs, bootstraps with
    `bootstrap_mask`. Observations are a tensor, or {channel: tensor}; images are uint8. In
    sequences (`chunks.Sequences`) every column is [B, H, …]. Sequences and chunks have the padding
    mask `valid`.
    """

    observations: Any  # [B, O]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    discount: Tensor  # [B]
    next_observations: Any  # [B, O]
    bootstrap_mask: Tensor  # [B], 0 where the episode terminated, 1 elsewhere
    # These columns are present if the algorithm requires them. `columns.COLUMNS` declares them.
    mc_returns: Tensor | None = None  # [B], Monte Carlo returns
    costs: Tensor | None = None  # [B]
    mc_costs: Tensor | None = None  # [B], undiscounted cost to the end of the episode
    next_actions: Tensor | None = None  # [B, A]; the last row of an episode repeats its action
    previous_actions: Tensor | None = None  # [B, A]; zero at the start of an episode
    held_out: Tensor | None = None  # [B], 1 for validation rows, on which models are not fitted
    timesteps: Tensor | None = None  # [B], index of the step within its episode, from 0
    steps: Tensor | None = None  # [B], environment steps of the transition
    sampling_weights: Tensor | None = None  # [B], relative probability of sampling the row
    valid: Tensor | None = None  # [B, H] bool, padding mask: False where a step is only repeated
    weights: Tensor | None = None  # [B], weights in losses; None: all are 1
    imagined: Tensor | None = None  # [B], 1 for transitions that a model predicted
    demonstrations: Tensor | None = None  # [B], 1 for transitions whose actions are imitated
    expert: Batch | None = None  # a batch of the same size from an expert's data


class Source:
    """Base class of a source of batches, such as a replay buffer.

    A source defines `tensors` and `sample`. The other methods have defaults.
    """

    def tensors(self) -> Any:
        """Return the tensors that `sample` reads. Their memory addresses never change.

        They have a leading seed axis, of size 1 if all seeds share the data.
        """
        raise NotImplementedError

    def sample(self, data: Any, random: Random, batch_size: int, discount: float | Tensor) -> Any:
        """Return a `Batch`, or `rollouts.Decisions`, of one seed.

        data: `tensors()` of that seed, without the seed axis.
        """
        raise NotImplementedError

    def with_n_step(self, n_step: int) -> Source:
        """Return this source with transitions that bootstrap after `n_step` rows.

        Raises ValueError if the source has no such transitions.
        """
        if n_step == 1:
            return self
        raise ValueError(f"{type(self).__name__} has no transitions of n_step={n_step}. Use 1.")

    def write(self, rows: Mapping[str, Any], update: Tensor) -> None:
        """Store rows that a program computed, {column: [S, n, …]}, without waiting for the device.

        update: [S], number of updates so far. Raises ValueError if the source cannot store them.
        """
        raise ValueError(f"{type(self).__name__} cannot store rows of a program. Use a Ring.")

    def prefetch(self, update: int, view: Source | None = None) -> None:
        """Make the batch of `update` available. Called before that update is launched.

        view: the source that samples the batch from this one; None: this source itself.
        """

    def close(self) -> None:
        """Release threads and files."""


# The sources of a run by name, such as `offline` (the data set, without rows that the main phase
# cannot use), `every_row` (all rows, for imitation; absent if `offline` has them all), `online`
# (the replay buffer of each seed's environment steps), `rollouts` (on-policy rollouts of each
# seed's current policy), and the rings of the algorithm (`Algorithm.rings`).
Sources = Mapping[str, Source]


def require(sources: Sources, name: str) -> Source:
    """Return a source that a phase needs. Raises ValueError if the run does not have it."""
    if name not in sources:
        raise ValueError(f"This phase has no data to train on: the run has no source {name!r}")
    return sources[name]

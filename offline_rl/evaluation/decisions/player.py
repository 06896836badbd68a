"""Players for lower decision frequencies, random intervals and delayed observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies import channels
from policies.channels import Observations
from policies.player import Player
from policies.policy import BundlePolicy


@dataclass(frozen=True)
class Pace:
    """Definition of the steps at which a policy decides."""

    every: int = 1  # environment steps between decisions
    random: bool = False  # draw each interval uniformly from 1 to `every`
    delay: int = 0  # environment steps from an observation to the first action of its decision

    def __str__(self) -> str:
        """Return the name of the row or column of a table."""
        if self.delay:
            return f"delay {self.delay}"
        return f"1 to {self.every}" if self.random else str(self.every)


class PacedPlayer(Player):
    """A player whose policy decides at the times that a `Pace` defines.

    Between decisions, it executes the actions of the last chunk, all `chunk_size` of them, and then
    repeats the last one. The policy observes every step, but decides only at these times. With a
    delay, a decision uses the observation of `delay` steps ago, and the actions of the chunk before
    the present step are skipped. Temporal ensembling is active only if the policy decides at every
    step without a delay.
    """

    def __init__(self, policy: BundlePolicy, pace: Pace) -> None:
        """Create the player. pace: times of the decisions."""
        self.pace = pace
        super().__init__(policy)
        if pace != Pace():
            self.episodes.temporal_ensemble_coeff = None

    def reset(self, seed: int | Sequence[int] | np.ndarray = 0) -> None:
        """See `Player.reset`."""
        super().reset(seed)
        seeds, count = self.episodes.seeds, len(self.episodes.seeds)
        self._generators = [np.random.default_rng(int(s)) for s in seeds]
        self._remaining = np.zeros(count, int)  # [B], steps until the next decision
        self._taken = np.zeros(count, int)  # [B], steps since the last decision
        self._chunks = np.zeros((count, 0, 0), np.float32)  # [B, chunk_size, A]
        self._recent = deque[Observations](maxlen=self.pace.delay + 1)

    def next_actions(self, observations: Observations) -> np.ndarray:
        """See `Player.next_actions`."""
        self._recent.append(channels.map_channels(np.copy, observations))
        self.episodes.observe(self._recent[0])
        due = np.flatnonzero(self._remaining == 0)
        if len(due):
            every = len(due) == len(self._remaining)
            chunks = self.episodes.predict_chunk(None if every else due)
            if self._chunks.shape[1:] != chunks.shape[1:]:
                self._chunks = np.zeros((len(self._taken), *chunks.shape[1:]), chunks.dtype)
            self._chunks[due], self._taken[due] = chunks, 0
            self._remaining[due] = [self._interval(row) for row in due.tolist()]
        late = len(self._recent) - 1  # the first observation is not late
        index = np.minimum(self._taken + late, self._chunks.shape[1] - 1)
        self._taken += 1
        self._remaining -= 1
        actions: np.ndarray = self._chunks[np.arange(len(index)), index]
        return actions

    def _interval(self, row: int) -> int:
        """Return the number of steps until the next decision of an episode."""
        if not self.pace.random:
            return self.pace.every
        return int(self._generators[row].integers(1, self.pace.every + 1))

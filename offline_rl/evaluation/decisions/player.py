"""Players for lower decision frequencies, random intervals and delayed observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policies import channels
from policies.channels import Observations
from policies.episodes import PLAN
from policies.player import Player
from policies.policy import BundlePolicy, Observation
from policies.runtimes.network import make_network


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
    repeats the last one; see also `with_long_chunks`. The policy observes every step, but decides
    only at these times. With a delay of n steps, a decision uses the observation, reward and cost
    of n steps ago, and the actions of the chunk before the present step are skipped. The first
    chunk is executed until the second observation arrives, for n + 1 steps. Temporal ensembling is
    active only if the policy decides at every step without a delay.
    """

    def __init__(self, policy: BundlePolicy, pace: Pace) -> None:
        """Create the player. pace: times of the decisions."""
        self.pace = pace
        super().__init__(with_long_chunks(policy, max(pace.every, pace.delay + 1)))
        if pace != Pace():
            self.episodes.temporal_ensemble_coeff = None

    def reset(self, seed: int | Sequence[int] | np.ndarray = 0) -> None:
        """See `Player.reset`."""
        super().reset(seed)
        seeds, count = self.episodes.seeds, len(self.episodes.seeds)
        self._generators = [np.random.default_rng(int(s)) for s in seeds]
        self._time = 0  # steps since the start of the episodes
        self._remaining = np.zeros(count, int)  # [B], steps until the next decision
        self._index = np.zeros(count, int)  # [B], index of the next action in the chunk
        self._chunks = np.zeros((count, 0, 0), np.float32)  # [B, chunk_size, A]
        self._recent = deque[tuple[Observation, Any, Any]](maxlen=self.pace.delay + 1)
        # with a delay, if the policy reads its plan: the last executed actions of plans, [B, A]
        self._executed = deque[np.ndarray](maxlen=self.pace.delay + 1)

    def step(self, observation: Observation, reward: Any = None, cost: Any = None) -> np.ndarray:
        """See `Player.step`."""
        if not self.pace.delay:
            return super().step(observation, reward, cost)
        self._recent.append((channels.map_channels(np.copy, observation), reward, cost))
        if 0 < self._time <= self.pace.delay:  # the second observation has not arrived
            actions = self._next_of_chunks()
            return actions[0] if self._single else actions
        return super().step(*self._recent[0])

    def next_actions(self, observations: Observations) -> np.ndarray:
        """See `Player.next_actions`."""
        self.episodes.observe(observations)
        due = np.flatnonzero(self._remaining <= 0)
        if len(due):
            if self._executed:  # they are not those of the last plan
                plan = np.copy(self.episodes.memory[PLAN])
                plan[:, 0] = self._executed[0]
                self.episodes.memory = {**self.episodes.memory, PLAN: plan}
            every = len(due) == len(self._remaining)
            chunks = self.episodes.predict_chunk(None if every else due)
            if self._chunks.shape[1:] != chunks.shape[1:]:
                self._chunks = np.zeros((len(self._index), *chunks.shape[1:]), chunks.dtype)
            self._chunks[due], self._index[due] = chunks, min(self._time, self.pace.delay)
            self._remaining[due] = [self._interval(row) for row in due.tolist()]
        return self._next_of_chunks()

    def _next_of_chunks(self) -> np.ndarray:
        """Return the next actions of the chunks, [B, A]."""
        rows, index = (
            np.arange(len(self._index)),
            np.minimum(self._index, self._chunks.shape[1] - 1),
        )
        if self.pace.delay and PLAN in self.episodes.memory:
            self._executed.append(self.episodes.memory[PLAN][rows, index])
        self._time += 1
        self._index += 1
        self._remaining -= 1
        actions: np.ndarray = self._chunks[rows, index]
        return actions

    def _interval(self, row: int) -> int:
        """Return the number of steps until the next decision of an episode."""
        if not self.pace.random:
            return self.pace.every
        return int(self._generators[row].integers(1, self.pace.every + 1))


def with_long_chunks(policy: BundlePolicy, steps: int) -> BundlePolicy:
    """Return the policy with chunks of at least `steps` actions if it can continue its chunks.

    See `Head.chunk_argument`. Other policies, and those exported to ONNX, are returned unchanged.
    """
    module = policy.network.module
    if module is None or not module.chunk_argument or module.chunk_size >= steps:
        return policy
    arguments = {**policy.bundle.arguments, module.chunk_argument: steps}
    bundle = replace(policy.bundle, arguments=arguments)
    return BundlePolicy(bundle, make_network(bundle, policy.network.name), units=policy.units)

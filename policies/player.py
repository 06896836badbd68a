"""A player that runs a policy in episodes: one observation in, one action out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies import channels
from policies.policy import BundlePolicy, Observation
from policies.residual import make_queue


class Player:
    """A policy in running episodes, with its observation history, current chunk, memory and noise.

    player = Player(policies.load(path, units=True))
    player.reset(seed=0)
    action = player.step(observation)  # at every step of the episode

    The noise of a stochastic policy is a function of the episode's seed and of the number of chunks
    predicted so far. The same seed gives the same actions, to rounding, in every runtime.
    """

    def __init__(self, policy: BundlePolicy) -> None:
        self.policy, self._single, self._state = policy, True, None
        self._queue = None if policy.network.remembers else make_queue(policy)
        self.reset()

    def reset(self, seed: int | Sequence[int] | np.ndarray = 0) -> None:
        """Start an episode, or one for each of several seeds, side by side."""
        self._single, self._state = np.ndim(seed) == 0, None
        if self._queue is not None:
            self._queue.reset(np.atleast_1d(seed))

    def step(self, observation: Observation, reward: Any = None) -> np.ndarray:
        """Return the action [A] to execute after the present observation [*obs].

        With B episodes, observations are [B, *obs] and actions [B, A].
        reward: raw reward of the previous action. Return-conditioned policies need it.
        """
        if self._queue is None:
            chunk, self._state = self.policy.act(observation, self._state, reward)
            action: np.ndarray = chunk[..., 0, :]
            return action
        observations, single = self.policy.check_observations(observation)
        count = channels.size(observations)
        if single is not self._single or count != len(self._queue.seeds):
            expected = "one episode" if self._single else f"{len(self._queue.seeds)} episodes"
            raise ValueError(f"{count} observations, but reset was for {expected}")
        actions = self._queue.step(observations)
        return actions[0] if single else actions

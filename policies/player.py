"""A player that runs a policy in episodes and returns one action per observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies import channels
from policies.channels import Observations
from policies.episodes import RunningEpisodes
from policies.policy import BundlePolicy, Observation


class Player:
    """A policy and the state of its running episodes.

    The state is the observation history, the current chunk, the memory and the noise.

    player = Player(policies.load(path, units=True))
    player.reset(seed=0)
    action = player.step(observation)  # at every step of the episode

    The noise of a stochastic policy is a function of the episode's seed and of the number of chunks
    predicted so far. The same seed gives the same actions in every runtime, up to rounding.
    """

    def __init__(self, policy: BundlePolicy) -> None:
        self.policy, self._single, self._episodes = policy, True, policy.new_episodes()
        self.reset()

    @property
    def episodes(self) -> RunningEpisodes:
        """The state of the running episodes."""
        return self._episodes

    def reset(self, seed: int | Sequence[int] | np.ndarray = 0) -> None:
        """Start an episode, or several parallel episodes, one per seed."""
        self._single = np.ndim(seed) == 0
        self._episodes.reset(np.atleast_1d(seed))

    def step(self, observation: Observation, reward: Any = None, cost: Any = None) -> np.ndarray:
        """Return the action [A] to execute after the present observation [*obs].

        With B episodes, observations are [B, *obs] and actions [B, A].
        reward: raw reward of the previous action. Return-conditioned policies need it.
        cost: raw cost of the previous action. Policies with a cost budget need it.
        """
        observations, single = self.policy.check_observations(observation)
        count, episodes = channels.size(observations), self._episodes
        if single is not self._single or count != len(episodes.seeds):
            expected = "one episode" if self._single else f"{len(episodes.seeds)} episodes"
            raise ValueError(f"{count} observations, but reset started {expected}")
        self.policy.add_feedback(episodes, reward, cost)
        actions = self.next_actions(observations)
        return actions[0] if single else actions

    def next_actions(self, observations: Observations) -> np.ndarray:
        """Return the actions [B, A] to execute after the present observations [B, *obs]."""
        return self._episodes.step(observations)

"""A policy at work in running episodes: one observation in, one action out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies import channels
from policies.chunks import Queue
from policies.policy import BundlePolicy, Observation
from policies.residual import Corrected, ResidualPolicy, corrected


class Player:
    """What a policy needs to know of its episodes: history, running chunk, memory, noise.

    player = Player(policies.load(path, units=True))
    player.reset(seed=0)
    action = player.step(observation)  # at every step of the episode

    The noise of a policy that draws any follows from the episode's seed and the number of the
    decision in it: the same seed, the same actions, whatever runtime runs it.
    """

    def __init__(self, policy: BundlePolicy) -> None:
        self.policy, self._single, self._state = policy, True, None
        self._queue = None if policy.network.remembers else episodes(policy)
        self.reset()

    def reset(self, seed: int | Sequence[int] | np.ndarray = 0) -> None:
        """Begins an episode, or as many as there are seeds, side by side."""
        self._single, self._state = np.ndim(seed) == 0, None
        if self._queue is not None:
            self._queue.reset(np.atleast_1d(seed))

    def step(self, observation: Observation, reward: Any = None) -> np.ndarray:
        """The present observation [*obs] -> the action to take [A]; [B, …] of B episodes.

        reward: raw, of the action before, which policies that aim at a return need.
        """
        if self._queue is None:
            chunk, self._state = self.policy.act(observation, self._state, reward)
            action: np.ndarray = chunk[..., 0, :]
            return action
        seen, single = self.policy.rows(observation)
        count_seen = channels.size(seen)
        if single is not self._single or count_seen != len(self._queue.seeds):
            count = "one episode" if self._single else f"{len(self._queue.seeds)} episodes"
            raise ValueError(f"{count_seen} observations, but reset was for {count}")
        actions = self._queue.step(seen)
        return actions[0] if single else actions


def episodes(policy: BundlePolicy) -> Queue | Corrected:
    """What keeps a policy's episodes; it has no memory of its own."""
    return corrected(policy) if isinstance(policy, ResidualPolicy) else queue(policy)


def queue(policy: BundlePolicy) -> Queue:
    """Of a policy without a memory of its own."""
    return Queue(
        lambda seen, noise, _rows: policy.plan(seen, noise),
        n_obs_steps=policy.spec.n_obs_steps,
        n_action_steps=policy.spec.n_action_steps,
        noise_shape=policy.noise_shape,
        temporal_ensemble_coeff=policy.spec.temporal_ensemble_coeff,
    )

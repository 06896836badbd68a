"""A policy at work in running episodes: one observation in, one action out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.chunks import Queue
from policies.policy import BundlePolicy, Observation


class Player:
    """What a policy needs to know of its episodes: history, running chunk, memory, noise.

    player = Player(policies.load(path, units=True))
    player.reset(seed=0)
    action = player.step(observation)  # at every step of the episode

    The noise of a policy that draws any follows from the episode's seed and the number of the
    decision in it: the same seed, the same actions, whatever runtime runs it.
    """

    def __init__(self, policy: BundlePolicy) -> None:
        """Raises ValueError where a policy of several channels plans: that is not known yet."""
        self.policy, self._single, self._state = policy, True, None
        self._queue = None if policy.network.remembers else queue(policy)
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
        (seen,), single = self.policy.rows(observation)
        if single is not self._single or len(seen) != len(self._queue.seeds):
            count = "one episode" if self._single else f"{len(self._queue.seeds)} episodes"
            raise ValueError(f"{len(seen)} observations, but reset was for {count}")
        actions = self._queue.step(seen)
        return actions[0] if single else actions


def queue(policy: BundlePolicy) -> Queue:
    """Of a policy without a memory of its own. Raises ValueError for more than one vector."""
    spec = policy.spec
    if spec.lone is None:
        names = ", ".join(channel.name for channel in spec.channels)
        raise ValueError(f"histories of one vector are kept, and this policy observes {names}")
    return Queue(
        lambda seen, noise, _rows: policy.plan(seen, noise),
        history=spec.history,
        executed=spec.executed,
        noise_shape=policy.noise_shape,
    )

"""A frozen policy and the correction of its actions, as one policy.

The correction is asked at every step, with the base's next action as one more channel of what it
observes; the base plans by its own horizon, from its own history.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from policies import channels
from policies.channels import BASE_ACTION, Observations
from policies.chunks import Queue
from policies.policy import BundlePolicy, Observation
from policies.spec import VECTOR


class ResidualPolicy(BundlePolicy):
    """A base and its correction; what is observed is the base's."""

    def __init__(
        self,
        correction: BundlePolicy,
        base: BundlePolicy | Callable[[], Queue | Corrected],
        *,
        units: bool = False,
    ) -> None:
        """base: a policy, or what makes the queue of new episodes of one that is no bundle."""
        super().__init__(correction.bundle, correction.network, units=units)
        self.correction, self.base = correction, base
        seen = tuple(c for c in correction.spec.channels if c.name != BASE_ACTION)
        self.spec = replace(correction.spec, channels=seen)

    def act(
        self, observation: Observation, state: Corrected | None = None, reward: Any = None
    ) -> tuple[np.ndarray, Corrected]:
        """See `Policy.act`."""
        rows, single = self.rows(observation)
        count = channels.size(rows)
        if state is None:
            state = corrected(self)
            state.reset(np.zeros(count, np.int64))
        elif len(state.seeds) != count:
            raise ValueError("the observations are of another number of episodes than before")
        else:
            state = copy.deepcopy(state)
        actions = state.step(rows)[:, None]
        return (actions[0] if single else actions), state

    def plan(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        raise NotImplementedError("a residual acts step by step: policies.Player, or act")


class Corrected:
    """The queue of the base's chunks in B episodes, each action corrected; as `chunks.Queue`."""

    def __init__(self, queue: Queue | Corrected, policy: ResidualPolicy) -> None:
        """queue: the base's, which may be a residual itself."""
        self.queue, self.policy = queue, policy

    def __deepcopy__(self, memo: Any) -> Corrected:
        if isinstance(self.queue, Corrected):
            return Corrected(copy.deepcopy(self.queue), self.policy)
        queue = copy.copy(self.queue)
        queue.__dict__ |= {
            name: channels.each(np.copy, value)
            for name, value in vars(queue).items()
            if isinstance(value, np.ndarray | Mapping)
        }
        return Corrected(queue, self.policy)

    @property
    def seeds(self) -> np.ndarray:
        """[B], of the episodes."""
        return self.queue.seeds

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """See `Queue.reset`."""
        self.queue.reset(seeds, rows)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """See `Queue.step`."""
        base = self.queue.step(observations, rows).clip(-1, 1)
        seen = {k: x[:, None] for k, x in beside(observations, base).items()}
        actions = self.policy.correction.chunk(seen)[:, 0]
        return self.policy.spec.in_units(actions) if self.policy.units else actions


def beside(observations: Observations, base: np.ndarray) -> dict[str, Any]:
    """What is observed, and what the base would do: channels by name."""
    named = observations if isinstance(observations, Mapping) else {VECTOR: observations}
    return {**named, BASE_ACTION: base}


def corrected(policy: ResidualPolicy) -> Corrected:
    """Of episodes that have not begun."""
    from policies.player import episodes

    base = policy.base
    return Corrected(episodes(base) if isinstance(base, BundlePolicy) else base(), policy)

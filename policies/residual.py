"""A frozen base policy and a residual policy that adds to its actions, as one policy.

The residual policy acts at every step. It observes the next action of the base policy as one more
channel. The base policy keeps its own chunks and observation history.
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
    """A base policy with a residual policy on top. It observes the channels of the base policy."""

    def __init__(
        self,
        residual: BundlePolicy,
        base: BundlePolicy | Callable[[], Queue | ResidualQueue],
        *,
        units: bool = False,
    ) -> None:
        """Combine `residual` with `base`.

        base: a policy, or, for a policy without a bundle, a function that makes a queue for it.
        units: return actions in the environment's units instead of [-1, 1].
        """
        super().__init__(residual.bundle, residual.network, units=units)
        self.residual, self.base = residual, base
        observed = tuple(c for c in residual.spec.channels if c.name != BASE_ACTION)
        self.spec = replace(residual.spec, channels=observed)

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """See `Policy.act`."""
        rows, single = self.check_observations(observation)
        count = channels.size(rows)
        if state is None:
            state = make_queue(self)
            state.reset(np.zeros(count, np.int64))
        elif len(state.seeds) != count:
            raise ValueError(
                f"{count} observations, but the state is of {len(state.seeds)} episodes"
            )
        else:
            state = copy.deepcopy(state)
        actions = state.step(rows)[:, None]
        return (actions[0] if single else actions), state

    def plan(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        raise NotImplementedError(
            "a residual policy acts step by step. Use policies.Player or `act`"
        )


class ResidualQueue:
    """The queue of a residual policy in B episodes, with the interface of `chunks.Queue`."""

    def __init__(self, queue: Queue | ResidualQueue, policy: ResidualPolicy) -> None:
        """queue: of the base policy, which may be a residual policy itself."""
        self.queue, self.policy = queue, policy

    def __deepcopy__(self, memo: Any) -> ResidualQueue:
        if isinstance(self.queue, ResidualQueue):
            return ResidualQueue(copy.deepcopy(self.queue), self.policy)
        queue = copy.copy(self.queue)
        queue.__dict__ |= {
            name: channels.map_channels(np.copy, value)
            for name, value in vars(queue).items()
            if isinstance(value, np.ndarray | Mapping)
        }
        return ResidualQueue(queue, self.policy)

    @property
    def seeds(self) -> np.ndarray:
        """Seeds of the episodes, [B]."""
        return self.queue.seeds

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """See `Queue.reset`."""
        self.queue.reset(seeds, rows)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """See `Queue.step`."""
        base = self.queue.step(observations, rows).clip(-1, 1)
        inputs = {k: x[:, None] for k, x in add_base_action(observations, base).items()}
        actions = self.policy.residual.predict_chunk(inputs)[:, 0]
        return self.policy.spec.to_units(actions) if self.policy.units else actions


def add_base_action(observations: Observations, base: np.ndarray) -> dict[str, Any]:
    """Return the observations by channel, with the base policy's action as the last channel."""
    named = observations if isinstance(observations, Mapping) else {VECTOR: observations}
    return {**named, BASE_ACTION: base}


def make_queue(policy: BundlePolicy) -> Queue | ResidualQueue:
    """Return a new queue for a policy that keeps no memory of its own."""
    if not isinstance(policy, ResidualPolicy):
        return Queue.from_policy(policy)
    base = policy.base
    return ResidualQueue(make_queue(base) if isinstance(base, BundlePolicy) else base(), policy)

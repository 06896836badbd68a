"""Residual policies: a frozen base policy plus a residual policy that adds to the base actions.

The residual policy acts at every step. It observes the next action of the base policy as an
additional channel. The base policy may predict chunks and have an observation history.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from policies import channels
from policies.channels import BASE_ACTION, Observations
from policies.chunks import ChunkExecutor
from policies.policy import BundlePolicy, Observation
from policies.spec import VECTOR


class ResidualPolicy(BundlePolicy):
    """A base policy and its residual policy, combined. It observes the base policy's channels."""

    def __init__(
        self,
        residual: BundlePolicy,
        base: BundlePolicy | Callable[[], ChunkExecutor | ResidualChunkExecutor],
        *,
        units: bool = False,
    ) -> None:
        """Combine `residual` with `base`.

        base: the base policy. If it has no bundle, a function that creates its executor.
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
            state = make_executor(self)
            state.reset(np.zeros(count, np.int64))
        elif len(state.seeds) != count:
            raise ValueError(
                f"{count} observations, but the state is for {len(state.seeds)} episodes"
            )
        else:
            state = copy.deepcopy(state)
        actions = state.step(rows)[:, None]
        return (actions[0] if single else actions), state

    def plan(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        raise NotImplementedError(
            "a residual policy acts step by step. Use policies.Player or `act`"
        )


class ResidualChunkExecutor:
    """Executor of a residual policy in B episodes, with the interface of `ChunkExecutor`."""

    def __init__(
        self, executor: ChunkExecutor | ResidualChunkExecutor, policy: ResidualPolicy
    ) -> None:
        """Combine the executor of the base policy with the residual policy.

        executor: a `ResidualChunkExecutor` if the base policy is a residual policy itself.
        """
        self.executor, self.policy = executor, policy

    def __deepcopy__(self, memo: Any) -> ResidualChunkExecutor:
        if isinstance(self.executor, ResidualChunkExecutor):
            return ResidualChunkExecutor(copy.deepcopy(self.executor), self.policy)
        executor = copy.copy(self.executor)
        executor.__dict__ |= {
            name: channels.map_channels(np.copy, value)
            for name, value in vars(executor).items()
            if isinstance(value, np.ndarray | Mapping)
        }
        return ResidualChunkExecutor(executor, self.policy)

    @property
    def seeds(self) -> np.ndarray:
        """Seeds of the episodes, [B]."""
        return self.executor.seeds

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """See `ChunkExecutor.reset`."""
        self.executor.reset(seeds, rows)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """See `ChunkExecutor.step`."""
        base = self.executor.step(observations, rows).clip(-1, 1)
        inputs = {k: x[:, None] for k, x in add_base_action(observations, base).items()}
        actions = self.policy.residual.predict_chunk(inputs)[:, 0]
        return self.policy.spec.to_units(actions) if self.policy.units else actions


def add_base_action(observations: Observations, base: np.ndarray) -> dict[str, Any]:
    """Return the observations by channel, with the base policy's action as the last channel."""
    named = observations if isinstance(observations, Mapping) else {VECTOR: observations}
    return {**named, BASE_ACTION: base}


def make_executor(policy: BundlePolicy) -> ChunkExecutor | ResidualChunkExecutor:
    """Create the executor of a policy that is not recurrent."""
    if not isinstance(policy, ResidualPolicy):
        return ChunkExecutor.from_policy(policy)
    base = policy.base
    return ResidualChunkExecutor(
        make_executor(base) if isinstance(base, BundlePolicy) else base(), policy
    )

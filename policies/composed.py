"""Policies on a frozen base policy: the base and the policy trained on it act as one policy.

    residual   The trained policy observes the base's next action as an additional channel, and adds
               to it. It decides at every step.
    noise      The trained policy decides when the base does. Its action, times `noise_scale`, is
               the noise from which the base's sampler starts (latent-noise steering, Wagenmaker et
               al., arXiv:2506.15799). Fresh noise of later denoising steps stays random.

The base policy may predict chunks and have an observation history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, Protocol, Self

import numpy as np

from policies.bundle import Bundle
from policies.channels import BASE_ACTION, Observations, map_channels
from policies.episodes import RunningEpisodes
from policies.policy import BundlePolicy
from policies.spec import VECTOR

INNER = "inner/"  # prefix of the inner policy's entries in the state of episodes


class HasEpisodes(Protocol):
    """A policy that can act in episodes, such as a `BundlePolicy`."""

    def new_episodes(self) -> RunningEpisodes: ...


class ComposedPolicy(BundlePolicy):
    """A base policy and the policy trained on it. It has the base policy's observations."""

    def __init__(
        self, trained: BundlePolicy, base: BundlePolicy | HasEpisodes, *, units: bool = False
    ) -> None:
        """Combine `trained` with `base`, as the bundle of `trained` states.

        units: return actions in the environment's units instead of [-1, 1].
        """
        super().__init__(trained.bundle, trained.network, units=units)
        assert trained.bundle.composition is not None
        self.trained, self.base, self.is_stateless = trained, base, False
        self.noise_scale: float | None = None  # None: a residual policy
        if trained.bundle.composition.how == "residual":
            observed = tuple(c for c in trained.spec.channels if c.name != BASE_ACTION)
            self.spec = replace(trained.spec, channels=observed)
        else:
            assert isinstance(base, BundlePolicy)
            self.noise_scale, self.spec = trained.bundle.composition.noise_scale, base.spec
            base.units = units

    def new_episodes(self) -> ComposedEpisodes:
        """See `BundlePolicy.new_episodes`."""
        if self.noise_scale is None:
            return ResidualEpisodes(self.base.new_episodes(), **self.episode_options())
        assert isinstance(self.base, BundlePolicy)
        options = self.base.episode_options()
        return SteeredEpisodes(self.trained.new_episodes(), self.noise_scale, **options)


class ComposedEpisodes(RunningEpisodes):
    """Running episodes of two policies: the outer one acts and calls the inner one."""

    def __init__(self, inner: RunningEpisodes, **options: Any) -> None:
        """Create the object without episodes.

        inner: episodes of the inner policy.  options: arguments of `RunningEpisodes`.
        """
        self.inner = inner
        super().__init__(**options)

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.inner.reset(seeds, rows)
        super().reset(seeds, rows)

    def replan(self, rows: np.ndarray) -> None:
        self.inner.replan(rows)
        super().replan(rows)

    def fork(self) -> Self:
        other = super().fork()
        other.inner = self.inner.fork()
        return other

    def state(self, rows: np.ndarray) -> dict[str, Any]:
        inner = {f"{INNER}{name}": value for name, value in self.inner.state(rows).items()}
        return super().state(rows) | inner

    def load(self, rows: np.ndarray, state: Mapping[str, Any]) -> None:
        inner = {k.removeprefix(INNER): v for k, v in state.items() if k.startswith(INNER)}
        self.inner.load(rows, inner)
        super().load(rows, state)

    def step_inner(self, observations: Observations, rows: np.ndarray | None) -> np.ndarray:
        """Take a step of the inner policy. A step of all episodes replaces its history."""
        return self.inner.step(observations, None if rows is self._all else rows)


class ResidualEpisodes(ComposedEpisodes):
    """Running episodes of a residual policy, the outer one, and its base policy."""

    def observe(self, observations: Observations, rows: np.ndarray | None = None) -> None:
        """Take a step of the base policy. Its action is a channel of the observation."""
        base = self.step_inner(observations, rows).clip(-1, 1)
        super().observe(add_base_action(observations, base), rows)


class SteeredEpisodes(ComposedEpisodes):
    """Running episodes of a base policy, the outer one, and the policy that steers its noise."""

    def __init__(self, inner: RunningEpisodes, noise_scale: float, **options: Any) -> None:
        """Create the object without episodes.

        inner: episodes of the steering policy.  noise_scale: initial noise for the action 1.
        """
        self.noise_scale = noise_scale
        super().__init__(inner, **options)

    def add_rewards(self, rewards: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.inner.add_rewards(rewards, rows)
        super().add_rewards(rewards, rows)

    def add_costs(self, costs: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.inner.add_costs(costs, rows)
        super().add_costs(costs, rows)

    def draw_noise(self, rows: np.ndarray) -> np.ndarray:
        """Take a step of the steering policy. Its action replaces the initial noise."""
        present = map_channels(lambda x: x[rows, -1], self._history)
        actions = self.step_inner(present, rows)
        return set_start_noise(super().draw_noise(rows), actions, self.noise_scale)


def add_base_action(observations: Observations, base: np.ndarray) -> dict[str, Any]:
    """Return the observations by channel, with the base policy's action as the last channel."""
    named = observations if isinstance(observations, Mapping) else {VECTOR: observations}
    return {**named, BASE_ACTION: base}


def set_start_noise(noise: np.ndarray, actions: np.ndarray, noise_scale: float) -> np.ndarray:
    """Return the noise of a sampler with `noise_scale * actions` as its initial noise.

    noise: [R, K, ...], of which noise[:, 0] is the initial noise.  actions: [R, D] in [-1, 1].
    """
    steered = noise.copy()
    steered[:, 0] = (noise_scale * actions).reshape(steered[:, 0].shape)
    return steered


def start_noise_size(policy: BundlePolicy) -> int:
    """Return the number of values of the noise from which a sampler starts; 0 without a sampler."""
    return prod(policy.noise_shape[1:]) if "table" in policy.bundle.arguments else 0


def base_mismatch(trained: BundlePolicy, base: BundlePolicy) -> str | None:
    """Return the reason why `base` cannot be the base policy of `trained`. None if it can."""
    composition, spec = trained.bundle.composition, trained.spec
    assert composition is not None
    if base.has_memory:
        return f"the base policy, a {base.bundle.kind}, keeps a memory of its episode"
    if composition.how == "noise":
        if not (size := start_noise_size(base)):
            return f"the base policy, a {base.bundle.kind}, has no sampler with an initial noise"
        if spec.action_dim != size:
            return f"it chooses {spec.action_dim} numbers, but the base starts from {size}"
        return base.spec.mismatch(replace(base.spec, channels=spec.channels))
    observed = tuple(channel for channel in spec.channels if channel.name != BASE_ACTION)
    if len(observed) == len(spec.channels):
        return f"the residual policy does not observe {BASE_ACTION}"
    return base.spec.mismatch(replace(spec, channels=observed))


def needs_base(bundle: Bundle) -> bool:
    """Return True if the policy acts on a base policy that the bundle does not contain."""
    return bundle.composition is not None and bundle.base is None

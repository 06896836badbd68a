"""The policy interface: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from policies.arrays import as_array
from policies.bundle import Bundle, BundleError
from policies.noise import normal
from policies.normalizer import Normalizer
from policies.runtimes.network import Inputs, Network
from policies.spec import Spec

Observation = np.ndarray | Mapping[str, np.ndarray]  # the only vector, or every channel by name


class Policy(Protocol):
    """A policy that holds its normalizer and the specification of its observations and actions."""

    spec: Spec

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the only vector channel."""
        ...

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """Return a chunk of actions for an observation, and the next state.

        observation: [*obs] or [B, *obs], raw.
        state: returned by the previous call; None at the start of an episode.
        reward: raw reward of the previous action, a number or [B]. A policy that acts on rewards
        needs it from the second call of an episode on.

        The chunk is [chunk_size, A] or [B, chunk_size, A], in [-1, 1], or in the environment's
        units if the policy was loaded with `units=True`.
        Raises ValueError for a wrong shape or NaN, because a robot must not guess.
        """
        ...


def refuse_rewards(policy: Any, place: str) -> None:
    """Raise BundleError if `policy` acts on rewards. `place`, such as a robot, has none."""
    if getattr(policy, "needs_rewards", False):
        raise BundleError(
            f"a {policy.bundle.kind} acts on the rewards of its episode, which {place} is not "
            "given. Use a policy that acts on observations alone"
        )


class History(NamedTuple):
    """State of `BundlePolicy.act` for a policy with an observation history or noise."""

    observations: dict[str, np.ndarray]  # [B, n_obs_steps, *shape], raw; the present one last
    decisions: int  # chunks predicted so far


class BundlePolicy:
    """The policy of a bundle, run by one of `policies.runtimes`."""

    def __init__(self, bundle: Bundle, network: Network, *, units: bool = False) -> None:
        """Combine a bundle with its network.

        units: return actions in the environment's units instead of [-1, 1].
        """
        self.spec, self.bundle, self.network, self.units = bundle.spec, bundle, network, units

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the first vector channel."""
        return self.bundle.normalizers[self.spec.vectors[0].name]

    def __repr__(self) -> str:
        source = self.bundle.provenance
        origin = f" of {source['algorithm']} on {source['task']}" if "algorithm" in source else ""
        observed = ", ".join(f"{c.name} {list(c.shape)}" for c in self.spec.channels)
        spec, more = self.spec, ""
        if spec.n_obs_steps > 1 or spec.chunk_size > 1:
            names = ("n_obs_steps", "chunk_size", "n_action_steps")
            more = "; " + ", ".join(f"{name}={getattr(spec, name)}" for name in names)
        return f"<{self.bundle.kind}{origin}: {observed} -> {spec.action_dim} actions{more}>"

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal noise of one chunk; () for a deterministic policy."""
        return self.network.noise_shape

    @property
    def needs_rewards(self) -> bool:
        """True if the policy reads the rewards of the episode, for example for a return-to-go."""
        return self.network.needs_rewards

    @property
    def module(self) -> Any:
        """The torch module. Raises BundleError if another runtime runs the policy."""
        if not hasattr(self.network, "module"):
            raise BundleError(
                f"the policy runs in {self.network.name} and has no torch module. "
                "Load it with policies.load(path, runtime='torch')"
            )
        return self.network.module

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """See `Policy.act`. The result is deterministic.

        Call it once per step: a policy with an observation history collects it from the calls.
        `policies.Player` predicts a chunk only when the last one is used up, and applies temporal
        ensembling if `spec` asks for it.
        """
        rows, single = self._check(observation, 0)
        count = len(next(iter(rows.values())))
        if self.network.remembers:
            unread = state is None or not self.needs_rewards
            rewards = np.zeros(count, np.float32) if unread else self._rewards(reward, count)
            memory = self.network.reset(count) if state is None else state
            inputs = self._normalize({name: value[:, None] for name, value in rows.items()})
            chunk, state = self.network.step(inputs, rewards, memory)
            chunk = self._to_actions(chunk)
        elif self.spec.n_obs_steps == 1 and not self.noise_shape:
            chunk = self.predict_chunk({name: value[:, None] for name, value in rows.items()})
        else:
            state = self._append(rows, state)
            seeds, decisions = np.zeros(count, int), np.full(count, state.decisions - 1)
            noise = normal(seeds, decisions, self.noise_shape or (0,))
            chunk = self.predict_chunk(state.observations, noise)
        chunk = self.spec.to_units(chunk) if self.units else chunk
        return (chunk[0] if single else chunk), state

    def plan(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        """Return the chunks [B, chunk_size, A] for raw observations [B, n_obs_steps, *obs].

        noise: [B, *noise_shape]; [B, 0] for a deterministic policy.
        """
        rows, _ = self._check(observations, 1)
        chunk = self.predict_chunk(rows, noise)
        return self.spec.to_units(chunk) if self.units else chunk

    def check_observations(self, observation: Observation) -> tuple[Observation, bool]:
        """Return checked observations [B, *obs], and True if the argument was a single [*obs]."""
        arrays, single = self._check(observation, 0)
        vector = self.spec.single_vector
        return (arrays if vector is None else arrays[vector.name]), single

    def predict_chunk(
        self, observations: Mapping[str, np.ndarray], noise: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the chunks in [-1, 1] for raw observations by channel. Arguments are unchecked.

        observations: every channel, [B, n_obs_steps, *shape].
        """
        if noise is None:
            noise = np.zeros((len(next(iter(observations.values()))), 0), np.float32)
        return self._to_actions(self.network.plan(self._normalize(observations), noise))

    def _to_actions(self, output: np.ndarray) -> np.ndarray:
        """Convert the network's output to actions in [-1, 1]."""
        assert self.bundle.actions is not None
        if self.bundle.actions.is_identity:
            return output
        return self.bundle.actions.inverse(output).clip(-1, 1)

    def _normalize(self, observations: Mapping[str, np.ndarray]) -> Inputs:
        """Convert raw observations to the network's input."""
        normalizers = self.bundle.normalizers
        inputs = {k: normalizers[k](v) if k in normalizers else v for k, v in observations.items()}
        return inputs if self.spec.single_vector is None else inputs[self.spec.single_vector.name]

    def _check(self, observation: Observation, more: int) -> tuple[dict[str, np.ndarray], bool]:
        """Return every channel with a leading axis, checked, and True if this axis was added.

        more: number of axes between the leading axis and the shape of the channel.
        """
        lone = self.spec.single_vector
        plain = lone is not None and not isinstance(observation, Mapping)
        parts = {lone.name: observation} if plain and lone else observation
        names = [channel.name for channel in self.spec.channels]
        if not isinstance(parts, Mapping) or parts.keys() != set(names):
            actual = sorted(parts) if isinstance(parts, Mapping) else type(parts).__name__
            raise ValueError(f"the policy observes {', '.join(names)}; found {actual}")
        arrays = {name: as_array(parts[name]) for name in names}
        first = self.spec.channels[0]
        single = arrays[first.name].ndim == first.ndim + more
        arrays = {name: array[None] for name, array in arrays.items()} if single else arrays
        for channel in self.spec.channels:
            array, label = arrays[channel.name], "" if lone else f" {channel.name}"
            if array.shape[1 + more :] != channel.shape or array.ndim != channel.ndim + 1 + more:
                expected = ", ".join(map(str, channel.shape))
                last = " (colors last)" if channel.kind == "image" else ""
                raise ValueError(
                    f"observation{label} of shape {array.shape}, expected [B, {expected}]{last}"
                )
            if channel.kind == "image" and array.dtype != np.uint8:
                raise ValueError(f"observation{label} has type {array.dtype}, expected uint8")
            if channel.kind == "vector" and not np.isfinite(array).all():
                raise ValueError(f"the observation{label} holds NaN or infinite numbers")
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError("the channels have different numbers of observations")
        return arrays, single

    def _append(self, rows: Mapping[str, np.ndarray], state: History | None) -> History:
        """Return the history with one more observation. The first one fills the whole history."""
        size = self.spec.n_obs_steps
        if state is None:
            return History({k: np.repeat(v[:, None], size, 1) for k, v in rows.items()}, 1)
        old = state.observations
        for name, value in rows.items():
            if len(old[name]) != len(value):
                raise ValueError(
                    f"{len(value)} observations, but the state is of {len(old[name])} episodes"
                )
        new = {k: np.concatenate([old[k][:, 1:], v[:, None]], 1) for k, v in rows.items()}
        return History(new, state.decisions + 1)

    def _rewards(self, reward: Any, count: int) -> np.ndarray:
        """Return `reward` as checked [count] float32."""
        kind = self.bundle.kind
        if reward is None:
            raise ValueError(
                f"a {kind} acts on the rewards of its episode. From the second call on, pass the "
                "reward of the previous action: act(observation, state, reward=…)"
            )
        values = as_array(reward, np.float32).reshape(-1)
        if len(values) != count or not np.isfinite(values).all():
            raise ValueError(f"reward: expected {count} finite numbers, found {reward!r}")
        return values

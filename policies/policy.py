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

Observation = np.ndarray | Mapping[str, np.ndarray]  # a single vector, or all channels by name


class Policy(Protocol):
    """Policy with its normalizer and the specification of its observations and actions."""

    spec: Spec

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the vector channel; of the first one if there are several."""
        ...

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """Return a chunk of actions for an observation, and the next state.

        observation: [*obs] or [B, *obs], raw.
        state: the state that the previous call returned; None at the start of an episode.
        reward: raw reward of the previous action, a number or [B]. Policies that read rewards need
        it, except in the first call of an episode.

        The chunk is [chunk_size, A] or [B, chunk_size, A]. Actions are in [-1, 1], or in the
        environment's units if the policy was loaded with `units=True`.
        Raises ValueError for a wrong shape or NaN. Guessing would be unsafe on a robot.
        """
        ...


def refuse_rewards(policy: Any, place: str) -> None:
    """Raise BundleError if `policy` reads rewards.

    place: where the policy would act without rewards, for example "a robot".
    """
    if getattr(policy, "needs_rewards", False):
        raise BundleError(
            f"a {policy.bundle.kind} reads the rewards of its episode, but {place} does not get "
            "rewards. Use a policy that reads only observations"
        )


class History(NamedTuple):
    """State of `BundlePolicy.act` for a policy with an observation history or noise."""

    # [B, n_obs_steps, *shape] per channel, raw; the last one is the current observation
    observations: dict[str, np.ndarray]
    num_chunks: int  # chunks predicted so far


class BundlePolicy:
    """The policy of a bundle, executed by one of `policies.runtimes`."""

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
        """Shape of the standard normal noise for one chunk; () for a deterministic policy."""
        return self.network.noise_shape

    @property
    def needs_rewards(self) -> bool:
        """True if the policy reads the rewards of the episode, for example as a return-to-go."""
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

        Call this method once per step, because it appends each observation to the observation
        history. It predicts a new chunk in every call. `policies.Player` predicts a new chunk only
        when all `n_action_steps` actions of the current chunk are executed. It also applies
        temporal ensembling if `spec` sets the coefficient.
        """
        rows, single = self._check(observation, 0)
        count = len(next(iter(rows.values())))
        if self.network.is_recurrent:
            is_unused = state is None or not self.needs_rewards
            rewards = np.zeros(count, np.float32) if is_unused else self._rewards(reward, count)
            memory = self.network.reset(count) if state is None else state
            inputs = self._normalize({name: value[:, None] for name, value in rows.items()})
            chunk, state = self.network.step(inputs, rewards, memory)
            chunk = self._to_actions(chunk)
        elif self.spec.n_obs_steps == 1 and not self.noise_shape:
            chunk = self.predict_chunk({name: value[:, None] for name, value in rows.items()})
        else:
            state = self._append(rows, state)
            seeds, num_chunks = np.zeros(count, int), np.full(count, state.num_chunks - 1)
            noise = normal(seeds, num_chunks, self.noise_shape or (0,))
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
        """Return validated observations [B, *obs], and True if the argument had no batch axis."""
        arrays, single = self._check(observation, 0)
        vector = self.spec.single_vector
        return (arrays if vector is None else arrays[vector.name]), single

    def predict_chunk(
        self, observations: Mapping[str, np.ndarray], noise: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the chunks in [-1, 1] for raw observations by channel, without validation.

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

    def _check(self, observation: Observation, num_axes: int) -> tuple[dict[str, np.ndarray], bool]:
        """Return all channels with a batch axis, validated, and True if the batch axis was added.

        num_axes: number of axes between the batch axis and the axes of the channel's shape.
        """
        lone = self.spec.single_vector
        plain = lone is not None and not isinstance(observation, Mapping)
        parts = {lone.name: observation} if plain and lone else observation
        names = [channel.name for channel in self.spec.channels]
        if not isinstance(parts, Mapping) or parts.keys() != set(names):
            actual = sorted(parts) if isinstance(parts, Mapping) else type(parts).__name__
            raise ValueError(f"the policy needs the channels {', '.join(names)}; found {actual}")
        arrays = {name: as_array(parts[name]) for name in names}
        first = self.spec.channels[0]
        single = arrays[first.name].ndim == first.ndim + num_axes
        arrays = {name: array[None] for name, array in arrays.items()} if single else arrays
        for channel in self.spec.channels:
            array, label = arrays[channel.name], "" if lone else f" {channel.name}"
            if (
                array.shape[1 + num_axes :] != channel.shape
                or array.ndim != channel.ndim + 1 + num_axes
            ):
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
            raise ValueError("the channels have different batch sizes")
        return arrays, single

    def _append(self, rows: Mapping[str, np.ndarray], state: History | None) -> History:
        """Return the history with one more observation. The first one fills all of it."""
        size = self.spec.n_obs_steps
        if state is None:
            return History({k: np.repeat(v[:, None], size, 1) for k, v in rows.items()}, 1)
        old = state.observations
        for name, value in rows.items():
            if len(old[name]) != len(value):
                raise ValueError(
                    f"{len(value)} observations, but the state is for {len(old[name])} episodes"
                )
        new = {k: np.concatenate([old[k][:, 1:], v[:, None]], 1) for k, v in rows.items()}
        return History(new, state.num_chunks + 1)

    def _rewards(self, reward: Any, count: int) -> np.ndarray:
        """Return `reward` as a validated float32 array [count]."""
        kind = self.bundle.kind
        if reward is None:
            raise ValueError(
                f"a {kind} reads the rewards of its episode. After the first call, pass the reward "
                "of the previous action: act(observation, state, reward=…)"
            )
        values = as_array(reward, np.float32).reshape(-1)
        if len(values) != count or not np.isfinite(values).all():
            raise ValueError(f"reward: expected {count} finite numbers, found {reward!r}")
        return values

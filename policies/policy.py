"""The policy interface: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from policies.arrays import as_array
from policies.bundle import Bundle, BundleError
from policies.channels import map_channels, size
from policies.episodes import COSTS, REWARDS, RunningEpisodes
from policies.normalizer import Normalizer
from policies.runtimes.network import Inputs, Memory, Network
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
        self, observation: Observation, state: Any = None, reward: Any = None, cost: Any = None
    ) -> tuple[np.ndarray, Any]:
        """Return a chunk of actions for an observation, and the next state.

        observation: [*obs] or [B, *obs], raw.
        state: the state that the previous call returned; None at the start of an episode.
        reward: raw reward of the previous action, a number or [B]. Policies that read rewards need
        it, except in the first call of an episode.
        cost: raw cost of the previous action, likewise for policies that read costs.

        The chunk is [chunk_size, A] or [B, chunk_size, A]. Actions are in [-1, 1], or in the
        environment's units if the policy was loaded with `units=True`.
        Raises ValueError for a wrong shape or NaN. Guessing would be unsafe on a robot.
        """
        ...


def refuse_feedback(policy: Any, place: str) -> None:
    """Raise BundleError if `policy` reads rewards or costs.

    place: where the policy would act without them, for example "a robot".
    """
    for name in (REWARDS, COSTS):
        if getattr(policy, f"needs_{name}", False):
            raise BundleError(
                f"a {policy.bundle.kind} reads the {name} of its episode, but {place} does not get "
                f"{name}. Use a policy that reads only observations"
            )


class BundlePolicy:
    """The policy of a bundle, executed by one of `policies.runtimes`."""

    def __init__(self, bundle: Bundle, network: Network, *, units: bool = False) -> None:
        """Combine a bundle with its network.

        units: return actions in the environment's units instead of [-1, 1].
        """
        self.spec, self.bundle, self.network, self.units = bundle.spec, bundle, network, units
        memory = network.initial_memory(1)
        self.has_memory = bool(memory)  # True if it remembers the episode beyond its observations
        # True if it reads the rewards, or the costs, of the episode
        self.needs_rewards, self.needs_costs = REWARDS in memory, COSTS in memory
        # True if an action depends on the present observation only
        self.is_stateless = not memory and self.spec.n_obs_steps == 1 and not network.noise_shape

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
    def module(self) -> Any:
        """The torch module. Raises BundleError if another runtime runs the policy."""
        if self.network.module is None:
            raise BundleError(
                f"the policy runs in {self.network.name} and has no torch module. "
                "Load it with policies.load(path, runtime='torch')"
            )
        return self.network.module

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None, cost: Any = None
    ) -> tuple[np.ndarray, Any]:
        """See `Policy.act`. The result is deterministic.

        Call this method once per step, because it appends each observation to the observation
        history. It predicts a new chunk in every call. `policies.Player` predicts a new chunk only
        when all `n_action_steps` actions of the current chunk are executed. It also applies
        temporal ensembling if `spec` sets the coefficient.
        """
        rows, single = self.check_observations(observation)
        if self.is_stateless:
            history = map_channels(lambda x: x[:, None], rows)
            chunk, _ = self.decide(history, {}, np.zeros((size(rows), 0), np.float32))
            return (chunk[0] if single else chunk), state
        count = size(rows)
        if state is None:
            state = self.new_episodes()
            state.temporal_ensemble_coeff = None
            state.reset(np.zeros(count, np.int64))
        elif len(state.seeds) != count:
            raise ValueError(
                f"{count} observations, but the state is for {len(state.seeds)} episodes"
            )
        else:
            state = state.fork()
        self.add_feedback(state, reward, cost)
        state.observe(rows)
        chunk = state.predict_chunk()
        return (chunk[0] if single else chunk), state

    def new_episodes(self) -> RunningEpisodes:
        """Return the object that runs the policy in parallel episodes, without episodes yet."""
        return RunningEpisodes(**self.episode_options())

    def episode_options(self) -> dict[str, Any]:
        """Return the arguments of `RunningEpisodes` for this policy."""
        return {
            "decide": lambda observations, memory, noise, _: self.decide(
                observations, memory, noise
            ),
            "initial_memory": self.network.initial_memory,
            "n_obs_steps": self.spec.n_obs_steps,
            "n_action_steps": self.spec.n_action_steps,
            "noise_shape": self.noise_shape,
            "temporal_ensemble_coeff": self.spec.temporal_ensemble_coeff,
        }

    def add_feedback(self, episodes: RunningEpisodes, reward: Any, cost: Any) -> None:
        """Add the raw rewards and costs of the last actions to `episodes` if the policy reads them.

        reward, cost: a number or [B]; ignored before the first step. Raises ValueError.
        """
        if episodes.is_new.all():
            return
        if self.needs_rewards:
            episodes.add_rewards(self._check_feedback("reward", reward, len(episodes.seeds)))
        if self.needs_costs:
            episodes.add_costs(self._check_feedback("cost", cost, len(episodes.seeds)))

    def _check_feedback(self, name: str, value: Any, count: int) -> np.ndarray:
        """Return the rewards or costs of the last actions, [count]. Raises ValueError."""
        if value is None:
            raise ValueError(
                f"a {self.bundle.kind} reads the {name}s of its episode. After the first call, "
                f"pass the {name} of the previous action: act(observation, state, {name}=…)"
            )
        values = as_array(value, np.float32).reshape(-1)
        if len(values) != count or not np.isfinite(values).all():
            raise ValueError(f"{name}: expected {count} finite numbers, found {value!r}")
        return values

    def decide(
        self, observations: Observation, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """Return the chunks [B, chunk_size, A] and the next memory, without validation.

        observations: raw, [B, n_obs_steps, *obs].
        noise: [B, *noise_shape]; [B, 0] for a deterministic policy.
        """
        chunk, memory = self.network.decide(self._normalize(observations), memory, noise)
        assert self.bundle.actions is not None
        if not self.bundle.actions.is_identity:
            chunk = self.bundle.actions.inverse(chunk).clip(-1, 1)
        return (self.spec.to_units(chunk) if self.units else chunk), memory

    def in_distribution(
        self, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a mask of the pairs that are like the data's, and their scores, [B] each.

        observation: raw, [B, O].  action: [B, A], in [-1, 1] or in units as `act` returns it.
        `offline-rl export run=… guardian=kde` adds the guardian to a bundle. Raises BundleError if
        the bundle has none, and ValueError for wrong shapes.
        """
        guardian = self.bundle.guardian
        if guardian is None:
            raise BundleError(
                "the bundle has no guardian. Add one with offline-rl export run=<bundle> "
                "guardian=neighbor"
            )
        if self.units:
            action = self.spec.from_units(action)
        return guardian.in_distribution(observation, action)

    def selection_margins(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        """Return by how much the selected sample's value exceeds all others, [B]. Needs torch.

        Arguments: see `decide`.
        """
        import torch

        inputs, module = map_channels(torch.from_numpy, self._normalize(observations)), self.module
        with torch.inference_mode():
            memory = module.initial_memory(len(noise))
            margins: Any = module.selection_margins(inputs, memory, torch.from_numpy(noise))
        result: np.ndarray = margins.numpy()
        return result

    def _normalize(self, observations: Observation) -> Inputs:
        """Convert raw observations to the network's input."""
        lone, normalizers = self.bundle.spec.single_vector, self.bundle.normalizers
        if lone is not None and not isinstance(observations, Mapping):
            return normalizers[lone.name](observations)
        assert isinstance(observations, Mapping)
        inputs = {k: normalizers[k](v) if k in normalizers else v for k, v in observations.items()}
        return inputs if lone is None else inputs[lone.name]

    def check_observations(self, observation: Observation) -> tuple[Observation, bool]:
        """Return validated observations [B, *obs], and True if the argument had no batch axis."""
        lone = self.spec.single_vector
        plain = lone is not None and not isinstance(observation, Mapping)
        parts = {lone.name: observation} if plain and lone else observation
        names = [channel.name for channel in self.spec.channels]
        if not isinstance(parts, Mapping) or parts.keys() != set(names):
            actual = sorted(parts) if isinstance(parts, Mapping) else type(parts).__name__
            raise ValueError(f"the policy needs the channels {', '.join(names)}; found {actual}")
        arrays = {name: as_array(parts[name]) for name in names}
        first = self.spec.channels[0]
        single = arrays[first.name].ndim == first.ndim
        arrays = {name: array[None] for name, array in arrays.items()} if single else arrays
        for channel in self.spec.channels:
            array, label = arrays[channel.name], "" if lone else f" {channel.name}"
            if array.shape[1:] != channel.shape:
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
        return (arrays if lone is None else arrays[lone.name]), single

"""A policy as its users see it: observations in, actions out, nothing else to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from policies.arrays import as_array
from policies.bundle import Bundle, BundleError
from policies.noise import normal
from policies.normalizer import Normalizer
from policies.runtimes.network import Network, Seen
from policies.spec import Spec

Observation = np.ndarray | Mapping[str, np.ndarray]  # the one vector, or every channel by name


class Policy(Protocol):
    """Carries its own normalizer and the description of what it sees and does."""

    spec: Spec

    @property
    def normalizer(self) -> Normalizer:
        """Of the one vector that it sees."""
        ...

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """observation: [*obs] or [B, *obs], raw. state: what the last call returned, None at first.

        reward: raw, a number or [B], of the action before; a policy that acts on rewards needs it
        from the second call of an episode on.
        Returns a chunk of actions in [-1, 1], [chunk_size, A] or [B, chunk_size, A], and the next state;
        in the environment's units where it was loaded so.
        Raises ValueError for another shape or a NaN: a robot must not guess.
        """
        ...


def refuse_rewards(policy: Any, place: str) -> None:
    """Raise BundleError if `policy` acts on rewards: there are none in `place`, such as a robot."""
    if getattr(policy, "needs_rewards", False):
        raise BundleError(
            f"a {policy.bundle.kind} acts on the rewards of its episode, which {place} is not "
            "given; use a policy that acts on what it observes"
        )


class History(NamedTuple):
    """What a policy that plans carries from one observation to the next."""

    seen: dict[str, np.ndarray]  # [B, n_obs_steps, *shape], raw; the present one last
    decisions: int  # so far


class BundlePolicy:
    """What a bundle holds, run by one of `policies.runtimes`."""

    def __init__(self, bundle: Bundle, network: Network, *, units: bool = False) -> None:
        """units: acts in the environment's units instead of [-1, 1]."""
        self.spec, self.bundle, self.network, self.units = bundle.spec, bundle, network, units

    @property
    def normalizer(self) -> Normalizer:
        """Of the one vector that it sees."""
        return self.bundle.normalizers[self.spec.vectors[0].name]

    def __repr__(self) -> str:
        told = self.bundle.provenance
        learned = f" of {told['algorithm']} on {told['task']}" if "algorithm" in told else ""
        seen = ", ".join(f"{c.name} {list(c.shape)}" for c in self.spec.channels)
        spec, more = self.spec, ""
        if spec.n_obs_steps > 1 or spec.chunk_size > 1:
            more = f"; history {spec.n_obs_steps}, chunks of {spec.chunk_size}, executed {spec.n_action_steps}"
        return f"<{self.bundle.kind}{learned}: {seen} -> {spec.action_dim} actions{more}>"

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of the standard normal numbers that one decision takes; () for none."""
        return self.network.noise_shape

    @property
    def needs_rewards(self) -> bool:
        """True if its memory reads the rewards of the episode, as for a return to go."""
        return self.network.needs_rewards

    @property
    def module(self) -> Any:
        """Its network in torch. Raises BundleError where another runtime runs it."""
        if not hasattr(self.network, "module"):
            raise BundleError("it runs without torch: policies.load(path, runtime='torch')")
        return self.network.module

    def act(
        self, observation: Observation, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """See `Policy.act`; deterministic.

        A policy that sees a history takes it from the calls: one at every step. `policies.Player`
        asks for a chunk only where the last one is used up, and blends them where `spec` says so.
        """
        rows, single = self._rows(observation, 0)
        count = len(next(iter(rows.values())))
        if self.network.remembers:
            unread = state is None or not self.needs_rewards
            rewards = np.zeros(count, np.float32) if unread else self._rewards(reward, count)
            memory = self.network.reset(count) if state is None else state
            seen = self._seen({name: value[:, None] for name, value in rows.items()})
            chunk, state = self.network.step(seen, rewards, memory)
            chunk = self._actions(chunk)
        elif self.spec.n_obs_steps == 1 and not self.noise_shape:
            chunk = self.chunk({name: value[:, None] for name, value in rows.items()})
        else:
            state = self._history(rows, state)
            first, decisions = np.zeros(count, int), np.full(count, state.decisions - 1)
            chunk = self.chunk(state.seen, normal(first, decisions, self.noise_shape or (0,)))
        chunk = self.spec.in_units(chunk) if self.units else chunk
        return (chunk[0] if single else chunk), state

    def plan(self, observations: Observation, noise: np.ndarray) -> np.ndarray:
        """[B, n_obs_steps, *obs], raw, and [B, *noise_shape], [B, 0] for none -> [B, chunk_size, A]."""
        rows, _ = self._rows(observations, 1)
        chunk = self.chunk(rows, noise)
        return self.spec.in_units(chunk) if self.units else chunk

    def rows(self, observation: Observation) -> tuple[Observation, bool]:
        """[B, *obs], checked, and whether it was a single observation."""
        arrays, single = self._rows(observation, 0)
        return (arrays if self.spec.lone is None else arrays[self.spec.lone.name]), single

    def chunk(
        self, observations: Mapping[str, np.ndarray], noise: np.ndarray | None = None
    ) -> np.ndarray:
        """In [-1, 1], to raw observations of every channel, [B, n_obs_steps, *shape]; unchecked."""
        if noise is None:
            noise = np.zeros((len(next(iter(observations.values()))), 0), np.float32)
        return self._actions(self.network.plan(self._seen(observations), noise))

    def _actions(self, answer: np.ndarray) -> np.ndarray:
        """Of the network's answer, in [-1, 1]."""
        assert self.bundle.actions is not None
        if self.bundle.actions.is_identity:
            return answer
        return self.bundle.actions.inverse(answer).clip(-1, 1)

    def _seen(self, observations: Mapping[str, np.ndarray]) -> Seen:
        """What the network sees of raw observations."""
        normalizers = self.bundle.normalizers
        seen = {k: normalizers[k](v) if k in normalizers else v for k, v in observations.items()}
        return seen if self.spec.lone is None else seen[self.spec.lone.name]

    def _rows(self, observation: Observation, more: int) -> tuple[dict[str, np.ndarray], bool]:
        """Every channel with a leading axis, checked, and whether that was added.

        more: axes of each besides that and its own shape.
        """
        lone = self.spec.lone
        plain = lone is not None and not isinstance(observation, Mapping)
        given = {lone.name: observation} if plain and lone else observation
        names = [channel.name for channel in self.spec.channels]
        if not isinstance(given, Mapping) or given.keys() != set(names):
            found = sorted(given) if isinstance(given, Mapping) else type(given).__name__
            raise ValueError(f"the policy observes {', '.join(names)}; found {found}")
        arrays = {name: as_array(given[name]) for name in names}
        first = self.spec.channels[0]
        single = arrays[first.name].ndim == first.ndim + more
        arrays = {name: array[None] for name, array in arrays.items()} if single else arrays
        for channel in self.spec.channels:
            array, what = arrays[channel.name], "" if lone else f" {channel.name}"
            if array.shape[1 + more :] != channel.shape or array.ndim != channel.ndim + 1 + more:
                expected = ", ".join(map(str, channel.shape))
                last = " (colors last)" if channel.kind == "picture" else ""
                raise ValueError(
                    f"observation{what} of shape {array.shape}, expected [B, {expected}]{last}"
                )
            if channel.kind == "picture" and array.dtype != np.uint8:
                raise ValueError(f"observation{what} is of {array.dtype}, uint8 is expected")
            if channel.kind == "vector" and not np.isfinite(array).all():
                raise ValueError(f"the observation{what} holds NaN or infinite numbers")
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError("the channels have different numbers of observations")
        return arrays, single

    def _history(self, rows: Mapping[str, np.ndarray], state: History | None) -> History:
        """With one more observation; an episode's first is taken for all before it."""
        size = self.spec.n_obs_steps
        if state is None:
            return History({k: np.repeat(v[:, None], size, 1) for k, v in rows.items()}, 1)
        if any(len(state.seen[name]) != len(value) for name, value in rows.items()):
            raise ValueError("the observations are of another number of episodes than before")
        seen = {k: np.concatenate([state.seen[k][:, 1:], v[:, None]], 1) for k, v in rows.items()}
        return History(seen, state.decisions + 1)

    def _rewards(self, reward: Any, count: int) -> np.ndarray:
        """`reward` as [count] float32, checked."""
        kind = self.bundle.kind
        if reward is None:
            raise ValueError(
                f"a {kind} acts on the rewards of its episode: from the second call on, give "
                "act(observation, state, reward=…) that of the action before"
            )
        values = as_array(reward, np.float32).reshape(-1)
        if len(values) != count or not np.isfinite(values).all():
            raise ValueError(f"reward: expected {count} finite numbers, found {reward!r}")
        return values

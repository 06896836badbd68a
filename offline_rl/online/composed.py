"""Frozen base policies under a learner, which are part of the environment.

                   residual                             noise
    observation    {channels of the environment,        observation of the environment
                   base_action}
    action         base action plus residual action     initial noise of the base's sampler
    a step is      one environment step                 `n_action_steps` steps, open loop

The base computes each chunk once. The noise of a chunk is a function of the episode's seed and the
number of the decision. At the end of an episode, actions that are still queued are discarded. For
residual policies, the same code computes base actions in environments and for demonstrations.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import policies
from envs import Step, VectorEnv
from envs.adapters import SUCCESS
from offline_rl.data import Dataset
from offline_rl.data.specs import spec_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from offline_rl.utils.modules import import_name
from policies import Bundle, BundleError, Channel, Spec, channels, noise
from policies.bundle import BUNDLE, Composition
from policies.channels import BASE_ACTION, Observations
from policies.composed import (
    ComposedPolicy,
    add_base_action,
    needs_base,
    set_start_noise,
    start_noise_size,
)
from policies.episodes import Memory, RunningEpisodes
from policies.heads.residual import steering_problem
from policies.policy import BundlePolicy, refuse_feedback
from policies.spec import VECTOR

EPISODES = 256  # demonstrations that are labeled in parallel
FIRST = np.zeros(1, np.int64)  # index and seed of a single episode
MAX_ACTION = 1 + 1e-3  # a larger absolute value means that the action has other units
SUMMED = ("steps", "cost")  # infos that are summed over the environment steps of a decision


class BaseFault(UserError):
    """Error of a base policy that raised, or did not return valid actions."""


@dataclass(frozen=True)
class Base:
    """Frozen base policy that can act in any number of episodes."""

    name: str  # the value of base=
    sha256: str  # of the bundle, or of the code file and the name in it
    new_episodes: Callable[[], RunningEpisodes]
    action_dim: int
    policy: BundlePolicy | None = None  # None for code
    # collection and evaluation may call the base at the same time
    lock: Any = field(default_factory=threading.Lock, compare=False)

    @property
    def bundle(self) -> Bundle | None:
        """The bundle of the policy; None for code."""
        return None if self.policy is None else self.policy.bundle

    def digests(self, current: Mapping[str, Any] | None = None) -> dict[str, str] | None:
        """Return the sha256 of the bundle's weights and of the current weights; None for code.

        current: by default the weights of the policy that acts in environments.
        """
        if self.policy is None:
            return None
        stored = bundle_weights(self.policy.bundle)
        current = policy_weights(self.policy) if current is None else current
        return {"before": digest(stored), "after": digest(current)}

    def observe(
        self,
        episodes: RunningEpisodes,
        observations: Observations,
        rows: np.ndarray,
    ) -> dict[str, Any]:
        """Return the observations of episodes `rows`, [R], with the base's action as a channel.

        Raises BaseFault.
        """
        return add_base_action(
            observations, self.compute_actions(episodes, observations, rows).clip(-1, 1)
        )

    def compute_actions(
        self,
        episodes: RunningEpisodes,
        observations: Observations,
        rows: np.ndarray,
    ) -> np.ndarray:
        """Return the base's actions, [R, A], not clipped. Raises BaseFault."""
        actions = self._checked(lambda: episodes.step(observations, rows))
        if actions.shape != (len(rows), self.action_dim):
            raise BaseFault(
                f"base={self.name} returned an action of shape {list(actions.shape[1:])}, expected "
                f"[{self.action_dim}]"
            )
        return actions

    def compute_chunks(
        self,
        episodes: RunningEpisodes,
        actions: np.ndarray,
        noise_scale: float,
        rows: np.ndarray,
    ) -> np.ndarray:
        """Return the actions to execute, [R, n_action_steps, A], in the episodes `rows` [R].

        actions: [R, D] in [-1, 1], the initial noise divided by `noise_scale`. Raises BaseFault.
        """

        def predict() -> np.ndarray:
            noise = set_start_noise(episodes.draw_noise(rows), actions, noise_scale)
            return episodes.predict_chunk(rows, noise)[:, : episodes.n_action_steps]

        return self._checked(predict)

    def _checked(self, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return finite actions from `compute`. Raises BaseFault."""
        try:
            with self.lock:
                actions = np.asarray(compute(), np.float32)
        except Exception as error:
            raise BaseFault(f"base={self.name} raised {error!r}") from error
        if not np.isfinite(actions).all():
            raise BaseFault(f"base={self.name} returned NaN or infinite numbers")
        return actions


@dataclass(frozen=True)
class Composed:
    """A frozen base policy, and how a learner acts on it."""

    base: Base
    composition: Composition

    def __post_init__(self) -> None:
        """Raise UserError if the learner chooses the initial noise and the base has none."""
        if not self.is_residual and not self.start_noise_size:
            policy = self.base.policy
            description = "your own code" if policy is None else f"a {policy.bundle.kind}"
            raise UserError(
                f"base={self.base.name} is {description}, which has no sampler with an initial "
                "noise. Use the bundle of a diffusion or flow policy."
            )

    @property
    def is_residual(self) -> bool:
        return self.composition.how == "residual"

    @property
    def start_noise_size(self) -> int:
        """The number D of values of the initial noise."""
        return 0 if self.base.policy is None else start_noise_size(self.base.policy)

    @property
    def steps_per_decision(self) -> int:
        """The number of environment steps per decision, unless the episode ends within it."""
        if self.is_residual or self.base.policy is None:
            return 1
        return self.base.policy.spec.n_action_steps

    def wrap(self, env: VectorEnv) -> VectorEnv:
        """Return `env` with the base as a part of it."""
        return ResidualEnv(env, self.base) if self.is_residual else SteeredEnv(env, self)

    def spec(self, spec: Spec) -> Spec:
        """Return the learner's spec, for an environment of spec `spec`."""
        if self.is_residual:
            return with_base(spec)
        rate = spec.rate_hz and spec.rate_hz / self.steps_per_decision
        return Spec(spec.channels, self.start_noise_size, rate_hz=rate)

    def attach(self, learner: Bundle) -> Bundle:
        """Return the learner's bundle with the base in it, unless the base is code."""
        return replace(learner, base=self.base.bundle)


class ComposedEnv(VectorEnv):
    """Vector environment `env` with a frozen base policy as a part of it."""

    def __init__(self, env: VectorEnv, base: Base) -> None:
        super().__init__(env.num_envs)
        self.env, self.base, self._episodes = env, base, base.new_episodes()
        self._episodes.reset(np.zeros(env.num_envs, np.int64))
        names = ("observation_shape", "observation_names", "observation_units", "action_dim")
        for name in (*names, "max_episode_steps", "rate_hz", "limit"):
            setattr(self, name, getattr(env, name))

    def render(self, index: int = 0) -> np.ndarray:
        return self.env.render(index)

    def close(self) -> None:
        self.env.close()


class ResidualEnv(ComposedEnv):
    """Vector environment whose last observation channel is the next action of `base`."""

    def __init__(self, env: VectorEnv, base: Base) -> None:
        super().__init__(env, base)
        for name in ("action_names", "action_units", "action_low", "action_high", "action_offset"):
            setattr(self, name, getattr(env, name))
        self.observation_shape = add_base_action(env.observation_shape, (env.action_dim,))  # type: ignore[arg-type]

    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        observations = self.env.reset(seeds, indices)
        self._episodes.reset(np.asarray(seeds, np.int64), indices)
        return self.base.observe(self._episodes, observations, indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        step = self.env.step(actions, indices)
        # no base action after a terminal step: its value is never bootstrapped
        running = np.flatnonzero(~step.terminated)
        base_actions = np.zeros((len(indices), self.action_dim), np.float32)
        if len(running):
            observations = channels.take(step.observations, running)
            observed = self.base.observe(self._episodes, observations, indices[running])
            base_actions[running] = observed[BASE_ACTION]
        return step._replace(observations=add_base_action(step.observations, base_actions))


class SteeredEnv(ComposedEnv):
    """Vector environment in which an action is the initial noise of the base's next chunk.

    A step is a decision: it executes `steps_per_decision` actions of the chunk, or fewer if the
    episode ends. Its reward and cost are the undiscounted sums over these environment steps. The
    info `steps` is their number.
    """

    def __init__(self, env: VectorEnv, composed: Composed) -> None:
        super().__init__(env, composed.base)
        self.noise_scale = composed.composition.noise_scale
        self.steps_per_decision = composed.steps_per_decision
        self.action_dim = composed.start_noise_size
        self.max_episode_steps = -(-env.max_episode_steps // self.steps_per_decision)  # decisions
        self.rate_hz = env.rate_hz and env.rate_hz / self.steps_per_decision

    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        observations = self.env.reset(seeds, indices)
        self._episodes.reset(np.asarray(seeds, np.int64), indices)
        self._episodes.observe(observations, indices)
        return observations

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        chunks = self.base.compute_chunks(self._episodes, actions, self.noise_scale, indices)
        running, rewards = np.arange(len(indices)), np.zeros(len(indices))
        terminated, truncated = (np.zeros(len(indices), bool) for _ in range(2))
        infos = dict[str, np.ndarray]()
        observations: Any = None
        for j in range(self.steps_per_decision):
            step = self.env.step(chunks[running, j], indices[running])
            if observations is None:
                observations = channels.map_channels(np.copy, step.observations)
            channels.assign(observations, running, step.observations)
            rewards[running] += step.rewards
            terminated[running], truncated[running] = step.terminated, step.truncated
            for name, values in {**step.infos, "steps": np.ones(len(running), int)}.items():
                total = infos.setdefault(name, np.zeros(len(indices), values.dtype))
                if name in SUCCESS:
                    values = total[running] | values
                elif name in SUMMED:
                    values = total[running] + values
                total[running] = values
            still = ~(step.terminated | step.truncated)
            running = running[still]
            if not len(running):
                break
            self._episodes.observe(channels.take(step.observations, still), indices[running])
        return Step(observations, rewards, terminated, truncated, infos)


def label_dataset(data: Dataset, base: Base) -> Dataset:
    """Return `data` with the base's action as an observation channel.

    The base acts in every episode from the first observation to the last one, which is stored after
    a time-out. Raises BaseFault.
    """
    actions = np.zeros((channels.size(data.observations), base.action_dim), np.float32)
    is_clipped = np.zeros(len(actions), bool)
    after = data.next_index[data.episode_ends]
    has_last = (after >= data.num_rows) & ~data.terminated[data.episode_ends]
    starts, lengths = data.episode_starts, data.episode_lengths()
    for first in range(0, data.num_episodes, EPISODES):
        block = np.arange(first, min(first + EPISODES, data.num_episodes))
        episodes = base.new_episodes()
        episodes.reset(block)
        rows = np.arange(len(block))
        for t in range(int(lengths[block].max()) + 1):
            last = t == lengths[block[rows]]  # the observation after the last row, if it is stored
            rows = rows[~last | has_last[block[rows]]]
            indices, over = block[rows], t == lengths[block[rows]]
            at = np.where(over, after[indices], starts[indices] + t)
            if len(rows):
                observations = channels.take(data.observations, at)
                raw = base.compute_actions(episodes, observations, rows)
                actions[at], is_clipped[at] = raw.clip(-1, 1), (np.abs(raw) > MAX_ACTION).any(1)
            rows = rows[~over]
    # a next observation that is stored separately, within an episode, gets the base action of the
    # next row
    separate = data.next_index >= data.num_rows
    separate[data.episode_ends] = False
    actions[data.next_index[separate]] = actions[: data.num_rows][np.flatnonzero(separate) + 1]
    observations, notes = add_base_action(data.observations, actions), data.notes
    if share := float(is_clipped[: data.num_rows].mean()):
        notes = (*notes, f"{share:.0%} of the actions of base={base.name} are clipped to [-1, 1]")
    spec = data.spec and with_base(data.spec)
    return replace(data, observations=observations, spec=spec, notes=notes)


def without_base(data: Dataset) -> Dataset:
    """Return `data` without the base's action: the inverse of `label_dataset`."""
    by_channel = {name: x for name, x in data.observations.items() if name != BASE_ACTION}
    spec = data.spec and replace(data.spec, channels=data.spec.channels[:-1])
    observations = by_channel.pop(VECTOR) if [*by_channel] == [VECTOR] else by_channel
    return replace(data, observations=observations, spec=spec)


def with_base(spec: Spec) -> Spec:
    """Return `spec` with the base's action as an additional channel."""
    channel = Channel(BASE_ACTION, (spec.action_dim,))
    return replace(spec, channels=(*spec.channels, channel))


def base_of(source: str, env: VectorEnv) -> Base:
    """Load the base policy that `source` names. Raises UserError if it does not fit `env`.

    source: a bundle, or module:name or file.py:name of your own code: a function of
    observations [B, *obs] that returns actions [B, A] or chunks [B, H, A], or a class with a method
    `plan(observations, noise)` that returns chunks for observations [B, n_obs_steps, *obs] and
    standard normal noise [B, *noise_shape]. It may have the attributes `n_obs_steps`,
    `n_action_steps` and `noise_shape`. All actions are in [-1, 1].
    """
    if source.endswith(".py"):
        raise UserError(f"base={source} lacks the function or class. Use base={source}:<name>.")
    code = source.rpartition(":")[2].isidentifier() and ":" in source
    base = code_base(source, env) if code else bundle_base(source, env)
    episodes = base.new_episodes()
    episodes.reset(FIRST)
    actions = base.compute_actions(episodes, env.reset([0], FIRST), FIRST)  # raises for NaN
    if (largest := np.abs(actions).max()) > MAX_ACTION:
        raise UserError(
            f"base={source} returned {largest:g} for the first observation, but actions must be in "
            "[-1, 1]. Divide actions in other units by their range."
        )
    return base


def bundle_base(source: str, env: VectorEnv) -> Base:
    """Load the base policy of a bundle. Raises UserError if it does not fit `env`."""
    base, env_spec = load_bundle_base(source), spec_of(env)
    assert base.policy is not None
    if (problem := spec_difference(base.policy.spec, env_spec)) is not None:
        raise UserError(f"base={source} does not fit the task: {problem}")
    return base


def load_bundle_base(source: str) -> Base:
    """Load the base policy of a bundle. Raises UserError."""
    if Path(source).is_dir():
        bundles = sorted(Path(source).rglob(BUNDLE))
        remedy = f"Use base={bundles[0]}" if bundles else f"It contains no {BUNDLE}"
        raise UserError(f"base={source} is a folder. {remedy}.")
    try:
        policy = policies.load(source)
        refuse_feedback(policy, "a base")
    except BundleError as error:
        raise UserError(f"base={source}: {error}") from None
    if policy.has_memory:
        raise UserError(
            f"base={source}: a {policy.bundle.kind} has a memory, which a base policy must not "
            "have. Use a policy that acts on its observations only."
        )
    if needs_base(policy.bundle):
        raise UserError(
            f"base={source} was trained on a base policy that it does not contain, so it cannot "
            "act. Use a bundle that contains its base."
        )
    action_dim = policy.spec.action_dim
    return Base(source, checksum(Path(source)), policy.new_episodes, action_dim, policy)


def steerable_base(source: str, spec: Spec) -> Base:
    """Load a base policy whose sampler becomes part of the algorithm's networks. Raises UserError.

    spec: spec of the algorithm, which fits environment and data.
    """
    base = load_bundle_base(source)
    policy = base.policy
    assert policy is not None
    bundle, problem = policy.bundle, steering_problem(policy.bundle.kind, policy.noise_shape)
    assert bundle.actions is not None
    if bundle.composition is not None:
        problem = f"the {bundle.kind} acts on a base policy itself"
    elif not bundle.actions.is_identity:
        problem = "the bundle scales the actions of its network"
    if problem is not None:
        raise UserError(
            f"base={source} cannot be steered: {problem}. Use the bundle of a flow policy, of a "
            "diffusion policy with a deterministic sampler, or of fql."
        )
    if (difference := spec_difference(policy.spec, spec)) is not None:
        raise UserError(f"base={source} does not fit the task: {difference}")
    return base


def bundle_weights(bundle: Bundle) -> dict[str, Any]:
    """Return the weights in a bundle, including those of its base."""
    base = {} if bundle.base is None else bundle_weights(bundle.base)
    return {**bundle.weights, **{f"base/{name}": weight for name, weight in base.items()}}


def policy_weights(policy: Any) -> dict[str, Any]:
    """Return the current weights of a policy under the names of `bundle_weights`."""
    base = policy_weights(policy.base) if isinstance(policy, ComposedPolicy) else {}
    weights = policy.module.state_dict()
    return {**weights, **{f"base/{name}": weight for name, weight in base.items()}}


def digest(weights: Mapping[str, Any]) -> str:
    """Return the sha256 of arrays or tensors and their names."""
    total = sha256()
    for name in sorted(weights):
        total.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return total.hexdigest()


def spec_difference(spec: Spec, here: Spec) -> str | None:
    """Return a contradiction between a base's spec and the environment's; None if they agree."""
    if (problem := spec.mismatch(here)) is not None:
        return problem
    if spec.action_names and here.action_names and spec.action_names != here.action_names:
        return f"action_names: the policy has {spec.action_names}, here it is {here.action_names}"
    with contextlib.suppress(ValueError):  # the ranges cannot be converted
        if spec.conversion(here) is None:
            return None
    return f"action_range: the policy has {spec.action_range}, here it is {here.action_range}"


def code_base(source: str, env: VectorEnv) -> Base:
    """Load a base policy from a user's module or file. Raises UserError."""
    (kind, module), name = import_name("base", source), source.rpartition(":")[2]
    try:
        policy: Any = kind() if isinstance(kind, type) else kind
    except Exception as error:
        raise UserError(f"base={source}: {type(error).__name__}: {error}") from error
    n_obs_steps = attribute(source, policy, "n_obs_steps")
    shape = tuple(getattr(policy, "noise_shape", ()))

    def predict(observations: Observations, noise: np.ndarray) -> np.ndarray:
        """Return chunks, [R, chunk_size, A]."""
        if hasattr(policy, "plan"):
            return np.asarray(policy.plan(observations, noise))
        chunk = np.asarray(policy(channels.take(observations, np.s_[:, -1])))
        return chunk[:, None] if chunk.ndim == 2 else chunk

    first = channels.map_channels(
        lambda x: np.repeat(x[:, None], n_obs_steps, 1), env.reset([0], FIRST)
    )
    try:
        chunk_shape = predict(first, noise.normal(FIRST, FIRST, shape or (0,))).shape
    except Exception as error:
        raise UserError(f"base={source} raised {error!r}") from error
    expected_dims = len(chunk_shape) == 3 and chunk_shape[0] == 1 and chunk_shape[1]
    if not expected_dims or chunk_shape[2] != env.action_dim:
        raise UserError(
            f"base={source} returned shape {list(chunk_shape)} for one observation, expected "
            f"actions [1, {env.action_dim}] or a chunk [1, chunk_size, {env.action_dim}]"
        )

    def decide(
        observations: Observations, memory: Memory, noise_rows: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        chunk = predict(observations, noise_rows)
        expected = [len(rows), *chunk_shape[1:]]
        if [*chunk.shape] != expected:
            raise ValueError(f"it returned shape {list(chunk.shape)}, expected {expected}")
        return chunk, memory

    n_action_steps = attribute(source, policy, "n_action_steps", chunk_shape[1])
    if n_action_steps > chunk_shape[1]:
        raise UserError(
            f"base={source}: n_action_steps={n_action_steps}, but a chunk has {chunk_shape[1]} "
            "actions"
        )
    file = Path(inspect.getfile(module))
    return Base(
        source,
        sha256(f"{checksum(file)}:{name}".encode()).hexdigest(),
        lambda: RunningEpisodes(
            decide, n_obs_steps=n_obs_steps, n_action_steps=n_action_steps, noise_shape=shape
        ),
        env.action_dim,
    )


def attribute(source: str, policy: Any, name: str, default: int = 1) -> int:
    """Return the integer attribute `name` of a base, or the default. Raises UserError."""
    value = getattr(policy, name, None)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"base={source}: {name}={value!r} must be an integer of at least 1")
    return int(value)


def attach_base(trained: BundlePolicy, source: str, env: VectorEnv) -> ComposedPolicy:
    """Return the policy together with the base `source`, for a bundle that lacks its base.

    Raises UserError.
    """
    assert trained.bundle.composition is not None
    base = Composed(base_of(source, env), trained.bundle.composition).base
    return ComposedPolicy(trained, base.policy or base)

"""A frozen policy as a part of the environment: what it would do next is observed as well.

    what is observed    {channels of the environment, base_action}
    what is done        the learner's own action, which is to be the base's and a correction

Environments and demonstrations get the base's action by the same code: `Base.observe`. A chunk is
computed once, its noise follows from the episode's seed and the number of the decision in it, and
an episode's end begins its queue anew.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import policies
from envs import Step, VectorEnv
from offline_rl.data import Dataset
from offline_rl.data.env_spec import spec_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from offline_rl.utils.modules import import_name
from policies import Bundle, Channel, Spec, channels, noise
from policies.bundle import BUNDLE
from policies.channels import BASE_ACTION, Observations
from policies.chunks import Queue
from policies.policy import BundlePolicy, refuse_rewards
from policies.residual import ResidualPolicy, ResidualQueue, add_base_action, make_queue
from policies.spec import VECTOR

EPISODES = 256  # of demonstrations that are labeled side by side
FIRST = np.zeros(1, np.int64)  # one episode, one seed
MOST = 1 + 1e-3  # of an action's size: what is beyond is in other units


class BaseFault(UserError):
    """A base that raised, or answered no actions."""


@dataclass(frozen=True)
class Base:
    """A frozen policy, ready to act in any number of episodes."""

    name: str  # as it was given
    sha256: str  # of its file, and of its name in it
    made: Callable[[], Queue | ResidualQueue]  # the queue of new episodes
    action_dim: int
    bundle: Bundle | None = None  # where it is one
    weights: Callable[[], Mapping[str, Any]] | None = field(default=None, compare=False)  # its own
    lock: Any = field(default_factory=threading.Lock, compare=False)  # of who acts and evaluates

    def digests(self) -> dict[str, str] | None:
        """sha256 of its weights, as the bundle has them and as they are now; None for code."""
        if self.bundle is None or self.weights is None:
            return None
        return {"before": digest(held(self.bundle)), "after": digest(self.weights())}

    def observe(
        self, queue: Queue | ResidualQueue, observations: Observations, rows: np.ndarray
    ) -> dict[str, Any]:
        """What is observed in episodes `rows` [R], with what the base would do. BaseFault."""
        return add_base_action(observations, self.answer(queue, observations, rows).clip(-1, 1))

    def answer(
        self, queue: Queue | ResidualQueue, observations: Observations, rows: np.ndarray
    ) -> np.ndarray:
        """Actions [R, A] as the base gives them. BaseFault."""
        try:
            with self.lock:
                actions = np.asarray(queue.step(observations, rows), np.float32)
        except Exception as error:
            raise BaseFault(f"base={self.name} raised {error!r}") from error
        if actions.shape != (len(rows), self.action_dim):
            raise BaseFault(
                f"base={self.name} answers {list(actions.shape[1:])} for an observation, an action "
                f"is [{self.action_dim}]"
            )
        if not np.isfinite(actions).all():
            raise BaseFault(f"base={self.name} answers NaN or infinite numbers")
        return actions


class WithBase(VectorEnv):
    """The environments of `env`, which show what `base` would do next as their last channel."""

    def __init__(self, env: VectorEnv, base: Base) -> None:
        super().__init__(env.num_envs)
        self.env, self.base, self._queue = env, base, base.made()
        self._queue.reset(np.zeros(env.num_envs, np.int64))
        for name in ("action_dim", "max_episode_steps", "rate_hz", "limit"):
            setattr(self, name, getattr(env, name))
        for name in ("action_names", "action_units", "action_low", "action_high", "action_offset"):
            setattr(self, name, getattr(env, name))
        self.observation_shape = add_base_action(env.observation_shape, (env.action_dim,))  # type: ignore[arg-type]

    def reset(self, seeds: Sequence[int], indices: np.ndarray | None = None) -> Any:
        rows = self._all if indices is None else np.asarray(indices)
        observations = self.env.reset(seeds, indices)
        self._queue.reset(np.asarray(seeds, np.int64), rows)
        return self.base.observe(self._queue, observations, rows)

    def step(self, actions: np.ndarray, indices: np.ndarray | None = None) -> Step:
        rows = self._all if indices is None else np.asarray(indices)
        step = self.env.step(actions, indices)
        going = np.flatnonzero(~step.terminated)  # what is seen of an end bootstraps nothing
        shown = np.zeros((len(rows), self.action_dim), np.float32)
        if len(going):
            seen = channels.take(step.observations, going)
            shown[going] = self.base.observe(self._queue, seen, rows[going])[BASE_ACTION]
        return step._replace(observations=add_base_action(step.observations, shown))

    def render(self, index: int = 0) -> np.ndarray:
        return self.env.render(index)

    def close(self) -> None:
        self.env.close()

    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        raise NotImplementedError

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        raise NotImplementedError


def labeled(data: Dataset, base: Base) -> Dataset:
    """`data` as `base` sees it: every episode from its beginning, what a time-out leaves included.

    Raises BaseFault.
    """
    actions = np.zeros((channels.size(data.observations), base.action_dim), np.float32)
    beyond = np.zeros(len(actions), bool)
    after = data.next_index[data.episode_ends]
    goes_on = (after >= data.num_rows) & ~data.terminated[data.episode_ends]
    starts, lengths = data.episode_starts, data.episode_lengths()
    for first in range(0, data.num_episodes, EPISODES):
        every = np.arange(first, min(first + EPISODES, data.num_episodes))
        running = base.made()
        running.reset(every)
        rows = np.arange(len(every))
        for t in range(int(lengths[every].max()) + 1):
            last = t == lengths[every[rows]]  # what was seen after the last row, where it is known
            rows = rows[~last | goes_on[every[rows]]]
            own, over = every[rows], t == lengths[every[rows]]
            at = np.where(over, after[own], starts[own] + t)
            if len(rows):
                seen = channels.take(data.observations, at)
                found = base.answer(running, seen, rows)
                actions[at], beyond[at] = found.clip(-1, 1), (np.abs(found) > MOST).any(1)
            rows = rows[~over]
    apart = data.next_index >= data.num_rows  # within an episode: stored beside the row after it
    apart[data.episode_ends] = False
    actions[data.next_index[apart]] = actions[: data.num_rows][np.flatnonzero(apart) + 1]
    seen, notes = add_base_action(data.observations, actions), data.notes
    if share := float(beyond[: data.num_rows].mean()):
        notes = (*notes, f"{share:.0%} of base={base.name}'s actions on it are clipped to [-1, 1]")
    spec = data.spec and with_base(data.spec)
    return replace(data, observations=seen, spec=spec, notes=notes)


def without_base(data: Dataset) -> Dataset:
    """The inverse of `labeled`: what was observed before the base's action was shown beside it."""
    seen = {name: x for name, x in data.observations.items() if name != BASE_ACTION}
    spec = data.spec and replace(data.spec, channels=data.spec.channels[:-1])
    return replace(data, observations=seen.pop(VECTOR) if [*seen] == [VECTOR] else seen, spec=spec)


def with_base(spec: Spec) -> Spec:
    """`spec` of what is observed beside a base."""
    own = Channel(BASE_ACTION, (spec.action_dim,))
    return replace(spec, channels=(*spec.channels, own))


def base_of(source: str, env: VectorEnv) -> Base:
    """The policy that `source` names, which fits `env`. Raises UserError.

    source: a bundle; or module:name, or file.py:name, of a function of one's own,
    observations [B, *obs] -> actions [B, A] or chunks [B, H, A], or of what has a method `plan`,
    as `policies.heads.head.Planner` says. It may have the attributes `n_obs_steps`, `n_action_steps` and
    `noise_shape`. All actions are in [-1, 1].
    """
    if source.endswith(".py"):
        raise UserError(f"base={source}: say which function or class of it, as base={source}:Base")
    code = source.rpartition(":")[2].isidentifier() and ":" in source
    base = of_code(source, env) if code else of_bundle(source, env)
    running = base.made()
    running.reset(FIRST)
    first = base.answer(running, env.reset([0], FIRST), FIRST)  # refuses what is no number
    if (most := np.abs(first).max()) > MOST:
        raise UserError(
            f"base={source} answers {most:g} to a first observation: actions are in [-1, 1], so "
            "divide what is in other units by its range"
        )
    return base


def of_bundle(source: str, env: VectorEnv) -> Base:
    """The policy of a bundle. Raises UserError."""
    if Path(source).is_dir():
        found = sorted(Path(source).rglob(BUNDLE))
        remedy = f"give the bundle, as base={found[0]}" if found else f"it holds no {BUNDLE}"
        raise UserError(f"base={source} is a folder: {remedy}")
    try:
        policy = policies.load(source)
        refuse_rewards(policy, "a base")
    except policies.BundleError as error:
        raise UserError(f"base={source}: {error}") from None
    if policy.network.remembers:
        raise UserError(
            f"base={source}: a {policy.bundle.kind} keeps a memory of its episode, and a base can "
            "have none; use a policy that acts on what it observes"
        )
    own, here = policy.spec, spec_of(env)
    if any(channel.name == BASE_ACTION for channel in own.channels):
        raise UserError(f"base={source} corrects a base that it does not hold, and can be none")
    if (problem := differs(own, here)) is not None:
        raise UserError(f"base={source} does not fit the task: {problem}")
    told = source, checksum(Path(source)), lambda: make_queue(policy), env.action_dim, policy.bundle
    return Base(*told, weights=lambda: acting(policy))


def held(bundle: Bundle) -> dict[str, Any]:
    """A bundle's weights, and those of what it corrects."""
    below = {} if bundle.base is None else held(bundle.base)
    return {**bundle.weights, **{f"base/{name}": weight for name, weight in below.items()}}


def acting(policy: Any) -> dict[str, Any]:
    """Those that it acts by, by the same names."""
    below = acting(policy.base) if isinstance(policy, ResidualPolicy) else {}
    own = policy.module.state_dict()
    return {**own, **{f"base/{name}": weight for name, weight in below.items()}}


def digest(weights: Mapping[str, Any]) -> str:
    """sha256 of arrays or tensors and their names."""
    found = sha256()
    for name in sorted(weights):
        found.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return found.hexdigest()


def differs(own: Spec, here: Spec) -> str | None:
    """Which field of a base's specification contradicts that of the environment."""
    if (problem := own.mismatch(here)) is not None:
        return problem
    if own.action_names and here.action_names and own.action_names != here.action_names:
        return f"action_names: the policy has {own.action_names}, here it is {here.action_names}"
    with contextlib.suppress(ValueError):  # ranges that cannot be reconciled
        if own.conversion(here) is None:
            return None
    return f"action_range: the policy has {own.action_range}, here it is {here.action_range}"


def of_code(source: str, env: VectorEnv) -> Base:
    """The policy of a module or a file of the user's. Raises UserError."""
    (kind, module), name = import_name("base", source), source.rpartition(":")[2]
    try:
        own: Any = kind() if isinstance(kind, type) else kind
    except Exception as error:
        raise UserError(f"base={source}: {type(error).__name__}: {error}") from error
    n_obs_steps, shape = number(source, own, "n_obs_steps"), tuple(getattr(own, "noise_shape", ()))

    def answer(observations: Observations, noise: np.ndarray) -> np.ndarray:
        """Chunks [R, chunk_size, A]."""
        if hasattr(own, "plan"):
            return np.asarray(own.plan(observations, noise))
        chunk = np.asarray(own(channels.take(observations, np.s_[:, -1])))
        return chunk[:, None] if chunk.ndim == 2 else chunk

    first = channels.map_channels(lambda x: np.repeat(x[:, None], n_obs_steps, 1), env.reset([0], FIRST))
    try:
        found = answer(first, noise.normal(FIRST, FIRST, shape or (0,))).shape
    except Exception as error:
        raise UserError(f"base={source} raised {error!r}") from error
    if len(found) != 3 or found[0] != 1 or not found[1] or found[2] != env.action_dim:
        raise UserError(
            f"base={source} answers {list(found)} for one observation; actions "
            f"[1, {env.action_dim}], or a chunk [1, chunk_size, {env.action_dim}], are expected"
        )

    def plan(observations: Observations, drawn: np.ndarray, rows: np.ndarray) -> np.ndarray:
        chunk = answer(observations, drawn)
        if chunk.shape != (len(rows), *found[1:]):
            raise ValueError(f"an answer of {list(chunk.shape)}, not {[len(rows), *found[1:]]}")
        return chunk

    n_action_steps = number(source, own, "n_action_steps", found[1])
    if n_action_steps > found[1]:
        raise UserError(
            f"base={source}: n_action_steps={n_action_steps}, but a chunk has {found[1]} actions"
        )
    file = Path(inspect.getfile(module))
    return Base(
        source,
        sha256(f"{checksum(file)}:{name}".encode()).hexdigest(),
        lambda: Queue(
            plan, n_obs_steps=n_obs_steps, n_action_steps=n_action_steps, noise_shape=shape
        ),
        env.action_dim,
    )


def number(source: str, own: Any, name: str, default: int = 1) -> int:
    """The attribute `name` of a base, which may be missing. Raises UserError."""
    found = getattr(own, name, None)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < 1:
        raise UserError(f"base={source}: {name}={found!r} is no whole number of at least 1")
    return int(found)


def attached(correction: BundlePolicy, source: str, env: VectorEnv) -> ResidualPolicy:
    """The policy whose bundle holds a correction alone, with its base. Raises UserError."""
    return ResidualPolicy(correction, base_of(source, env).made)

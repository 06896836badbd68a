"""A frozen policy as a part of the environment: what it would do next is observed as well.

    what is observed    {channels of the environment, base_action}
    what is done        the learner's own action, which is to be the base's and a correction

Environments and demonstrations get the base's action by the same code: `Base.observe`. A chunk is
computed once, its noise follows from the episode's seed and the number of the decision in it, and
an episode's end begins its queue anew.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import policies
from envs import Step, VectorEnv
from offline_rl.data import Dataset
from offline_rl.data.meaning import spec_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from policies import Bundle, Channel, Spec, channels, noise
from policies.channels import BASE_ACTION, Observations
from policies.chunks import Queue
from policies.player import episodes
from policies.residual import Corrected, beside

EPISODES = 256  # of demonstrations that are labelled side by side
FIRST = np.zeros(1, np.int64)  # one episode, one seed


class BaseFault(UserError):
    """A base that raised, or answered no actions."""


@dataclass(frozen=True)
class Base:
    """A frozen policy, ready to act in any number of episodes."""

    name: str  # as it was given
    sha256: str  # of its file
    made: Callable[[], Queue | Corrected]  # the queue of new episodes
    action_dim: int
    bundle: Bundle | None = None  # where it is one
    lock: Any = field(default_factory=threading.Lock, compare=False)  # of who acts and evaluates

    def observe(
        self, queue: Queue | Corrected, observations: Observations, rows: np.ndarray
    ) -> dict[str, Any]:
        """What is observed in episodes `rows` [R], with what the base would do. BaseFault."""
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
        return beside(observations, actions.clip(-1, 1))


class WithBase(VectorEnv):
    """The environments of `env`, which show what `base` would do next as their last channel."""

    def __init__(self, env: VectorEnv, base: Base) -> None:
        super().__init__(env.num_envs)
        self.env, self.base, self._queue = env, base, base.made()
        self._queue.reset(np.zeros(env.num_envs, np.int64))
        for name in ("action_dim", "max_episode_steps", "rate_hz"):
            setattr(self, name, getattr(env, name))
        for name in ("action_names", "action_units", "action_low", "action_high"):
            setattr(self, name, getattr(env, name))
        self.observation_shape = beside(env.observation_shape, (env.action_dim,))  # type: ignore[arg-type]

    def reset(self, seeds: Sequence[int], indices: np.ndarray | None = None) -> Any:
        rows = self._all if indices is None else np.asarray(indices)
        observations = self.env.reset(seeds, indices)
        self._queue.reset(np.asarray(seeds, np.int64), rows)
        return self.base.observe(self._queue, observations, rows)

    def step(self, actions: np.ndarray, indices: np.ndarray | None = None) -> Step:
        rows = self._all if indices is None else np.asarray(indices)
        step = self.env.step(actions, indices)
        return step._replace(observations=self.base.observe(self._queue, step.observations, rows))

    def render(self, index: int = 0) -> np.ndarray:
        return self.env.render(index)

    def close(self) -> None:
        self.env.close()

    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        raise NotImplementedError

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        raise NotImplementedError


def labelled(data: Dataset, base: Base) -> Dataset:
    """`data` as `base` sees it: every episode from its beginning, what follows its end included.

    Raises BaseFault.
    """
    actions = np.zeros((channels.size(data.observations), base.action_dim), np.float32)
    after = data.next_index[data.episode_ends]
    starts, lengths = data.episode_starts, data.episode_lengths()
    for first in range(0, data.num_episodes, EPISODES):
        every = np.arange(first, min(first + EPISODES, data.num_episodes))
        running = base.made()
        running.reset(every)
        rows = np.arange(len(every))
        for t in range(int(lengths[every].max()) + 1):
            last = t == lengths[every[rows]]  # what was seen after the last row, where it is known
            rows = rows[~last | (after[every[rows]] >= data.num_rows)]
            own, over = every[rows], t == lengths[every[rows]]
            at = np.where(over, after[own], starts[own] + t)
            if len(rows):
                seen = channels.take(data.observations, at)
                actions[at] = base.observe(running, seen, rows)[BASE_ACTION]
            rows = rows[~over]
    seen = beside(data.observations, actions)
    return replace(data, observations=seen, spec=data.spec and with_base(data.spec))


def with_base(spec: Spec) -> Spec:
    """`spec` of what is observed beside a base."""
    own = Channel(BASE_ACTION, (spec.action_dim,))
    return replace(spec, channels=(*spec.channels, own))


def base_of(source: str, env: VectorEnv) -> Base:
    """The policy that `source` names, which fits `env`. Raises UserError.

    source: a bundle; or module:name, or file.py:name, of a function of one's own,
    observations [B, *obs] -> actions [B, A] or chunks [B, H, A], or of what has a method `plan`,
    as `policies.heads.head.Planner` says. It may have the attributes `history`, `executed` and
    `noise_shape`. All actions are in [-1, 1].
    """
    code = source.rpartition(":")[2].isidentifier() and ":" in source
    base = of_code(source, env) if code else of_bundle(source, env)
    running = base.made()
    running.reset(FIRST)
    base.observe(running, env.reset([0], FIRST), FIRST)  # refuses what answers no numbers
    return base


def of_bundle(source: str, env: VectorEnv) -> Base:
    """The policy of a bundle. Raises UserError."""
    try:
        policy = policies.load(source)
    except policies.BundleError as error:
        raise UserError(f"base={source}: {error}") from None
    if policy.network.remembers:
        raise UserError(
            f"base={source}: a {policy.bundle.kind} acts on the rewards of its episode, which a "
            "base is not given; take a policy that acts on what it observes"
        )
    own, here = policy.spec, spec_of(env)
    if (problem := differs(own, here)) is not None:
        raise UserError(f"base={source} does not fit the task: {problem}")
    return Base(
        source, checksum(Path(source)), lambda: episodes(policy), env.action_dim, policy.bundle
    )


def differs(own: Spec, here: Spec) -> str | None:
    """Which field of a base's specification contradicts that of the environment."""
    if (problem := own.mismatch(here)) is not None:
        return problem
    if own.rate_hz and here.rate_hz and abs(own.rate_hz / here.rate_hz - 1) > 0.01:
        return f"rate_hz: the policy has {own.rate_hz:g}, here it is {here.rate_hz:g}"
    for name in ("action_names", "each_action_unit", "observation_units"):
        mine, theirs = getattr(own, name), getattr(here, name)
        if mine and theirs and mine != theirs:
            return f"{name.removeprefix('each_')}: the policy has {mine}, here it is {theirs}"
    for k, name in enumerate(("action_low", "action_high")):
        mine, theirs = own.action_bounds[k], here.action_bounds[k]
        if own.action_low and here.action_low and not np.allclose(mine, theirs, rtol=1e-3):
            return f"{name}: the policy has {mine.tolist()}, here it is {theirs.tolist()}"
    return None


def of_code(source: str, env: VectorEnv) -> Base:
    """The policy of a module or a file of the user's. Raises UserError."""
    module, _, name = source.rpartition(":")
    try:
        loaded = imported(Path(module)) if module.endswith(".py") else import_module(module)
        own: Any = getattr(loaded, name)
        own = own() if isinstance(own, type) else own
    except Exception as error:
        raise UserError(f"base={source}: {type(error).__name__}: {error}") from error
    history, shape = int(getattr(own, "history", 1)), tuple(getattr(own, "noise_shape", ()))

    def answer(observations: Observations, noise: np.ndarray) -> np.ndarray:
        """Chunks [R, horizon, A]."""
        if hasattr(own, "plan"):
            return np.asarray(own.plan(observations, noise))
        chunk = np.asarray(own(channels.take(observations, np.s_[:, -1])))
        return chunk[:, None] if chunk.ndim == 2 else chunk

    first = channels.each(lambda x: np.repeat(x[:, None], history, 1), env.reset([0], FIRST))
    try:
        found = answer(first, noise.normal(FIRST, FIRST, shape or (0,))).shape
    except Exception as error:
        raise UserError(f"base={source} raised {error!r}") from error
    if len(found) != 3 or found[0] != 1 or not found[1] or found[2] != env.action_dim:
        raise UserError(
            f"base={source} answers {list(found)} for one observation; actions "
            f"[1, {env.action_dim}], or a chunk [1, horizon, {env.action_dim}], are expected"
        )

    def plan(observations: Observations, drawn: np.ndarray, rows: np.ndarray) -> np.ndarray:
        chunk = answer(observations, drawn)
        if chunk.shape != (len(rows), *found[1:]):
            raise ValueError(f"an answer of {list(chunk.shape)}, not {[len(rows), *found[1:]]}")
        return chunk

    executed = min(int(getattr(own, "executed", None) or found[1]), found[1])
    file = Path(inspect.getfile(loaded))
    return Base(
        source,
        checksum(file),
        lambda: Queue(plan, history=history, executed=executed, noise_shape=shape),
        env.action_dim,
    )


def imported(path: Path) -> ModuleType:
    """The module in a file."""
    path = path.expanduser().resolve()
    name = f"base_{checksum(path)[:16]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

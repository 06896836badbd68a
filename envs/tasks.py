"""Tasks by name: an environment, its dataset's card and the references of its score."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from envs import locomotion, mazes, neorl2, push, robotics
from envs.adapters import LoopVectorEnv, SingleEnv, unit_box
from envs.cards import Card, Reference, UnknownName, cards
from envs.vector import VectorEnv

NATIVE: dict[str, Callable[..., VectorEnv]] = {
    **locomotion.ENVS,
    **mazes.ENVS,
    **neorl2.ENVS,
    **push.ENVS,
    **robotics.ENVS,
}
_registered: dict[str, "Registration"] = {}


@dataclass(frozen=True)
class Registration:
    make: Callable[..., gymnasium.Env]
    max_episode_steps: int
    reference: Reference | None


@dataclass(frozen=True)
class Task:
    name: str  # as the user gave it
    env_id: str | None = (
        None  # a key of NATIVE, `env:<Gymnasium id>` or registered; None: data only
    )
    card: Card | None = None
    reference: Reference | None = None
    max_episode_steps: int | None = None

    def score(self, returns: np.ndarray | list[float] | float) -> np.ndarray:
        """The field's normalised score, 100 (R - min) / (max - min), of undiscounted returns."""
        if self.reference is None:
            raise ValueError(f"task '{self.name}' has no score references: report raw returns.")
        low, high = self.reference.min, self.reference.max
        return 100 * (np.asarray(returns, np.float64) - low) / (high - low)


def task(name: str) -> Task:
    """The task called `name`. Raises UnknownName.

    Names: D4RL's (`hopper-medium-v2`), `gym/hopper-medium`, `neorl2/DMSD`, what `register` was
    given, `none` (data without an environment), and `env:<id>` or `env:<module>:<id>`: any
    environment that Gymnasium knows (after importing the module), with the physics as installed.
    """
    if name == "none":
        return Task(name)
    if name in _registered:
        own = _registered[name]
        return Task(name, name, None, own.reference, own.max_episode_steps)
    if name.startswith("env:"):
        return Task(name, name, max_episode_steps=_gymnasium_spec(name).max_episode_steps)
    if name not in cards():
        remedy = "Any Gymnasium environment is env:<id>; data alone is task=none."
        raise UnknownName("task", name, names(), remedy=remedy)
    card = cards()[name]
    return Task(name, card.env, card, card.reference, card.max_episode_steps)


def names() -> list[str]:
    """All names that `task` knows, but for `env:<Gymnasium id>`."""
    return [*cards(), *_registered, "none"]


def register(
    name: str,
    make: Callable[..., gymnasium.Env],
    *,
    max_episode_steps: int,
    reference: Reference | None = None,
) -> None:
    """Makes `name` a task: `make(**kwargs)` builds its environment, Box actions with bounds."""
    if name in names():
        raise ValueError(f"task '{name}' exists already: choose another name.")
    _registered[name] = Registration(make, max_episode_steps, reference)


def make(
    task_or_name: Task | str, *, render_mode: str | None = None, **kwargs: Any
) -> gymnasium.Env:
    """One environment: actions in [-1, 1], the time limit applied (`truncated`).

    kwargs: of the constructor of a Gymnasium environment; our own take none.
    """
    env_id = _simulated(task_or_name)
    if env_id in NATIVE:
        return SingleEnv(NATIVE[env_id](1, **kwargs), render_mode=render_mode)
    kwargs |= {"render_mode": render_mode} if render_mode else {}
    if env_id in _registered:
        own = _registered[env_id]
        return gymnasium.wrappers.TimeLimit(unit_box(own.make(**kwargs)), own.max_episode_steps)
    try:
        return unit_box(gymnasium.make(env_id.removeprefix("env:"), **kwargs))
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        raise ValueError(f"{env_id} needs a package that is not installed: {error}.") from error


def make_vector(task_or_name: Task | str, num_envs: int, *, num_threads: int = 1) -> VectorEnv:
    """`num_envs` environments of a task.

    num_threads: of the MuJoCo environments of our own; it never changes a result.
    """
    env_id = _simulated(task_or_name)
    if env_id in NATIVE:
        return NATIVE[env_id](num_envs, num_threads=num_threads)
    limit = task(env_id).max_episode_steps
    if limit is None:
        raise ValueError(
            f"{env_id} has no time limit, so that an evaluation might never end: "
            "give it one with envs.register(name, make, max_episode_steps=...)."
        )
    return LoopVectorEnv(lambda: make(env_id), num_envs, limit)


def _simulated(task_or_name: Task | str) -> str:
    """The env_id. Raises ValueError if the task has none."""
    found = task(task_or_name) if isinstance(task_or_name, str) else task_or_name
    if found.env_id is None:
        what = "has data but no environment yet" if found.card else "has no environment"
        raise ValueError(
            f"task '{found.name}' {what}: train without evaluation (task=none with dataset=...), "
            "or evaluate in a Gymnasium environment (task=env:<id>)."
        )
    return found.env_id


def _gymnasium_spec(name: str) -> Any:
    module, _, env_id = name.removeprefix("env:").rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(env_id)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name}: {error}; install the package that registers it.") from error
    except gymnasium.error.Error as error:
        remedy = "A package that registers its own is named first: env:<module>:<id>."
        raise UnknownName("environment", env_id, gymnasium.registry, remedy=remedy) from error

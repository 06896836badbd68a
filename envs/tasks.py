"""Tasks by name: an environment, its dataset's card and the references of its score."""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs import suites
from envs.adapters import LoopVectorEnv, OldGym, SingleEnv, rescale_actions, select_keys
from envs.cards import Card, Reference, UnknownName, cards
from envs.faults import USER_ERRORS, describe_error
from envs.instances import instances_of
from envs.vector import VectorEnv

NATIVE: dict[str, Callable[..., VectorEnv]] = {}  # the ENVS of every file in envs/suites
for _file in pkgutil.walk_packages(suites.__path__, f"{suites.__name__}."):
    NATIVE |= getattr(importlib.import_module(_file.name), "ENVS", {})
_registered: dict[str, "Registration"] = {}


@dataclass(frozen=True, eq=False)  # each one has instances of its own
class Registration:
    make: Callable[..., gymnasium.Env]
    max_episode_steps: int
    reference: Reference | None


@dataclass(frozen=True)
class Task:
    name: str  # as the user gave it
    env_id: str | None = None  # of NATIVE, `env:<Gymnasium id>` or registered; None: data only
    card: Card | None = None
    reference: Reference | None = None
    max_episode_steps: int | None = None
    observation_keys: tuple[str, ...] = ()  # what is seen of a Dict; empty: all of it

    def adapted(
        self, max_episode_steps: int | None, observation_keys: Sequence[str] | None
    ) -> "Task":
        """An `env:` task with that time limit, its Dict seen in part; others are as they are."""
        if self.env_id is None or not self.env_id.startswith("env:"):
            return self
        steps = max_episode_steps or self.max_episode_steps
        return replace(
            self, max_episode_steps=steps, observation_keys=tuple(observation_keys or ())
        )

    def score(self, returns: np.ndarray | list[float] | float) -> np.ndarray:
        """The field's normalized score, 100 (R - min) / (max - min), of undiscounted returns."""
        if self.reference is None:
            raise ValueError(f"task '{self.name}' has no score references: report raw returns.")
        low, high = self.reference.min, self.reference.max
        return 100 * (np.asarray(returns, np.float64) - low) / (high - low)


def task(name: str) -> Task:
    """The task called `name`. Raises UnknownName.

    Names: of datasets, with the environment they belong to (D4RL's `hopper-medium-v2`,
    `gym/hopper-medium`, `neorl2/DMSD`); of our environments alone (`Hopper-v4`, `fetch/push`); what
    `register` was given; `none` (data without an environment); and `env:<id>` or
    `env:<module>:<id>`: any environment that Gymnasium knows (after importing the module), with the
    physics as installed; `env:<file>.py:<id>`: one that a file of yours registers, or a class in
    it. `d4rl:<id>`: the same data and score as `<id>`, evaluated in the d4rl
    package's own environment, where that is installed.
    """
    if name == "none":
        return Task(name)
    if name in _registered:
        own = _registered[name]
        return Task(name, name, None, own.reference, own.max_episode_steps)
    if name.startswith("env:"):
        return Task(name, name, max_episode_steps=_gymnasium_spec(name).max_episode_steps)
    if name.startswith("d4rl:"):
        return _d4rl_task(name)
    if name in NATIVE and name not in cards():
        return Task(name, name, max_episode_steps=episode_limit(NATIVE[name]))
    if name not in cards():
        remedy = "Any Gymnasium environment is env:<id>; data alone is task=none."
        raise UnknownName("task", name, names(), remedy=remedy)
    card = cards()[name]
    return Task(name, card.env, card, card.reference, card.max_episode_steps)


def episode_limit(environment: Callable[..., VectorEnv]) -> int | None:
    """Steps in an episode, where it is known without building it."""
    given = environment.keywords if isinstance(environment, partial) else {}
    kind = environment.func if isinstance(environment, partial) else environment
    return given.get("max_episode_steps") or getattr(kind, "max_episode_steps", None)


def names() -> list[str]:
    """All names that `task` knows, but for `env:<Gymnasium id>`."""
    return list(dict.fromkeys([*cards(), *NATIVE, *_registered, "none"]))


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
    found = _task_with_env(task_or_name)
    env_id = str(found.env_id)
    if env_id in NATIVE:
        return SingleEnv(NATIVE[env_id](1, **kwargs), render_mode=render_mode)
    if env_id.startswith("d4rl:"):
        return rescale_actions(OldGym(_import_old_gym().make(env_id.removeprefix("d4rl:"))))
    kwargs |= {"render_mode": render_mode} if render_mode else {}
    if env_id in _registered:
        own = _registered[env_id]
        return gymnasium.wrappers.TimeLimit(
            rescale_actions(own.make(**kwargs)), own.max_episode_steps
        )
    env = _make_gymnasium(env_id, _gymnasium_spec(env_id), found.max_episode_steps, **kwargs)
    return rescale_actions(select_keys(env, found.observation_keys, env_id), env_id)


def make_vector(
    task_or_name: Task | str,
    num_envs: int,
    *,
    num_threads: int = 1,
    fewer: bool = False,
    single: str | None = None,
) -> VectorEnv:
    """`num_envs` environments of a task.

    num_threads: of the MuJoCo environments of our own; it never changes a result.
    fewer: accept fewer environments where a simulator opens no more, or where its instances share
    state. That is tried once, on two of them; `VectorEnv.limit` says so. Otherwise a ValueError is raised.
    One environment always shares the open instance of the same task.
    single: why never more than one instance may be open, such as a setting; shared with all
    environments of the task. Environments of our own ignore it.
    """
    found = _task_with_env(task_or_name)
    env_id = str(found.env_id)
    if env_id in NATIVE:
        return NATIVE[env_id](num_envs, num_threads=num_threads)
    key = _registered.get(env_id, env_id), found.max_episode_steps, found.observation_keys
    instances = instances_of(key, lambda: make(found), found.name)
    steps = found.max_episode_steps or 0
    vector = LoopVectorEnv(
        instances.make,
        num_envs,
        steps,
        name=found.name,
        instances=instances,
        fewer=fewer,
        single=single,
    )
    if found.max_episode_steps is None:
        vector.close()
        raise ValueError(
            f"{env_id} has no time limit, so that an evaluation might never end: give it one, "
            "max_episode_steps=<steps>, here or as an attribute of its class."
        )
    return vector


def _task_with_env(task_or_name: Task | str) -> Task:
    """The task. Raises ValueError if it has no environment."""
    found = task(task_or_name) if isinstance(task_or_name, str) else task_or_name
    if found.env_id is None:
        what = "has data but no environment yet" if found.card else "has no environment"
        raise ValueError(
            f"task '{found.name}' {what}: train without evaluation (task=none with dataset=...), "
            "or evaluate in a Gymnasium environment (task=env:<id>)."
        )
    return found


def _make_gymnasium(name: str, spec: EnvSpec, steps: int | None, **kwargs: Any) -> gymnasium.Env:
    """By Gymnasium. Raises ValueError, whatever a constructor raises."""
    if "mujoco" in str(spec.entry_point) and find_spec("mujoco"):
        # which else leaves MUJOCO_LOG.TXT in the working folder for a model's old attribute
        importlib.import_module("mujoco").set_mju_user_warning(warnings.warn)
    try:
        return gymnasium.make(spec, steps, **kwargs)
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        raise ValueError(f"{name} needs a package that is not installed: {error}.") from error
    except USER_ERRORS as error:
        why = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        remedy = ""
        if isinstance(why, TypeError) and "render_mode" in kwargs:
            remedy = "; to be drawn, its __init__ takes render_mode=None and keeps it"
        elif isinstance(why, TypeError):
            remedy = "; it is made without arguments, so each needs a default"
        raise ValueError(f"{name} cannot be made: {describe_error(why)}{remedy}.") from error


def _d4rl_task(name: str) -> Task:
    """The task of a `d4rl:<id>`."""
    env_id = name.removeprefix("d4rl:")
    card = cards().get(env_id)
    if card is None or card.suite != "d4rl":
        ids = [f"d4rl:{own.name}" for own in cards().values() if own.suite == "d4rl"]
        raise UnknownName("task", name, ids)
    reference = card.reference
    if reference is not None:
        reference = replace(reference, environment=f"{env_id} of the d4rl package, as installed")
    return Task(name, name, card, reference, card.max_episode_steps)


def _import_old_gym() -> Any:
    """gym with D4RL's environments. Raises ValueError where the package is missing."""
    try:
        importlib.import_module("d4rl")
        return importlib.import_module("gym")
    except ModuleNotFoundError as error:
        remedy = "it is github.com/Farama-Foundation/D4RL, of the time of Python 3.10"
        raise ValueError(f"d4rl:<id> needs the d4rl package ({error}); {remedy}.") from error


def _gymnasium_spec(name: str) -> Any:
    module, _, env_id = name.removeprefix("env:").rpartition(":")
    try:
        own = _import_module(module) if module else None
        kind = getattr(own, env_id, None)
        if isinstance(kind, type) and env_id not in gymnasium.registry:
            if not issubclass(kind, gymnasium.Env):
                raise ValueError(f"{name} is no environment: let the class inherit gymnasium.Env.")
            steps = getattr(kind, "max_episode_steps", None)
            return EnvSpec(env_id, partial(kind), max_episode_steps=steps)
        return gymnasium.spec(env_id)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name}: {error}; install the package that registers it.") from error
    except gymnasium.error.Error as error:
        remedy = "One that registers its own is named first: env:<module or file>:<id>."
        if own is not None:
            classes = [k for k, v in vars(own).items() if _is_own(v, own)]
            remedy = f"{module} has {', '.join(classes) or 'no class of gymnasium.Env'}."
        raise UnknownName("environment", env_id, gymnasium.registry, remedy=remedy) from error


def _is_own(value: object, module: ModuleType) -> bool:
    """Whether it is an environment that `module` defines."""
    kind = isinstance(value, type) and issubclass(value, gymnasium.Env)
    return kind and getattr(value, "__module__", None) == module.__name__


def _import_module(name: str) -> ModuleType:
    """A module, of the working folder too; or that of a file. Raises ValueError naming its line."""
    path = Path(name).expanduser().resolve()
    folder, module = str(path.parent), path.stem
    if path.suffix != ".py":
        folder, module = str(Path.cwd()), name
    elif not path.is_file():
        raise ValueError(f"env:{name}: there is no such file.")
    if folder not in sys.path:
        sys.path.append(folder)  # after all others, so that it hides nothing
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        raise
    except SyntaxError as error:  # of which no line was run
        raise ValueError(f"{error.filename}: SyntaxError: {error}.") from error
    except USER_ERRORS as error:
        raise ValueError(f"{describe_error(error)}.") from error
    if path.suffix == ".py" and Path(found.__file__ or "").resolve() != path:
        raise ValueError(f"env:{name}: {module} is another module's name; call the file otherwise.")
    return found

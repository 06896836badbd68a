"""Task registry. A task is an environment, its dataset card and its score references."""

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
from envs.cards import Card, Reference, UnknownName, cards, check_limits
from envs.faults import USER_ERRORS, describe_error
from envs.instances import instances_of
from envs.outcomes import CostFunction, Outcomes
from envs.suites.ogbench import TIMINGS
from envs.vector import VectorEnv

NATIVE: dict[str, Callable[..., VectorEnv]] = {}  # collected from ENVS in each file of envs/suites
OUTCOMES: dict[str, Outcomes] = {}  # by env_id; of tasks without an environment, by name
COSTS: dict[str, CostFunction] = {}  # by env_id; used for data without costs, see Card.costs_from
for _file in pkgutil.walk_packages(suites.__path__, f"{suites.__name__}."):
    _module = importlib.import_module(_file.name)
    NATIVE |= getattr(_module, "ENVS", {})
    OUTCOMES |= getattr(_module, "OUTCOMES", {})
    COSTS |= getattr(_module, "COSTS", {})
_registered: dict[str, "Registration"] = {}


# eq=False: a registration is a key of `instances_of` and is hashed by identity. Two registrations
# therefore never share instances.
@dataclass(frozen=True, eq=False)
class Registration:
    make: Callable[..., gymnasium.Env]
    max_episode_steps: int
    reference: Reference | None
    outcomes: Outcomes | None = None
    cost_limits: tuple[float, ...] = ()


@dataclass(frozen=True)
class Task:
    name: str  # as passed by the user
    env_id: str | None = None  # key of NATIVE, `env:<Gymnasium id>` or registered; None: data only
    card: Card | None = None
    reference: Reference | None = None
    max_episode_steps: int | None = None
    observation_keys: tuple[str, ...] = ()  # keys to use of a Dict observation; empty: all keys
    success_timing: str | None = None  # OGBench: when success is judged; see `suites.ogbench`
    cost_limits: tuple[
        float, ...
    ] = ()  # published limits on an episode's cost; (): not constrained

    @property
    def cost_limit(self) -> float | None:
        """Middle one of the cost limits, the lower of two; None if the task is not constrained."""
        return self.cost_limits[(len(self.cost_limits) - 1) // 2] if self.cost_limits else None

    @property
    def outcomes(self) -> Outcomes | None:
        """Termination and reward as functions of a transition; None if unknown."""
        if self.env_id in _registered:
            return _registered[self.env_id].outcomes
        env_id = self.card.env if self.card else self.env_id  # for `d4rl:<id>`, the card's
        return OUTCOMES.get(env_id or self.name)

    def with_options(
        self,
        max_episode_steps: int | None,
        observation_keys: Sequence[str] | None,
        success_timing: str | None = None,
    ) -> "Task":
        """Return the task with other settings.

        max_episode_steps, observation_keys: of an `env:` task. Other tasks ignore them.
        success_timing: of an OGBench task. Raises ValueError for other tasks.
        """
        if success_timing is not None:
            if self.success_timing is None:
                raise ValueError(
                    f"success_timing={success_timing}: {self.name} is not a single task of "
                    "OGBench. Remove success_timing=."
                )
            return _with_timing(self, success_timing)
        if self.env_id is None or not self.env_id.startswith("env:"):
            return self
        steps = max_episode_steps or self.max_episode_steps
        return replace(
            self, max_episode_steps=steps, observation_keys=tuple(observation_keys or ())
        )

    def score(
        self, returns: np.ndarray | list[float] | float, success: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the score of each episode; see `Reference.score`."""
        if self.reference is None:
            raise ValueError(f"task '{self.name}' has no score references. Report raw returns.")
        return self.reference.score(returns, success)


def task(name: str) -> Task:
    """Return the task called `name`. Raises UnknownName.

    Names:
      dataset name: the data and its environment (D4RL's `hopper-medium-v2`, `gym/hopper-medium`,
        `neorl2/DMSD`).
      environment name: an environment of this package without data (`Hopper-v4`, `fetch/push`).
      a name passed to `register`.
      `none`: data without an environment.
      `env:<id>`, `env:<module>:<id>`: an environment registered with Gymnasium (after the module
        is imported). Its physics is that of the installed packages.
      `env:<file>.py:<id>`: an environment that your file registers, or a class in that file.
      `d4rl:<id>`: the data and score of `<id>`, evaluated in the environment of the d4rl package,
        which must be installed.
    """
    if name == "none":
        return Task(name)
    if name in _registered:
        registration = _registered[name]
        return Task(
            name,
            name,
            None,
            registration.reference,
            registration.max_episode_steps,
            cost_limits=registration.cost_limits,
        )
    if name.startswith("env:"):
        spec = _gymnasium_spec(name)
        limits = limits_of(spec.entry_point)
        return Task(name, name, max_episode_steps=spec.max_episode_steps, cost_limits=limits)
    if name.startswith("d4rl:"):
        return _d4rl_task(name)
    if name in NATIVE and name not in cards():
        steps, limits = episode_limit(NATIVE[name]), limits_of(NATIVE[name])
        made = Task(name, name, max_episode_steps=steps, cost_limits=limits)
        return _with_timing(made, default_timing(name))
    if name not in cards():
        remedy = "Use env:<id> for a Gymnasium environment, or task=none for data alone."
        raise UnknownName("task", name, names(), remedy=remedy)
    card = cards()[name]
    limits = card.cost_limits or limits_of(NATIVE.get(card.env or ""))
    made = Task(name, card.env, card, card.reference, card.max_episode_steps, cost_limits=limits)
    return _with_timing(made, default_timing(card.env))


def default_timing(env_id: str | None) -> str | None:
    """Return the `success_timing` of an OGBench environment; None for other environments."""
    environment = NATIVE.get(env_id or "")
    keywords = environment.keywords if isinstance(environment, partial) else {}
    timing: str | None = keywords.get("success_timing")
    return timing


def _with_timing(task: Task, timing: str | None) -> Task:
    """Return the task with this `success_timing`, which its score reference states."""
    if timing is None:
        return task
    reference = task.reference
    if reference is not None:
        simulator = reference.environment.partition("; success_timing=")[0]
        environment = f"{simulator}; success_timing={timing}: {TIMINGS[timing]}"
        reference = replace(reference, environment=environment)
    return replace(task, success_timing=timing, reference=reference)


def episode_limit(environment: Callable[..., VectorEnv]) -> int | None:
    """Return the time limit in steps if it is known without building the environment."""
    keywords = environment.keywords if isinstance(environment, partial) else {}
    kind = environment.func if isinstance(environment, partial) else environment
    return keywords.get("max_episode_steps") or getattr(kind, "max_episode_steps", None)


def limits_of(environment: object) -> tuple[float, ...]:
    """Return the attribute `cost_limits` of an environment's class; () if it has none.

    environment: the class, a `partial` of it, or its name as `module:class`, which is not imported.
    Raises ValueError for limits that do not increase.
    """
    if isinstance(environment, str):
        module, _, name = environment.partition(":")
        environment = getattr(sys.modules.get(module), name, None)
    kind = environment.func if isinstance(environment, partial) else environment
    return check_limits(getattr(kind, "cost_limits", ()))


def names() -> list[str]:
    """Return every name that `task` accepts, except the forms `env:…` and `d4rl:…`."""
    return list(dict.fromkeys([*cards(), *NATIVE, *_registered, "none"]))


def register(
    name: str,
    make: Callable[..., gymnasium.Env],
    *,
    max_episode_steps: int,
    reference: Reference | None = None,
    outcomes: Outcomes | None = None,
    cost_limits: Sequence[float] = (),
) -> None:
    """Register `name` as a task.

    make: called as `make(**kwargs)`; builds an environment with bounded Box actions.
    outcomes: termination and reward as functions, for model-based methods.
    cost_limits: limits on the undiscounted cost of an episode, in increasing order. The environment
    then reports the cost of each step as info `cost`.
    Raises ValueError if the name is taken, or if the limits do not increase.
    """
    if name in names():
        raise ValueError(f"task '{name}' exists already. Choose another name.")
    limits = check_limits(cost_limits)
    _registered[name] = Registration(make, max_episode_steps, reference, outcomes, limits)


def make(
    task_or_name: Task | str, *, render_mode: str | None = None, **kwargs: Any
) -> gymnasium.Env:
    """Return one environment with actions in [-1, 1] and the time limit applied (`truncated`).

    kwargs: for the constructor of a Gymnasium environment. Environments of this package take none.
    """
    task = _task_with_env(task_or_name)
    env_id = str(task.env_id)
    if env_id in NATIVE:
        kwargs |= timing_of(task)
        return SingleEnv(NATIVE[env_id](1, **kwargs), render_mode=render_mode)
    if env_id.startswith("d4rl:"):
        return rescale_actions(OldGym(_import_old_gym().make(env_id.removeprefix("d4rl:"))))
    kwargs |= {"render_mode": render_mode} if render_mode else {}
    if env_id in _registered:
        registration = _registered[env_id]
        return gymnasium.wrappers.TimeLimit(
            rescale_actions(registration.make(**kwargs)), registration.max_episode_steps
        )
    env = _make_gymnasium(env_id, _gymnasium_spec(env_id), task.max_episode_steps, **kwargs)
    return rescale_actions(select_keys(env, task.observation_keys, env_id), env_id)


def make_vector(
    task_or_name: Task | str,
    num_envs: int,
    *,
    num_threads: int = 1,
    fewer: bool = False,
    single: str | None = None,
) -> VectorEnv:
    """Return `num_envs` environments of a task. Raises ValueError if they cannot be opened.

    num_threads: threads that simulate this package's MuJoCo environments. No result depends on it.
    fewer: accept fewer environments if the simulator cannot open more, or if its instances share
    state (tested once, with two instances). `VectorEnv.limit` then gives the reason. If only one
    instance can be open, num_envs=1 shares it, with and without `fewer`.
    single: the reason why only one instance may be open (a setting, for example). All environments
    of the task then share this instance. Environments of this package ignore `single`.
    """
    task = _task_with_env(task_or_name)
    env_id = str(task.env_id)
    if env_id in NATIVE:
        return NATIVE[env_id](num_envs, num_threads=num_threads, **timing_of(task))
    key = _registered.get(env_id, env_id), task.max_episode_steps, task.observation_keys
    instances = instances_of(key, lambda: make(task), task.name)
    steps = task.max_episode_steps or 0
    vector = LoopVectorEnv(
        instances.make,
        num_envs,
        steps,
        name=task.name,
        instances=instances,
        fewer=fewer,
        single=single,
    )
    if task.max_episode_steps is None:
        vector.close()
        raise ValueError(
            f"{env_id} has no time limit, so an evaluation might never end. Set "
            "max_episode_steps=<steps>, here or as an attribute of its class."
        )
    return vector


def timing_of(task: Task) -> dict[str, Any]:
    """Return the keyword of the environment's constructor that sets the `success_timing`."""
    return {} if task.success_timing is None else {"success_timing": task.success_timing}


def _task_with_env(task_or_name: Task | str) -> Task:
    """Return the task. Raises ValueError if it has no environment."""
    result = task(task_or_name) if isinstance(task_or_name, str) else task_or_name
    if result.env_id is None:
        what = "has data but no environment yet" if result.card else "has no environment"
        raise ValueError(
            f"task '{result.name}' {what}. Train without evaluation (task=none with dataset=...), "
            "or evaluate in a Gymnasium environment (task=env:<id>)."
        )
    return result


def _make_gymnasium(name: str, spec: EnvSpec, steps: int | None, **kwargs: Any) -> gymnasium.Env:
    """Return the environment built by gymnasium.make.

    Raises ValueError for any error of its constructor.
    """
    if "mujoco" in str(spec.entry_point) and find_spec("mujoco"):
        # otherwise MuJoCo writes MUJOCO_LOG.TXT to the working folder for a deprecated attribute
        importlib.import_module("mujoco").set_mju_user_warning(warnings.warn)
    try:
        return gymnasium.make(spec, steps, **kwargs)
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        raise ValueError(f"{name} needs a package that is not installed ({error}).") from error
    except USER_ERRORS as error:
        why = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        remedy = ""
        if isinstance(why, TypeError) and "render_mode" in kwargs:
            remedy = " To render it, let its __init__ take render_mode=None and store it."
        elif isinstance(why, TypeError):
            remedy = " It is built without arguments: give each parameter a default."
        raise ValueError(f"{name} cannot be built: {describe_error(why)}.{remedy}") from error


def _d4rl_task(name: str) -> Task:
    """Return the task of the name `d4rl:<id>`. Raises UnknownName."""
    env_id = name.removeprefix("d4rl:")
    card = cards().get(env_id)
    if card is None or card.suite != "d4rl":
        ids = [f"d4rl:{other.name}" for other in cards().values() if other.suite == "d4rl"]
        raise UnknownName("task", name, ids)
    reference = card.reference
    if reference is not None:
        reference = replace(reference, environment=f"{env_id} of the d4rl package, as installed")
    return Task(name, name, card, reference, card.max_episode_steps, cost_limits=card.cost_limits)


def _import_old_gym() -> Any:
    """Return the module gym with D4RL's environments registered. Raises ValueError if missing."""
    try:
        importlib.import_module("d4rl")
        return importlib.import_module("gym")
    except ModuleNotFoundError as error:
        remedy = "Install github.com/Farama-Foundation/D4RL, which was made for Python 3.10."
        raise ValueError(f"d4rl:<id> needs the d4rl package ({error}). {remedy}") from error


def _gymnasium_spec(name: str) -> Any:
    module_name, _, env_id = name.removeprefix("env:").rpartition(":")
    try:
        module = _import_module(module_name) if module_name else None
        kind = getattr(module, env_id, None)
        if isinstance(kind, type) and env_id not in gymnasium.registry:
            if not issubclass(kind, gymnasium.Env):
                raise ValueError(
                    f"{name} is not an environment. Let the class inherit gymnasium.Env."
                )
            steps = getattr(kind, "max_episode_steps", None)
            return EnvSpec(env_id, partial(kind), max_episode_steps=steps)
        return gymnasium.spec(env_id)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name}: {error}. Install the package that registers it.") from error
    except gymnasium.error.Error as error:
        remedy = "If a module or file registers it, name that too: env:<module or file>:<id>."
        if module is not None:
            classes = [k for k, v in vars(module).items() if _is_defined_in(v, module)]
            remedy = f"{module_name} has {', '.join(classes) or 'no subclass of gymnasium.Env'}."
        raise UnknownName("environment", env_id, gymnasium.registry, remedy=remedy) from error


def _is_defined_in(value: object, module: ModuleType) -> bool:
    """True if `value` is an environment class that `module` defines."""
    kind = isinstance(value, type) and issubclass(value, gymnasium.Env)
    return kind and getattr(value, "__module__", None) == module.__name__


def _import_module(name: str) -> ModuleType:
    """Import a module by name (the working folder included) or from a .py file.

    Raises ValueError with the failing line.
    """
    path = Path(name).expanduser().resolve()
    folder, module = str(path.parent), path.stem
    if path.suffix != ".py":
        folder, module = str(Path.cwd()), name
    elif not path.is_file():
        raise ValueError(f"env:{name}: the file does not exist.")
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides no installed module
    try:
        result = importlib.import_module(module)
    except ModuleNotFoundError:
        raise
    except SyntaxError as error:  # no line of the file has run, so the traceback names none
        raise ValueError(f"{error.filename}: SyntaxError: {error}.") from error
    except USER_ERRORS as error:
        raise ValueError(f"{describe_error(error)}.") from error
    if path.suffix == ".py" and Path(result.__file__ or "").resolve() != path:
        raise ValueError(f"env:{name}: another module is named {module}. Rename the file.")
    return result

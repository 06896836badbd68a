"""Open environment instances of a task in this process, shared if no more can be opened."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
import numpy as np

from envs.faults import USER_ERRORS, describe_briefly


class NotReplayable(RuntimeError):
    """Raised if the same seed and actions lead to a different observation."""


class Instance:
    """An open environment. One episode uses it at a time. It is closed with its last view."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env, self.views = env, 0
        self.user: object = None  # the mark of the view whose episode is running
        self.lock = threading.RLock()


class View:
    """Access to an instance for one episode. Other views may use the instance in between.

    If another view has used the instance in between, `step` first replays the episode from its
    seed and its actions. `step` raises NotReplayable if the replay ends in a different observation.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance, self._mark = instance, object()
        instance.views += 1
        self._seed: int | None = None
        self._closed = False
        self._actions = list[np.ndarray]()
        self._last: Any = None  # observation

    @property
    def unwrapped(self) -> Any:
        return self.instance.env.unwrapped

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        with self.instance.lock:
            self.instance.user = self._mark
            result: tuple[Any, dict[str, Any]] = self.instance.env.reset(seed=seed)
            self._seed, self._actions, self._last = seed, [], copy_observation(result[0])
            return result

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        with self.instance.lock:
            if self.instance.user is not self._mark:
                self._replay()
            result = self.instance.env.step(action)
            self._actions.append(np.array(action))
            self._last = copy_observation(result[0])
            return result

    def _replay(self) -> None:
        self.instance.user = self._mark
        observation = self.instance.env.reset(seed=self._seed)[0]
        for action in self._actions:
            observation = self.instance.env.step(action)[0]
        if not observations_equal(observation, self._last):
            raise NotReplayable(
                "the only instance was used for another episode, and this episode cannot be "
                "replayed: the same seed and actions lead to a different observation"
            )

    def render(self) -> Any:
        return self.instance.env.render()

    def close(self) -> None:
        """Release the instance; the last view closes it."""
        if self._closed:
            return
        self._closed = True
        self.instance.views -= 1
        if not self.instance.views:
            self.instance.env.close()


class Instances:
    """All open instances of one task. name: the task's name in messages."""

    def __init__(self, make: Callable[[], gymnasium.Env], name: str) -> None:
        self.make, self.name = make, name
        self.limit: str | None = None  # why only one instance can be used; None: no limit is known
        self.compared = False  # True: two instances have been compared
        # True: two instances have been open at the same time. If `make` fails later, the cause is
        # not that only one instance can be open.
        self.had_several = False
        self._open = weakref.WeakSet[Instance]()

    @property
    def open(self) -> list[Instance]:
        """Instances that are not closed."""
        return [instance for instance in self._open if instance.views]

    def new(self) -> View | None:
        """Return a view of a new instance, or None if one is open and a second is not possible.

        If the result is None, `limit` holds the reason. An error of the constructor is raised
        unless exactly one instance is open and never more than one was open at the same time.
        """
        if self.limit is not None and self.open:
            return None
        try:
            env = self.make()
        except USER_ERRORS as error:
            if len(self.open) != 1 or self.had_several:
                raise
            self.limit_to_one(describe_briefly(error))
            return None
        instance = Instance(env)
        self._open.add(instance)
        view = View(instance)
        self.had_several |= len(self.open) > 1
        return view

    def limit_to_one(self, why: str) -> None:
        """Set the limit to one open instance."""
        self.limit = f"Only one instance of {self.name} can be open ({why})"

    def shared(self) -> View:
        """Return a view of an open instance."""
        return View(self.open[0])


_instances: dict[Hashable, Instances] = {}


def instances_of(key: Hashable, make: Callable[[], gymnasium.Env], name: str) -> Instances:
    """Return this process's Instances of the task identified by `key`."""
    return _instances.setdefault(key, Instances(make, name))


def copy_observation(observation: Any) -> Any:
    """Return a copy of the observation, because environments may change it in place."""
    if isinstance(observation, Mapping):
        return {name: np.array(part) for name, part in observation.items()}
    return np.array(observation)


def observations_equal(one: Any, other: Any) -> bool:
    """True if two observations are bitwise equal."""
    if isinstance(one, Mapping):
        return all(np.array_equal(one[name], other[name]) for name in other)
    return np.array_equal(one, other)

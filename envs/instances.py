"""Open environments of one task in this process, shared where no more can be opened."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
import numpy as np

from envs.faults import USER_ERRORS, describe_briefly


class Instance:
    """An open environment. One episode uses it at a time; its last view closes it."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env, self.views = env, 0
        self.user: object = None  # the mark of the view whose episode is under way
        self.lock = threading.RLock()


class View:
    """One place for an episode in an instance, which other views may use in between.

    If one did, `step` first repeats the episode: its seed, then its actions. Raises RuntimeError
    if that leads to another observation.
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
            answer: tuple[Any, dict[str, Any]] = self.instance.env.reset(seed=seed)
            self._seed, self._actions, self._last = seed, [], copy_observation(answer[0])
            return answer

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        with self.instance.lock:
            if self.instance.user is not self._mark:
                self._repeat()
            answer = self.instance.env.step(action)
            self._actions.append(np.array(action))
            self._last = copy_observation(answer[0])
            return answer

    def _repeat(self) -> None:
        self.instance.user = self._mark
        observation = self.instance.env.reset(seed=self._seed)[0]
        for action in self._actions:
            observation = self.instance.env.step(action)[0]
        if not observations_equal(observation, self._last):
            raise RuntimeError(
                "its only instance was used for another episode, and this one cannot be repeated: "
                "the same seed and actions lead to another observation"
            )

    def render(self) -> Any:
        return self.instance.env.render()

    def close(self) -> None:
        """Leave the instance; the last view closes it."""
        if self._closed:
            return
        self._closed = True
        self.instance.views -= 1
        if not self.instance.views:
            self.instance.env.close()


class Instances:
    """All open instances of one task. name: the task in messages."""

    def __init__(self, make: Callable[[], gymnasium.Env], name: str) -> None:
        self.make, self.name = make, name
        self.limit: str | None = None  # why no more instances may be used at once
        self.tried = False  # whether two instances were compared
        self.several = False  # whether two were open at once: a failure later has another cause
        self._open = weakref.WeakSet[Instance]()

    @property
    def open(self) -> list[Instance]:
        """Those that are not closed."""
        return [instance for instance in self._open if instance.views]

    def new(self) -> View | None:
        """Return a view of a new instance; None if one is open and no second can be: the limit.

        Raises whatever the constructor raises if none is open, or several have been.
        """
        if self.limit is not None and self.open:
            return None
        try:
            env = self.make()
        except USER_ERRORS as error:
            if len(self.open) != 1 or self.several:
                raise
            self.limit_to_one(describe_briefly(error))
            return None
        instance = Instance(env)
        self._open.add(instance)
        view = View(instance)
        self.several |= len(self.open) > 1
        return view

    def limit_to_one(self, why: str) -> None:
        """Open no second instance from now on."""
        self.limit = f"Only one instance of {self.name} can be open ({why})"

    def shared(self) -> View:
        """Return a view of an instance that is open."""
        return View(self.open[0])


_known: dict[Hashable, Instances] = {}


def instances_of(key: Hashable, make: Callable[[], gymnasium.Env], name: str) -> Instances:
    """Return the instances of the task that `key` identifies in this process."""
    return _known.setdefault(key, Instances(make, name))


def copy_observation(observation: Any) -> Any:
    """Return the observation, which environments may change in place, as new arrays."""
    if isinstance(observation, Mapping):
        return {name: np.array(part) for name, part in observation.items()}
    return np.array(observation)


def observations_equal(one: Any, other: Any) -> bool:
    """True if two observations are equal to the bit."""
    if isinstance(one, Mapping):
        return all(np.array_equal(one[name], other[name]) for name in other)
    return np.array_equal(one, other)

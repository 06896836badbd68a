"""Vectorized environments in NumPy, for evaluation, data generation and online training.

An observation is a vector, or a mapping from channel names to vectors and images. With channels,
`observation_shape` is a mapping too. Images are [H, W, C] uint8.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """Result of one action in each of B environments. Never both terminated and truncated."""

    observations: Any  # [B, *obs] float32: the true next observations, also at an episode's end
    rewards: np.ndarray  # [B] float64
    terminated: np.ndarray  # [B] bool: a true terminal state
    truncated: np.ndarray  # [B] bool: the time limit
    infos: dict[str, np.ndarray]  # each [B]


class VectorEnv(ABC):
    """`num_envs` environments of one kind, without automatic resets.

    An environment's outputs depend on its seed and its actions only, not on the other environments
    and not on the number of threads.
    """

    observation_shape: Any  # a tuple, or a mapping from channel names to tuples
    action_dim: int
    max_episode_steps: int  # time limit of an episode, in calls of `step`
    # environment steps in a call of `step`, unless the episode ends within it
    steps_per_decision: int = 1
    # names, units and limits, if known; bundles trained in this environment store them
    observation_names: tuple[str, ...] = ()  # one per number
    observation_units: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    action_low: np.ndarray | None = None  # [A]: value of action -1 in the environment's units
    action_high: np.ndarray | None = None  # [A]: value of action 1 in the environment's units
    rate_hz: float | None = None  # actions per second of simulated time
    limit: str | None = None  # why fewer instances are open than requested; None: all are open
    # time, in steps, from an observation until the first action computed from it is reached.
    # Robots use it to time action chunks. None: unknown.
    action_offset: float | None = None

    def __init__(self, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs} is too small. At least 1 environment is needed.")
        self.num_envs = num_envs
        self._all = np.arange(num_envs)
        self._num_steps = np.zeros(num_envs, np.int64)  # since each reset
        self._running = np.zeros(num_envs, bool)

    def reset(self, seeds: Sequence[int], indices: np.ndarray | None = None) -> Any:
        """Start an episode in each environment of `indices` (all by default).

        seeds: one per environment. Returns the first observations [B, *obs] float32.
        """
        indices = self._all if indices is None else np.asarray(indices)
        if len(seeds) != len(indices):
            raise ValueError(f"reset: {len(seeds)} seeds for {len(indices)} environments.")
        self._num_steps[indices] = 0
        self._running[indices] = True
        return as_float32(self._reset([int(seed) for seed in seeds], indices))

    def step(self, actions: np.ndarray, indices: np.ndarray | None = None) -> Step:
        """Take one action in each environment of `indices` (all by default).

        actions: [B, act] in [-1, 1]; values outside are clipped.
        Raises ValueError if an action is not finite, or an environment has no running episode.
        """
        indices = self._all if indices is None else np.asarray(indices)
        actions = np.asarray(actions)
        if actions.shape != (len(indices), self.action_dim):
            expected = (len(indices), self.action_dim)
            raise ValueError(f"step: actions have shape {actions.shape}, expected {expected}.")
        if not np.isfinite(actions).all():
            bad = indices[~np.isfinite(actions).all(1)]
            raise ValueError(f"step: the actions of environments {bad.tolist()} are not finite.")
        if not self._running[indices].all():
            over = indices[~self._running[indices]]
            raise ValueError(
                f"step: environments {over.tolist()} have no running episode. Reset them first."
            )
        self._num_steps[indices] += 1
        observations, rewards, terminated, truncated, infos = self._step(
            actions.clip(-1, 1), indices
        )
        truncated = (truncated | (self._num_steps[indices] >= self.max_episode_steps)) & ~terminated
        self._running[indices] = ~(terminated | truncated)
        return Step(as_float32(observations), rewards, terminated, truncated, infos)

    def every_start(self, first: int) -> list[int] | None:
        """Return seeds, from `first` on, that give every initial state once.

        None if the initial states are not a small finite set.
        """
        return None

    def render(self, index: int = 0) -> np.ndarray:
        """Return an image of one environment, [height, width, 3] uint8."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered.")

    def close(self) -> None:  # noqa: B027 (most environments hold no resources)
        """Release threads and windows."""

    @abstractmethod
    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        """Start the episodes and return the first observations [B, *obs]."""

    @abstractmethod
    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        """Take actions that `step` has checked. `step` also applies the time limit."""


def as_float32(observations: Any) -> Any:
    """Return vectors as float32 and image channels unchanged."""
    if not isinstance(observations, Mapping):
        return observations.astype(np.float32)
    return {k: v if v.ndim == 4 else v.astype(np.float32) for k, v in observations.items()}


class Threads:
    """Thread pool that splits rows evenly; the caller's thread takes one share."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count)  # threads start at the first use

    def __call__(self, work: Callable[..., Any], *arrays: np.ndarray) -> list[Any]:
        """Call `work` on a share of each array's rows per thread; return the results in order."""
        shares = [np.array_split(array, self.count) for array in arrays]
        first_share, *others = zip(*shares, strict=True)
        futures = [self._pool.submit(work, *share) for share in others]
        return [work(*first_share), *(future.result() for future in futures)]

    def close(self) -> None:
        self._pool.shutdown()

"""Many episodes side by side, numpy only: what evaluation and data generation step.

What is observed is a vector, or by name a vector or a picture for each of several channels. Then
`observation_shape` and every observation are mappings; pictures are [H, W, C] of uint8.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """What came of one action in each of B environments. Never both terminated and truncated."""

    observations: Any  # [B, *obs] float32: true next ones, also where the episode ends
    rewards: np.ndarray  # [B] float64
    terminated: np.ndarray  # [B] bool: a true terminal state
    truncated: np.ndarray  # [B] bool: the time limit
    infos: dict[str, np.ndarray]  # each [B]


class VectorEnv(ABC):
    """`num_envs` environments of one kind. Nothing is reset by itself.

    What an environment returns depends on its seed and its actions only: never on which others
    run beside it, nor on the number of threads.
    """

    observation_shape: Any  # a tuple, or one for each channel by name
    action_dim: int
    max_episode_steps: int
    # what the numbers mean, as far as it is known; bundles made here say it too
    observation_names: tuple[str, ...] = ()  # of each number
    observation_units: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    action_low: np.ndarray | None = None  # [A]: what -1 stands for in the environment's own units
    action_high: np.ndarray | None = None  # [A]: what 1 does
    rate_hz: float | None = None  # actions a second, of time in the environment
    limit: str | None = None  # why one instance is open where more were wanted; None: it is not so
    # steps from an observation to when the action taken on it is reached: what a robot must know of
    # a chunk's first; None: not said
    action_offset: float | None = None

    def __init__(self, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; at least 1 environment is needed.")
        self.num_envs = num_envs
        self._all = np.arange(num_envs)
        self._num_steps = np.zeros(num_envs, np.int64)  # since the reset
        self._running = np.zeros(num_envs, bool)

    def reset(self, seeds: Sequence[int], indices: np.ndarray | None = None) -> Any:
        """Starts an episode in each environment of `indices` (all by default).

        seeds: one for each. Returns the first observations [B, *obs] float32.
        """
        indices = self._all if indices is None else np.asarray(indices)
        if len(seeds) != len(indices):
            raise ValueError(f"reset: {len(seeds)} seeds for {len(indices)} environments.")
        self._num_steps[indices] = 0
        self._running[indices] = True
        return as_float32(self._reset([int(seed) for seed in seeds], indices))

    def step(self, actions: np.ndarray, indices: np.ndarray | None = None) -> Step:
        """One action in each environment of `indices` (all by default).

        actions: [B, act] in [-1, 1]; what lies outside is clipped.
        Raises ValueError if an action is not finite, or an episode is over or not begun.
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
            raise ValueError(f"step: environments {over.tolist()} have no episode: reset them.")
        self._num_steps[indices] += 1
        observations, rewards, terminated, truncated, infos = self._step(
            actions.clip(-1, 1), indices
        )
        truncated = (truncated | (self._num_steps[indices] >= self.max_episode_steps)) & ~terminated
        self._running[indices] = ~(terminated | truncated)
        return Step(as_float32(observations), rewards, terminated, truncated, infos)

    def every_start(self, first: int) -> list[int] | None:
        """Seeds from `first` on that meet every start once; None where starts are too many."""
        return None

    def render(self, index: int = 0) -> np.ndarray:
        """A picture of one environment, [height, width, 3] uint8."""
        raise NotImplementedError(f"{type(self).__name__} has no picture.")

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Frees threads and windows."""

    @abstractmethod
    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        """The first observations [B, *obs]."""

    @abstractmethod
    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        """As `step`, but the time limit is the caller's."""


def as_float32(observations: Any) -> Any:
    """Vectors as float32, of channels pictures as they are."""
    if not isinstance(observations, Mapping):
        return observations.astype(np.float32)
    return {k: v if v.ndim == 4 else v.astype(np.float32) for k, v in observations.items()}


class Threads:
    """Shares rows out evenly over some threads, of which the caller's is one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count)  # starts no thread before it is used

    def __call__(self, work: Callable[..., Any], *arrays: np.ndarray) -> list[Any]:
        """What `work(*rows of each array)` gives, share after share."""
        shares = [np.array_split(array, self.count) for array in arrays]
        mine, *others = zip(*shares, strict=True)
        futures = [self._pool.submit(work, *share) for share in others]
        return [work(*mine), *(future.result() for future in futures)]

    def close(self) -> None:
        self._pool.shutdown()

"""Evaluations: whole episodes of every seed's policy, beside the training where a core is free."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch

from envs import VectorEnv
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.rollout import Episodes, rollout
from policies import channels
from policies.channels import Observations

Moment = dict[str, Any]  # the counts of updates and environment steps, and the clock


class Evaluation(NamedTuple):
    """What one came to."""

    moment: Moment  # at which the policies were taken
    seeds: list[Episodes]  # of each stacked seed
    broken: set[int]  # places whose policy gave no number


class Evaluator:
    """Runs at most one evaluation at a time; `begin` it, `finish` it later."""

    def __init__(
        self,
        engine: Engine,
        env: VectorEnv,
        normalizer: Callable[[Observations], Observations],
        starts: np.ndarray,
        *,
        beside: bool,
    ) -> None:
        """env: an environment for each seed and start, or fewer. starts: the episodes' seeds.

        beside: in a thread of its own.
        """
        self.env, self.normalizer, self.starts = env, normalizer, starts
        self.episodes, self.groups = len(starts), len(engine.seeds)
        self.width = min(self.episodes, max(1, env.num_envs // self.groups))  # at once, of a seed
        # a small network's steps on a GPU cost more in waiting than on the processor
        self._policies = engine.stacked_policy(self.width, device=torch.device("cpu"))
        self.beside = beside
        self._thread = ThreadPoolExecutor(1)  # starts when it is needed
        self._running: tuple[Moment, Callable[[], tuple[Episodes, set[int]]]] | None = None
        self._abandoned = Event()

    @property
    def moment(self) -> Moment | None:
        """Of the one under way, if any."""
        return self._running[0] if self._running else None

    def begin(self, moment: Moment) -> None:
        """Plays with a copy of the policies as they are now; not beside, when it is finished."""
        self._policies.snapshot()
        if self.beside:
            self._running = moment, self._thread.submit(self._play).result
        else:
            self._running = moment, self._play

    def finish(self) -> Evaluation | None:
        """Waits for the one under way, if any. What it raised is raised, once."""
        if self._running is None:
            return None
        moment, result = self._running
        self._running, count = None, self.episodes
        everything, broken = result()
        seeds = [everything.part(s * count, (s + 1) * count) for s in range(self.groups)]
        for s in broken:  # a diverged policy has no score, and must not stop its neighbors
            seeds[s].returns[:] = np.nan
        return Evaluation(moment, seeds, broken)

    def abandon(self) -> None:
        """Stops what is under way, within a step; nothing more is begun.

        Waits for it: its environments may be closed afterward.
        """
        self._abandoned.set()
        self._thread.shutdown()

    def _play(self) -> tuple[Episodes, set[int]]:
        """Every seed's episodes, side by side or, with fewer environments, group after group.

        Also which seeds' policies are broken.
        """
        torch.set_flush_denormal(True)  # a thread's own setting
        played, broken = dict[int, list[Episodes]](), set[int]()
        at_once = min(self.groups, self.env.num_envs)
        for first in range(0, self.groups, at_once):
            group = range(first, min(first + at_once, self.groups))
            for start in range(0, self.episodes, self.width):
                starts = self.starts[start : start + self.width]
                found = self._play_some(group, starts, broken)
                for k, s in enumerate(group):
                    part = found.part(k * len(starts), (k + 1) * len(starts))
                    played.setdefault(s, []).append(part)
        parts = [part for s in range(self.groups) for part in played[s]]
        return (parts[0] if len(parts) == 1 else Episodes.joined(parts)), broken

    def _play_some(self, group: range, starts: np.ndarray, broken: set[int]) -> Episodes:
        """Episodes of the seeds in `group` from each of `starts`; the other places idle."""
        shape, count = (self.groups, self.width), len(starts)
        places = np.s_[group.start : group.stop, :count]

        def of_seeds(x: np.ndarray) -> torch.Tensor:
            """[G * B, …] of `group` -> [S, width, …]."""
            if (len(group), count) == shape:
                return torch.from_numpy(x).reshape(*shape, *x.shape[1:])
            whole = np.zeros((*shape, *x.shape[1:]), x.dtype)
            whole[places] = x.reshape(len(group), count, *x.shape[1:])
            return torch.from_numpy(whole)

        def act(observations: Observations) -> np.ndarray:
            if self._abandoned.is_set():
                raise InterruptedError("the training has stopped")
            actions = self._policies(channels.map_channels(of_seeds, observations))[places]
            wrong = torch.nonzero(~actions.isfinite().all(-1).all(-1)).flatten()
            broken.update((wrong + group.start).tolist())
            return actions.nan_to_num(0, 0, 0).reshape(len(group) * count, -1).numpy()

        def observe(rewards: np.ndarray) -> None:
            self._policies.observe(of_seeds(rewards.astype(np.float32)))

        seeds = np.tile(starts, len(group))
        self._policies.reset(of_seeds(seeds).numpy().ravel())
        return rollout(self.env, act, self.normalizer, seeds, observe)

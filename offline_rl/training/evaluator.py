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
        normaliser: Callable[[Observations], Observations],
        starts: np.ndarray,
        *,
        beside: bool,
    ) -> None:
        """env: an environment for each seed and start. starts: the episodes' seeds.

        beside: in a thread of its own.
        """
        self.env, self.normaliser, self.starts = env, normaliser, starts
        self.episodes = episodes = len(starts)
        self.groups = env.num_envs // episodes
        # a small network's steps on a GPU cost more in waiting than on the processor
        self._policies = engine.stacked_policy(episodes, device=torch.device("cpu"))
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
        for s in broken:  # a diverged policy has no score, and must not stop its neighbours
            seeds[s].returns[:] = np.nan
        return Evaluation(moment, seeds, broken)

    def abandon(self) -> None:
        """Stops what is under way, within a step; nothing more is begun.

        Waits for it: its environments may be closed afterwards.
        """
        self._abandoned.set()
        self._thread.shutdown()

    def _play(self) -> tuple[Episodes, set[int]]:
        """All seeds' episodes, side by side; also which seeds' policies are broken."""
        torch.set_flush_denormal(True)  # a thread's own setting
        env, count, groups, broken = self.env, self.episodes, self.groups, set[int]()

        def of_seeds(x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(x).reshape(groups, count, *x.shape[1:])

        def act(observations: Observations) -> np.ndarray:
            if self._abandoned.is_set():
                raise InterruptedError("the training has stopped")
            actions = self._policies(channels.each(of_seeds, observations))
            broken.update(torch.nonzero(~actions.isfinite().all(-1).all(-1)).flatten().tolist())
            return actions.nan_to_num(0, 0, 0).reshape(groups * count, -1).numpy()

        def observe(rewards: np.ndarray) -> None:
            told = torch.from_numpy(rewards.astype(np.float32)).reshape(groups, count)
            self._policies.observe(told)

        seeds = np.tile(self.starts, groups)
        self._policies.reset(seeds)
        return rollout(env, act, self.normaliser, seeds, observe), broken

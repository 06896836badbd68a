"""Evaluation episodes of every seed's policy, in the background if a core is free."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import NamedTuple

import numpy as np
import torch

from envs import VectorEnv
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.rollout import Episodes, rollout
from offline_rl.utils import hardware
from policies import channels
from policies.channels import Observations
from policies.stl.signals import SignalReader


class Evaluation(NamedTuple):
    """Result of one evaluation."""

    seeds: list[Episodes]  # episodes of each stacked seed
    broken: set[int]  # indices of seeds whose policy returned NaN or infinity


class Evaluator:
    """Evaluation of all seeds, at most one at a time: `begin` starts it, `finish` waits for it."""

    def __init__(
        self,
        engine: Engine,
        env: VectorEnv,
        normalizer: Callable[[Observations], Observations],
        starts: np.ndarray,
        *,
        background: bool,
        reader: SignalReader | None = None,
    ) -> None:
        """Create the evaluator.

        env: one environment for each seed and episode, or fewer. starts: random seeds of the
        episodes. background: run in a thread if a core is free and `env` has no limit on instances.
        reader: signals of a formula, whose robustness the evaluation contains.
        """
        self.env, self.normalizer, self.starts, self.reader = env, normalizer, starts, reader
        self.episodes, self.groups = len(starts), len(engine.seeds)
        # episodes of a seed that run in parallel
        self.width = min(self.episodes, max(1, env.num_envs // self.groups))
        # on the CPU: for small networks, the latency of a GPU exceeds the compute time of the CPU
        self._policies = engine.stacked_policy(self.width, device=torch.device("cpu"))
        busy = torch.get_num_threads() if engine.device.type == "cpu" else 1  # cores of the updates
        self.background = background and env.limit is None and hardware.num_cores() > busy
        self._thread = ThreadPoolExecutor(1)  # started when first used
        self._running: Callable[[], tuple[Episodes, set[int]]] | None = None
        self._abandoned = Event()

    def begin(self) -> None:
        """Start an evaluation of a copy of the policies.

        Without a background thread, `finish` runs the evaluation.
        """
        self._policies.snapshot()
        self._running = self._thread.submit(self._play).result if self.background else self._play

    def finish(self) -> Evaluation:
        """Wait for the evaluation that `begin` started and return it, or raise its error."""
        assert self._running is not None
        result, self._running = self._running, None
        (episodes, broken), count = result(), self.episodes
        seeds = [episodes.part(s * count, (s + 1) * count) for s in range(self.groups)]
        for s in broken:  # a diverged policy has no score and must not stop the other seeds
            seeds[s].returns[:] = np.nan
        return Evaluation(seeds, broken)

    def weights(self, s: int) -> dict[str, np.ndarray]:
        """Return the parameters of the s-th seed's policy in the last evaluation."""
        return self._policies.weights(s)

    def abandon(self) -> None:
        """Stop the running evaluation within one step and start no more.

        Afterwards the environments can be closed.
        """
        self._abandoned.set()
        self._thread.shutdown()

    def _play(self) -> tuple[Episodes, set[int]]:
        """Return the episodes of all seeds, and the seeds whose policies are broken.

        All seeds run in parallel. With fewer environments than seeds, groups of seeds run one after
        another.
        """
        torch.set_flush_denormal(True)  # the setting is per thread
        episodes, broken = dict[int, list[Episodes]](), set[int]()
        group_size = min(self.groups, self.env.num_envs)
        for first in range(0, self.groups, group_size):
            group = range(first, min(first + group_size, self.groups))
            for start in range(0, self.episodes, self.width):
                starts = self.starts[start : start + self.width]
                group_episodes = self._play_group(group, starts, broken)
                for k, s in enumerate(group):
                    part = group_episodes.part(k * len(starts), (k + 1) * len(starts))
                    episodes.setdefault(s, []).append(part)
        parts = [part for s in range(self.groups) for part in episodes[s]]
        return (parts[0] if len(parts) == 1 else Episodes.joined(parts)), broken

    def _play_group(self, group: range, starts: np.ndarray, broken: set[int]) -> Episodes:
        """Return the episodes of the seeds in `group`, one for each episode seed in `starts`.

        Indices of seeds whose policy returns NaN or infinity are added to `broken`.
        """
        shape, count = (self.groups, self.width), len(starts)
        in_group = np.s_[group.start : group.stop, :count]

        def to_all_seeds(x: np.ndarray) -> torch.Tensor:
            """Pad an array of the group, [G * B, …], to all stacked seeds, [S, width, …]."""
            if (len(group), count) == shape:
                return torch.from_numpy(x).reshape(*shape, *x.shape[1:])
            padded = np.zeros((*shape, *x.shape[1:]), x.dtype)
            padded[in_group] = x.reshape(len(group), count, *x.shape[1:])
            return torch.from_numpy(padded)

        def act(observations: Observations) -> np.ndarray:
            if self._abandoned.is_set():
                raise InterruptedError("the training has stopped")
            actions = self._policies(channels.map_channels(to_all_seeds, observations))[in_group]
            non_finite = torch.nonzero(~actions.isfinite().all(-1).all(-1)).flatten()
            broken.update((non_finite + group.start).tolist())
            return actions.nan_to_num(0, 0, 0).reshape(len(group) * count, -1).numpy()

        def observe(rewards: np.ndarray, costs: np.ndarray | None) -> None:
            self._policies.observe(
                to_all_seeds(rewards.astype(np.float32)),
                None if costs is None else to_all_seeds(costs.astype(np.float32)),
            )

        seeds = np.tile(starts, len(group))
        self._policies.reset(to_all_seeds(seeds).numpy().ravel())
        return rollout(self.env, act, self.normalizer, seeds, observe, self.reader)

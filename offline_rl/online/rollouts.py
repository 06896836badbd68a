"""Rollouts of the present policies: so many decisions of so many environments of each seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from envs import VectorEnv
from envs.adapters import SUCCESS
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError
from policies import noise


class RolloutCollector:
    """Takes each decision of all environments together, and its actions one after another.

    Where an episode ends within a decision, the rest of its actions are not taken, and the next
    decision is an episode's first. What an environment does depends on its episode's seed and the
    policy alone.
    """

    def __init__(
        self,
        engine: Engine,
        make: Callable[[int], VectorEnv],
        rollouts: Rollouts,
        transform: Transform,
    ) -> None:
        """make(n): n environments. engine: of an algorithm with `decide` and `noise_shape`."""
        self.engine, self.buffer, self.transform = engine, rollouts, transform
        algorithm: Any = engine.at(ONLINE)[0]
        cfg, (_, self.each) = algorithm.cfg, rollouts.size
        self.executed, self.shape = cfg.executed, (len(engine.seeds), self.each)
        self.noise_shape, count = algorithm.noise_shape, len(engine.seeds) * self.each
        self.env = make(count)
        if self.executed > self.env.max_episode_steps:
            raise UserError(
                f"executed={self.executed}: an episode here has {self.env.max_episode_steps} "
                "steps, fewer than a decision; clone with fewer actions executed"
            )
        self.steps = 0  # of each seed's environments, had no episode ended within a decision
        self.episodes = np.zeros(len(engine.seeds), int)  # begun, of each seed
        self.broken = set[int]()  # streams whose policy gave no number; they get 0 in its place
        self.finished: list[list[float]] = [[] for _ in engine.seeds]  # returns
        self.success: list[list[bool]] = [[] for _ in engine.seeds]  # where the environment tells
        self._returns = np.zeros(count)
        self._seen = np.zeros((count, cfg.history, *self.env.observation_shape), np.float32)
        self._number = np.zeros(count, np.int64)  # of the running episode
        self._seeds = np.zeros(count, np.int64)  # its seed
        self._decisions = np.zeros(count, np.int64)  # in it, so far
        self._lengths = np.zeros(count, np.int64)
        longest = self.env.max_episode_steps
        self._played = np.zeros((count, longest, self.env.action_dim), np.float32)
        for name in ("_number", "_decisions", "_lengths", "_played"):
            own = torch.from_numpy(getattr(self, name))  # the same memory
            rollouts.beside[name.lstrip("_")] = own.unflatten(0, self.shape)
        rollouts.beside["episodes"] = torch.from_numpy(self.episodes)
        self._begin(np.arange(count))

    def _begin(self, rows: np.ndarray) -> None:
        """The next episodes, in the order of the environments."""
        for row in rows:
            s = row // self.each
            self._number[row] = self.episodes[s]
            self.episodes[s] += 1
        self._reset(rows)
        self._decisions[rows] = self._lengths[rows] = 0
        self._returns[rows] = 0

    def _reset(self, rows: np.ndarray) -> None:
        self._seeds[rows] = [
            seeds.training(self.engine.seeds[row // self.each], int(self._number[row]))
            for row in rows
        ]
        first = self.env.reset(self._seeds[rows].tolist(), rows)
        self._seen[rows] = self.transform.normaliser(first)[:, None]

    def _see(self, rows: np.ndarray, observations: np.ndarray) -> None:
        new = self.transform.normaliser(observations)[:, None]
        self._seen[rows] = np.concatenate([self._seen[rows, 1:], new], 1)

    def step(self) -> None:
        """One decision of every environment."""
        seen = self._seen.copy()
        drawn = noise.normal(self._seeds, self._decisions, self.noise_shape)
        given = {"observations": seen, "noise": drawn}
        inputs = {k: torch.from_numpy(v).unflatten(0, self.shape) for k, v in given.items()}
        inputs = {k: v.to(self.engine.device) for k, v in inputs.items()}
        told = self.engine.apply("decide", inputs, ONLINE)
        actions = told.pop("actions").flatten(0, 1).cpu().numpy()  # [S E, executed, A]
        if not np.isfinite(actions).all():  # a diverged seed must not stop its neighbours
            wrong = np.flatnonzero(~np.isfinite(actions).all((1, 2)))
            self.broken.update((wrong // self.each).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        row = {"rewards": np.zeros(actions.shape[:2], np.float32)}
        row |= {"executed": np.zeros(actions.shape[:2], np.float32)}
        row |= {name: np.zeros(len(actions), np.float32) for name in ("terminated", "truncated")}
        running = np.arange(len(actions))
        for j in range(self.executed):
            if not len(running):
                break
            step = self.env.step(actions[running, j], running)
            self._played[running, self._lengths[running]] = actions[running, j]
            self._lengths[running] += 1
            row["rewards"][running, j] = self.transform.rewards(step.rewards)
            row["executed"][running, j] = 1
            self._returns[running] += step.rewards
            self._see(running, step.observations)
            for name in ("terminated", "truncated"):
                row[name][running] = getattr(step, name)
            ended = step.terminated | step.truncated
            told_of = [v for k, v in step.infos.items() if k in SUCCESS]
            for k in np.flatnonzero(ended):
                s = running[k] // self.each
                self.finished[s].append(float(self._returns[running[k]]))
                self.success[s] += [any(bool(v[k]) for v in told_of)] if told_of else []
            running = running[~ended]
        row |= {"observations": seen, "next_observations": self._seen.copy()}
        rows = {k: v.reshape(*self.shape, *v.shape[1:]) for k, v in row.items()}
        self.buffer.append(rows | {k: v.cpu().numpy() for k, v in told.items()})
        self._decisions += 1
        self.steps += self.each * self.executed
        over = np.flatnonzero((row["terminated"] + row["truncated"]) > 0)
        if len(over):
            self._begin(over)
        if self.buffer.full:
            made = self.engine.apply("digest", self.buffer.tensors(), ONLINE)
            self.buffer.put(made, self.engine.updates)

    def close(self) -> None:
        """The environments."""
        self.env.close()

    def state(self) -> dict[str, Any]:
        """What `restore` needs beside the rollouts."""
        return {"steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken: replays running episodes' actions."""
        self.steps = state["steps"]
        rows = np.arange(len(self._number))
        self._reset(rows)
        self._returns[:] = 0
        for j in range(int(self._lengths.max())):
            running = rows[self._lengths > j]
            step = self.env.step(self._played[running, j], running)
            self._returns[running] += step.rewards
            self._see(running, step.observations)

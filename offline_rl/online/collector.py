"""Learning from an environment: one stream of experience for each stacked seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from envs import VectorEnv
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils import seeds


class Collector:
    """Steps one environment per seed with the exploring policy and appends to the buffer."""

    def __init__(
        self,
        engine: Engine,
        env: VectorEnv,
        buffer: ReplayBuffer,
        transform: Transform,
        random_steps: int,
    ) -> None:
        """random_steps: environment steps with uniform actions at the start."""
        self.engine, self.env, self.buffer, self.transform = engine, env, buffer, transform
        self.random_steps, self.steps = random_steps, 0
        self._act = engine.stacked_policy(1, explore=True)
        self.episodes = np.zeros(env.num_envs, int)
        self.began = np.zeros(env.num_envs, int)  # the step at which the running episode began
        self._returns = np.zeros(env.num_envs)
        self.broken = set[int]()  # streams whose policy gave no number; they get 0 in its place
        self.finished: list[list[float]] = [[] for _ in range(env.num_envs)]  # returns, per seed
        self._observations = np.zeros((env.num_envs, *env.observation_shape), np.float32)
        self._reset(np.arange(env.num_envs))

    def _seed(self, stream: int) -> int:
        return seeds.training(self.engine.seeds[stream], int(self.episodes[stream]))

    def _reset(self, streams: np.ndarray) -> None:
        begin = [self._seed(s) for s in streams]
        self._observations[streams] = self.env.reset(begin, streams)
        self._returns[streams], self.began[streams] = 0, self.steps

    def _actions(self, observations: np.ndarray) -> np.ndarray:
        """[S, *obs] normalised -> [S, A]."""
        if self.steps < self.random_steps:
            draws = [
                np.random.default_rng((seed, self.steps)).uniform(-1, 1, self.env.action_dim)
                for seed in self.engine.seeds
            ]
            return np.asarray(draws, np.float32)
        device = self.engine.device
        batch = torch.from_numpy(observations[:, None]).to(device)
        actions = self._act(batch, self.steps)[:, 0].cpu().numpy()
        if not np.isfinite(actions).all():  # a diverged seed must not stop its neighbours
            self.broken.update(np.flatnonzero(~np.isfinite(actions).all(1)).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        return actions

    def step(self) -> None:
        """One environment step of every stream."""
        observations = self.transform.normaliser(self._observations)
        actions = self._actions(observations)
        step = self.env.step(actions)
        rewards = self.transform.rewards(step.rewards)
        after = self.transform.normaliser(step.observations)
        self.buffer.append(observations, actions, rewards, step.terminated, step.truncated, after)
        self.steps += 1
        self._returns += step.rewards
        self._observations = step.observations.copy()
        over = np.flatnonzero(step.terminated | step.truncated)
        for s in over:
            self.finished[s].append(float(self._returns[s]))
        self.episodes[over] += 1
        if len(over):
            self._reset(over)

    def state(self) -> dict[str, Any]:
        """What `restore` needs beside the buffer."""
        return {
            "steps": self.steps,
            "episodes": self.episodes.tolist(),
            "began": self.began.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken: replays running episodes' actions."""
        self.steps = state["steps"]
        self.episodes[:], began = state["episodes"], state["began"]
        actions = self.buffer.data["actions"].cpu().numpy()
        for s in range(self.env.num_envs):
            only = np.asarray([s])
            self._reset(only)
            self.began[s] = began[s]
            for t in range(began[s], self.steps):
                step = self.env.step(actions[only, t % self.buffer.capacity], only)
                self._returns[s] += step.rewards[0]
                self._observations[s] = step.observations[0]

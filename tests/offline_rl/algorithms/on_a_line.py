"""A short one-dimensional task, and quickly trained policies for it."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl import Dataset, train
from offline_rl.data.writers.d4rl import write

CLONE = {"algorithm.network": "mlp", "algorithm.widths": [16], "algorithm.horizon": 4}
CLONE |= {"algorithm.n_action_steps": 2, "algorithm.num_inference_steps": 5, "seeds": 2}


class Line(gymnasium.Env):
    """A point on a line, up to 7 steps, fewer if it leaves [-1, 1]; the reward is its position."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-0.9, 0.9)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.x, self.t = self.x + 0.2 * float(action[0]), self.t + 1
        gone = abs(self.x) > 1
        return np.array([self.x, self.t], np.float32), self.x, gone, False, {}


def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task for the time of a test, and yield its name."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("line", Line, max_episode_steps=7)
    return "line"


def data_of_a_line() -> Dataset:
    """Return episodes of random actions."""
    env, draw = Line(), np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    for episode in range(12):
        seen, _ = env.reset(seed=episode)
        for t in range(7):
            action = draw.uniform(-1, 1, 1).astype(np.float32)
            after, reward, gone, _, _ = env.step(action)
            rows.append((seen, action, reward, gone, t == 6 and not gone, after))
            seen = after
            if gone:
                break
    return Dataset.from_arrays(*(np.array(column) for column in zip(*rows, strict=True)))


def run_of(algorithm: str, task: str, folder: Path, **more: Any) -> Path:
    """Train a policy by imitation for a few updates, and return its run."""
    data = write(data_of_a_line(), folder / "line.hdf5")
    keys = {"algorithm": algorithm, "task": task, "dataset": str(data), "out": str(folder)}
    keys |= {"num_updates": 4, "compile": "never", "eval_episodes": 1, "tracker": "none"}
    return train(**keys, show=False, **more).path

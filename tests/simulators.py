"""Small environments: a random walk, and walks of which one instance can be used at a time."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Walk(gymnasium.Env):
    """A seeded random walk moved by the action; the reward is the position."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(0, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.float32([self.place]), {}

    def step(self, action: np.ndarray) -> tuple:
        self.place += float(action[0]) + 0.1 * self.np_random.normal()
        return np.float32([self.place]), self.place, False, False, {}


class Single(Walk):
    """Environment that allows one open instance per process."""

    open: ClassVar[int] = 0

    def __init__(self) -> None:
        if Single.open:
            raise RuntimeError("the simulator runs already")
        Single.open += 1

    def close(self) -> None:
        Single.open -= 1


class Server(Walk):
    """Client of a physics server that serves only the newest client."""

    newest: ClassVar[object] = None
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        Server.newest = self
        Server.made += 1

    def step(self, action: np.ndarray) -> tuple:
        if Server.newest is not self:
            raise RuntimeError("Not connected to physics server")
        return super().step(action)

    def close(self) -> None:
        if Server.newest is not self:
            raise RuntimeError("Not connected to physics server")
        Server.newest = None

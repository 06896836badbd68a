"""NeoRL-2's RandomFrictionHopper: `polixir/NeoRL2:neorl2/envs/randomfrictionhopper.py`.

Paper: arXiv:2503.19267. A seed gives the same episode as upstream if both Python's `random` and
`reset` are seeded with it. NeoRL-2's data were recorded in this way
(`polixir/neorl2_dataset:scripts/get_data.py`).
"""

import copy
import functools
import random
from typing import Any

import numpy as np

from envs.outcomes import Outcomes
from envs.physics import load_model
from envs.suites.locomotion import Hopper, control_penalty, hopper_stands


@functools.cache
def hopper_model(friction: float) -> Any:
    """Return Gymnasium's hopper model with this sliding friction of the foot (cached)."""
    model = copy.copy(load_model(Hopper.xml))
    model.geom("foot_geom").friction[0] = friction
    return model


class RandomFrictionHopper(Hopper):
    """Gymnasium's hopper without the alive bonus and with a random friction of the foot.

    Observation [13]: positions (6, with x), velocities (6, clipped to 10), friction. As upstream,
    the model uses the friction rounded to two decimals; the observation has the exact value.
    """

    hidden_positions = 0
    alive_bonus = 0.0
    FRICTION = (1.5, 2.5)  # bounds of the uniform distribution

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (self.model.nq + self.model.nv + 1,)
        self._friction = np.zeros((num_envs, 1))

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """Return [B] bool: the observed state is healthy.

        Observed velocities are clipped, so they never exceed the limit of a healthy state.
        """
        return super().healthy(qpos, qvel.clip(-self.max_speed, self.max_speed))

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            friction = random.Random(seed).uniform(*self.FRICTION)
            self._friction[index] = friction
            self._models[index] = hopper_model(round(friction, 2))
        return super()._reset(seeds, indices)

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([super()._observations(indices), self._friction[indices]], 1)


def falls(s: Any, a: Any, s2: Any) -> Any:
    """True where the hopper falls."""
    return ~hopper_stands(s2[..., 1:])


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the speed along x, m/s, minus the control cost."""
    return (s2[..., 0] - s[..., 0]) / DT_S - control_penalty(a, Hopper.control_cost)


DT_S = 0.008  # s per step; four simulation steps
ENVS = {"neorl2/RandomFrictionHopper": RandomFrictionHopper}
OUTCOMES = {"neorl2/RandomFrictionHopper": Outcomes({"task": falls}, reward)}

"""NeoRL-2's DMSD: `polixir/NeoRL2:neorl2/envs/dmsd.py`, arXiv:2503.19267.

A seed gives the same episode as upstream's `reset(seed)`.
"""

from typing import Any

import numpy as np

from envs.outcomes import Outcomes, library, never
from envs.vector import Step, VectorEnv


class DMSD(VectorEnv):
    """Two masses between walls, coupled by three springs with dampers; hold each at its target.

    Observation [6]: positions (2), velocities (2), targets (2). Each target changes after 50 steps
    with probability 1/2.
    """

    observation_shape = (6,)
    action_dim = 2
    max_episode_steps = 100

    MASS, STIFFNESS, DAMPING = 20.0, 2.0, 4.0  # equal for all masses, springs and dampers
    DT = 0.2
    MAX_FORCE = 30.0

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        self._state = np.zeros((num_envs, 2, 2))  # [env, position or velocity, mass]
        self._targets = np.zeros((num_envs, 2, 2))  # [env, half of the episode, mass]

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = np.random.RandomState(seed)
            # Upstream samples its constants here. Their lower and upper bounds are equal, so the
            # numbers do not matter, but the generator must advance.
            rng.uniform(size=8)
            for mass in range(2):
                self._targets[index, :, mass] = rng.uniform(-1.5, 1.5, rng.randint(1, 3))
            self._state[index, 0] = rng.uniform(-0.25, 0.25, 2)
            self._state[index, 1] = rng.uniform(-0.1, 0.1, 2)
        return self._observations(indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        x, v = self._state[indices].swapaxes(0, 1)
        pull = self.STIFFNESS * x + self.DAMPING * v
        force = pull[:, ::-1] - 2 * pull + self.MAX_FORCE * actions  # two springs act on each mass
        self._state[indices, 0] = x + self.DT * v
        self._state[indices, 1] = v + self.DT / self.MASS * force
        observations = self._observations(indices)
        rewards = reward(x, actions, observations)
        not_over = np.zeros(len(indices), bool)
        return Step(observations, rewards, not_over, not_over, {})

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        half = (self._num_steps[indices] >= self.max_episode_steps // 2).astype(int)
        targets = self._targets[indices, half]
        return np.concatenate([self._state[indices].reshape(-1, 4), targets], 1)


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return minus the sum of the logarithms of both masses' distances from their targets."""
    error = abs(s2[..., :2] - s2[..., 4:])
    return -library(error).log(error + 0.01).sum(-1)


ENVS = {"neorl2/DMSD": DMSD}
OUTCOMES = {"neorl2/DMSD": Outcomes({"task": never}, reward)}

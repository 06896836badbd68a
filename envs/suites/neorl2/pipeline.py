"""NeoRL-2's Pipeline: `polixir/NeoRL2:neorl2/envs/pipline.py`, arXiv:2503.19267.

A seed gives the same episode as upstream's `reset(seed)`, except for the first target.
"""

from typing import Any

import numpy as np

from envs.outcomes import Outcomes, never
from envs.vector import Step, VectorEnv


class Pipeline(VectorEnv):
    """Water in a long pipe: a change at the gate reaches the outlet 19 steps later.

    Observation [52]: outflow, target, the outflows of the previous 25 steps (newest first), the
    last 25 actions (newest first). Flows are float32, as upstream. In float64, the sums of 1,000
    gate changes would differ from upstream's by 3e-3.
    """

    observation_shape = (52,)
    action_dim = 1
    max_episode_steps = 1000

    TARGETS = (50, 80, 110, 140)
    SWITCH_PROBABILITY = 0.003  # per step
    MAX_FLOW = np.float32(200)
    DELAY = 19  # steps between gate and outlet

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        self._gate = np.zeros((num_envs, self.DELAY + 1), np.float32)  # newest first
        self._observation = np.zeros((num_envs, *self.observation_shape), np.float32)
        self._rngs: dict[int, np.random.Generator] = {}

    def first_target(self, seed: int) -> float:
        """Return the first target of the episode with this seed.

        Upstream draws the first target in the constructor, without a seed, and keeps it over
        resets. Here a separate random stream draws it, so the seed's other draws equal upstream's.
        """
        return np.random.Generator(np.random.PCG64([seed, 1])).choice(self.TARGETS)

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = self._rngs[index] = np.random.Generator(np.random.PCG64(seed))
            flow = rng.uniform(80, 120)
            self._gate[index] = flow
            self._observation[index] = flow
            self._observation[index, 1] = self._next_target(rng, self.first_target(seed))
            self._observation[index, 27:] = 0
        return self._observation[indices]

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        actions = actions.astype(np.float32)
        previous, gate = self._observation[indices], self._gate[indices]
        newest = (gate[:, :1] + actions).clip(0, self.MAX_FLOW)
        gate = np.concatenate([newest, gate[:, :-1]], 1)
        targets = [self._next_target(self._rngs[i], self._observation[i, 1]) for i in indices]
        current = np.concatenate(
            [
                gate[:, -1:],
                np.array(targets, np.float32)[:, None],
                previous[:, :1],
                previous[:, 2:26],
                actions,
                previous[:, 27:-1],
            ],
            1,
        )
        self._gate[indices], self._observation[indices] = gate, current
        rewards = reward(previous, actions, current.astype(np.float64))
        not_over = np.zeros(len(indices), bool)
        return Step(current, rewards, not_over, not_over, {})

    def _next_target(self, rng: np.random.Generator, current: float) -> float:
        return rng.choice(self.TARGETS) if rng.random() < self.SWITCH_PROBABILITY else current


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward: 1 if the outflow equals the target, -3 if it differs by 200."""
    error = abs(s2[..., 0] - s2[..., 1])
    return ((200 - error) * 0.01) ** 2 - 3


ENVS = {"neorl2/Pipeline": Pipeline}
OUTCOMES = {"neorl2/Pipeline": Outcomes({"task": never}, reward)}

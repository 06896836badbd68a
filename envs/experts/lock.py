"""Scripted behavior for the combination lock. It reads the state of the environment."""

import numpy as np

from envs.suites.lock import BAD, NUM_CHOICES, Lock


class LockExpert:
    """Correct choices, and uniform random actions with probability `exploration` in each step.

    In the bad state, where no choice matters, the action is that of the second good state, as in
    YifeiZhou02/HNPG:collect_offline.py.
    """

    def __init__(self, env: Lock, exploration: float, seed: int = 0) -> None:
        if not 0 <= exploration <= 1:
            raise ValueError(f"exploration={exploration} is out of range. Use 0 to 1")
        self.env, self.exploration = env, exploration
        self._rng = np.random.default_rng(seed)

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, 10] of the environments `indices`."""
        states, steps = self.env.states[indices], self.env.step_numbers(indices)
        best = self.env.correct[np.minimum(states, BAD - 1), steps]
        actions = np.where(np.arange(NUM_CHOICES) == best[:, None], 1.0, -1.0)
        explores = self._rng.uniform(size=(len(indices), 1)) < self.exploration
        random = self._rng.uniform(-1, 1, actions.shape)
        return np.where(explores, random, actions).astype(np.float32)


EXPERTS = {"lock": LockExpert}  # keys: names in recipes

"""The combination lock with continuous actions (Zhou et al., arXiv:2311.08384, section 6).

An episode has H steps and starts in one of two good states. In each good state and step, one of ten
choices leads to a good state. Every other choice leads to the bad state, in which the episode stays
until it ends. The correct choice in the last step has reward 1. The correct choices are sampled
once per task from a fixed seed. The observation is a noisy, rotated encoding of step and state.
Differs: from YifeiZhou02/HNPG:lock_continuous.py. Actions are unbounded there; here, actions in
[-1, 1] are mapped to [0, 1], the range of its action space. Its reward of 0.1 for a wrong choice in
the last step is included. Its reward for earlier wrong choices is omitted, because its code
computes it but does not return it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from envs.vector import VectorEnv

NUM_CHOICES = 10
TEMPERATURE = 0.1  # of the softmax that maps an action to probabilities of the choices
NOISE = 0.1  # standard deviation of the noise in the encoding
ANTI_REWARD = 0.1  # reward of a wrong choice in the last step, with probability 1/2
BAD = 2  # the state after a wrong choice


class Lock(VectorEnv):
    """Combination locks of `horizon` steps.

    Observation: a Hadamard matrix times the encoding. The encoding has H + 3 noisy entries; 1 is
    added to the entry of the state and to entry 3 + step. Action: 10 logits of the choices.
    """

    action_dim = NUM_CHOICES
    action_names = tuple(f"choice_{k}" for k in range(NUM_CHOICES))
    action_low, action_high = np.zeros(NUM_CHOICES), np.ones(NUM_CHOICES)

    def __init__(self, num_envs: int, *, max_episode_steps: int, num_threads: int = 1) -> None:
        """Create the environments. num_threads: not used, because a step is cheap.

        max_episode_steps: the horizon H.
        """
        super().__init__(num_envs)
        horizon = self.max_episode_steps = max_episode_steps
        size = 1 << (horizon + 3).bit_length()  # a power of 2, at least H + 4
        self.observation_shape = (size,)
        self.rotation = hadamard(size)
        # [2, H], the correct choice in each good state and step
        self.correct = np.random.default_rng(horizon).integers(NUM_CHOICES, size=(2, horizon))
        self.states = np.zeros(num_envs, np.int64)
        self._uniform = np.zeros((num_envs, horizon, 2))  # random numbers of the episode
        self._noise = np.zeros((num_envs, horizon + 1, horizon + 3))

    def step_numbers(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of steps [B] since the start of the episodes."""
        return self._num_steps[indices]

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            rng = np.random.default_rng(seed)
            self.states[index] = rng.integers(2)
            self._uniform[index] = rng.uniform(size=self._uniform.shape[1:])
            self._noise[index] = NOISE * rng.standard_normal(self._noise.shape[1:])
        return self._observe(indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Any:
        steps, states = self._num_steps[indices] - 1, self.states[indices]
        choice_number, coin = self._uniform[indices, steps].T
        choices = (choice_number[:, None] > np.cumsum(probabilities(actions), 1)[:, :-1]).sum(1)
        is_correct = states < BAD
        is_correct &= choices == self.correct[np.minimum(states, 1), steps]
        ends = steps == self.max_episode_steps - 1
        heads = coin < 0.5
        rewards = np.where(is_correct, 1.0, np.where(heads, ANTI_REWARD, 0.0)) * ends
        # a correct choice leads to either good state; the state after the last step is not used
        self.states[indices] = np.where(is_correct, np.where(heads, states, 1 - states), BAD)
        success = {"success": is_correct & ends}
        return self._observe(indices), rewards, ends, np.zeros(len(ends), bool), success

    def _observe(self, indices: np.ndarray) -> np.ndarray:
        code, rows = np.zeros((len(indices), *self.observation_shape)), np.arange(len(indices))
        steps = self._num_steps[indices]
        code[:, : self.max_episode_steps + 3] = self._noise[indices, steps]
        code[rows, self.states[indices]] += 1
        code[rows, 3 + steps] += 1
        return code @ self.rotation.T


def probabilities(actions: np.ndarray) -> np.ndarray:
    """Return the probabilities [B, 10] of the choices for actions [B, 10] in [-1, 1]."""
    weights = np.exp((actions.astype(np.float64) - 1) / (2 * TEMPERATURE))
    return weights / weights.sum(1, keepdims=True)


def hadamard(size: int) -> np.ndarray:
    """Return Sylvester's Hadamard matrix [size, size] of +-1; size is a power of 2."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


ENVS: dict[str, Callable[..., VectorEnv]] = {
    f"lock/{horizon}": partial(Lock, max_episode_steps=horizon) for horizon in (5, 10, 15)
}

"""Three simulators of NeoRL-2, many at a time, from their equations.

Source: `polixir/NeoRL2:neorl2/envs/{pipline,dmsd,safetyhalfcheetah}.py`; paper
arXiv:2503.19267. A seed gives the episode that upstream's `reset(seed)` gives.
"""

from collections.abc import Callable

import numpy as np

from envs.locomotion import HalfCheetah
from envs.vector import Step, VectorEnv


class Pipeline(VectorEnv):
    """Water in a long pipe: the gate's change is felt at the outlet 19 steps later.

    Observation [52]: outflow, target, the outflows of the 25 steps before (newest first), the
    last 25 actions (newest first). Flows are float32, as upstream's: in float64 the sums of 1,000
    gate changes differ by 3e-3.
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

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = self._rngs[index] = np.random.Generator(np.random.PCG64(seed))
            flow = rng.uniform(80, 120)
            # Upstream's constructor draws the first target without a seed, and it survives resets;
            # a stream of its own leaves the seed's other draws as they are upstream.
            first = np.random.Generator(np.random.PCG64([seed, 1])).choice(self.TARGETS)
            self._gate[index] = flow
            self._observation[index] = flow
            self._observation[index, 1] = self._next_target(rng, first)
            self._observation[index, 27:] = 0
        return self._observation[indices]

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        actions = actions.astype(np.float32)
        before, gate = self._observation[indices], self._gate[indices]
        newest = (gate[:, :1] + actions).clip(0, self.MAX_FLOW)
        gate = np.concatenate([newest, gate[:, :-1]], 1)
        targets = [self._next_target(self._rngs[i], self._observation[i, 1]) for i in indices]
        after = np.concatenate(
            [
                gate[:, -1:],
                np.array(targets, np.float32)[:, None],
                before[:, :1],
                before[:, 2:26],
                actions,
                before[:, 27:-1],
            ],
            1,
        )
        self._gate[indices], self._observation[indices] = gate, after
        error = abs(after[:, 0].astype(np.float64) - after[:, 1])
        rewards = ((200 - error) * 0.01) ** 2 - 3
        never = np.zeros(len(indices), bool)
        return Step(after, rewards, never, never, {})

    def _next_target(self, rng: np.random.Generator, now: float) -> float:
        return rng.choice(self.TARGETS) if rng.random() < self.SWITCH_PROBABILITY else now


class DMSD(VectorEnv):
    """Two masses between walls on three springs with dampers, each to be held at its target.

    Observation [6]: positions (2), velocities (2), targets (2). Each target changes with
    odds 1/2 after 50 steps.
    """

    observation_shape = (6,)
    action_dim = 2
    max_episode_steps = 100

    MASS, STIFFNESS, DAMPING = 20.0, 2.0, 4.0  # of both masses, all springs, all dampers
    DT = 0.2
    MAX_FORCE = 30.0
    COUPLING = np.array([[-2.0, 1.0], [1.0, -2.0]])  # of two masses and three springs in a row

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        self._state = np.zeros((num_envs, 2, 2))  # positions, velocities of the masses
        self._targets = np.zeros((num_envs, 2, 2))  # in the first, second half; of the masses

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = np.random.RandomState(seed)
            rng.uniform(size=8)  # upstream's constants, drawn between equal bounds
            for mass in range(2):
                self._targets[index, :, mass] = rng.uniform(-1.5, 1.5, rng.randint(1, 3))
            self._state[index, 0] = rng.uniform(-0.25, 0.25, 2)
            self._state[index, 1] = rng.uniform(-0.1, 0.1, 2)
        return self._observations(indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        x, v = self._state[indices].swapaxes(0, 1)
        force = (self.STIFFNESS * x + self.DAMPING * v) @ self.COUPLING + self.MAX_FORCE * actions
        self._state[indices, 0] = x + self.DT * v
        self._state[indices, 1] = v + self.DT / self.MASS * force
        observations = self._observations(indices)
        error = abs(observations[:, :2] - observations[:, 4:])
        never = np.zeros(len(indices), bool)
        return Step(observations, -np.log(error + 0.01).sum(1), never, never, {})

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        half = (self._num_steps[indices] >= self.max_episode_steps // 2).astype(int)
        targets = self._targets[indices, half]
        return np.concatenate([self._state[indices].reshape(-1, 4), targets], 1)


class SafetyHalfCheetah(HalfCheetah):
    """Gymnasium's half-cheetah with x in the observation [18] and a speed limit.

    A step above the limit is paid -100 instead; the episode goes on. info `cost` is 1 there.
    """

    hidden_positions = 0
    SPEED_LIMIT = 3.2096  # m/s

    def reward(self, speed: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.where(speed > self.SPEED_LIMIT, -100.0, super().reward(speed, actions))

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        step = super()._step(actions, indices)
        step.infos["cost"] = (step.infos["x_velocity"] > self.SPEED_LIMIT).astype(np.float64)
        return step


ENVS: dict[str, Callable[..., VectorEnv]] = {
    "neorl2/Pipeline": Pipeline,
    "neorl2/DMSD": DMSD,
    "neorl2/SafetyHalfCheetah": SafetyHalfCheetah,
}

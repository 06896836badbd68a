"""Controllers of constrained tasks, whose episodes follow a schedule of cost limits.

As in DSRL (arXiv:2306.09303), the limit falls linearly from the highest one to 0, here over the
parallel episodes of a batch. A controller is bold or careful. It is careful at random times, and
always after the episode's cost has reached the limit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from envs.suites.safe.hazards import HALF, NUM_BINS, RADIUS, Hazards
from envs.suites.safe.velocity import VelocityRunner
from envs.vector import VectorEnv

Policy = Callable[[np.ndarray], np.ndarray]  # observations [B, O] float32 -> actions [B, A]


class Budgeted(ABC):
    """Controller with a cost limit for each episode.

    highest_limit: limit of the first episode. The last episode of the batch has limit 0.
    """

    noise = 0.1  # standard deviation of the noise on actions

    def __init__(self, env: VectorEnv, highest_limit: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.limits = np.linspace(highest_limit, 0, env.num_envs)
        self.spent = np.zeros(env.num_envs)  # cost of the episode
        self.boldness = self._rng.uniform(0, 0.8, env.num_envs)  # share of bold times
        self._wants_bold = np.zeros(env.num_envs, bool)

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, A] for observations [B, O] of the environments `indices`."""
        self.spent[indices] += self.last_costs(observations, indices)
        actions = self.act(observations, indices)
        actions = actions + self.noise * self._rng.standard_normal(actions.shape)
        return actions.clip(-1, 1).astype(np.float32)

    def choose(self, indices: np.ndarray) -> None:
        """Choose at random whether these environments are bold from now on."""
        self._wants_bold[indices] = self._rng.uniform(size=len(indices)) < self.boldness[indices]

    def is_bold(self, indices: np.ndarray) -> np.ndarray:
        """Return True where the controller is bold, [B]."""
        has_budget = self.spent[indices] < self.limits[indices]
        bold: np.ndarray = self._wants_bold[indices] & has_budget
        return bold

    @abstractmethod
    def last_costs(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the costs [B] of the last step."""

    @abstractmethod
    def act(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return actions [B, A] without noise."""


class HazardWalk(Budgeted):
    """Walk of the point to its goals: straight if bold, else around the hazards.

    Each leg has a speed of its own. Slow legs cost reward.
    """

    speeds = (0.4, 1.0)  # range of the legs' speeds, as shares of the highest one
    noise = 0.2
    margin = 0.2  # distance kept from a hazard's edge, units

    def __init__(self, env: Hazards, highest_limit: float = 120.0, seed: int = 0) -> None:
        super().__init__(env, highest_limit, seed)
        self.env = env
        self._goals = np.full((env.num_envs, 2), np.inf)  # of the current legs, m
        self._speeds = np.ones(env.num_envs)  # of the current legs

    def last_costs(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.asarray((observations[:, -NUM_BINS:] > 1).any(1))

    def act(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        goals = self.env.goals[indices]
        new = indices[(goals != self._goals[indices]).any(1)]
        self._goals[indices] = goals
        self._speeds[new] = self._rng.uniform(*self.speeds, len(new))
        self.choose(new)
        places = observations[:, :2].astype(np.float64)
        unit, hazards = self.env.unit_m, self.env.hazards[indices]
        around = [
            avoid(p / unit, t / unit, h / unit, self.margin) * unit
            for p, t, h in zip(places, goals, hazards, strict=True)
        ]
        bold = self.is_bold(indices)[:, None]
        offsets = np.where(bold, goals - places, around)
        return self.toward(observations, offsets, self._speeds[indices, None])

    def toward(
        self, observations: np.ndarray, offsets: np.ndarray, speeds: np.ndarray
    ) -> np.ndarray:
        """Return actions [B, A] that move to `offsets` [B, 2] m from the agent.

        speeds: shares of the highest speed, [B, 1].
        """
        length = np.linalg.norm(offsets, axis=1, keepdims=True)
        velocity = speeds * offsets / np.maximum(length, 0.3)
        return 2 * velocity - observations[:, 2:4]


class AntHazardWalk(HazardWalk):
    """Walk of the ant to its goals, with a policy trained in `Ant-goal`."""

    learned = True
    noise, margin = 0.2, 0.25

    def __init__(
        self, policy: Policy, env: Hazards, highest_limit: float = 120.0, seed: int = 0
    ) -> None:
        super().__init__(env, highest_limit, seed)
        self.policy = policy

    def toward(
        self, observations: np.ndarray, offsets: np.ndarray, speeds: np.ndarray
    ) -> np.ndarray:
        length = np.linalg.norm(offsets, axis=1, keepdims=True)
        offsets = offsets * length.clip(1, 6) / np.maximum(length, 1e-6)  # as in its training
        return self.policy(np.concatenate([observations[:, 2:29], offsets], 1).astype(np.float32))


class PaceRun(Budgeted):
    """Run at commanded speeds above the limit if bold, else below it.

    The policy is trained in `HalfCheetah-pace` or `Hopper-pace`. Commands change after 50 to 200
    steps.
    """

    learned = True
    BOLD, CAREFUL = (1.0, 1.5), (0.5, 0.9)  # ranges of commands, as shares of the speed limit

    def __init__(
        self, policy: Policy, env: VelocityRunner, highest_limit: float = 250.0, seed: int = 0
    ) -> None:
        super().__init__(env, highest_limit, seed)
        self.policy, self.env = policy, env
        self._x = np.full(env.num_envs, np.inf)  # at the last step, m
        self._remaining = np.zeros(env.num_envs, np.int64)  # steps until the commands change
        self._commands = np.zeros((2, env.num_envs))  # careful, bold

    def last_costs(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        x = self.env.x(indices)
        speed = (x - self._x[indices]) / self.env.dt_s
        self._x[indices] = x
        return speed > self.env.speed_limit

    def act(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        new = indices[self._remaining[indices] == 0]
        self.choose(new)
        for commands, span in zip(self._commands, (self.CAREFUL, self.BOLD), strict=True):
            commands[new] = self._rng.uniform(*span, len(new))
        self._remaining[new] = self._rng.integers(50, 200, len(new))
        self._remaining[indices] -= 1
        commands = self._commands[self.is_bold(indices).astype(int), indices]
        return self.policy(np.concatenate([observations, commands[:, None]], 1).astype(np.float32))


def avoid(place: np.ndarray, target: np.ndarray, hazards: np.ndarray, margin: float) -> np.ndarray:
    """Return the next move [2] on a way from `place` to `target` around the hazards.

    place, target: [2]. hazards: [H, 2], centers. All lengths are in units. The way to the target
    bends to a tangent of the first hazard on it, and then of the first hazard on that way.
    """
    keep = RADIUS + margin
    offsets = hazards - place
    for _ in range(2):
        move = target - place
        length = np.linalg.norm(move)
        ahead = move / max(length, 1e-9)
        left = np.array([-ahead[1], ahead[0]])
        along, aside = offsets @ ahead, offsets @ left
        blocks = (along > 0) & (along < length) & (abs(aside) < keep)
        if not blocks.any():
            break
        k = np.where(blocks, along, np.inf).argmin()
        nearer = -1 if aside[k] > 0 else 1  # the side with the shorter way
        sides = [hazards[k] + side * (keep + 0.05) * left for side in (nearer, -nearer)]
        target = sides[0] if abs(sides[0]).max() < HALF else sides[1]
    move = target - place
    move /= max(np.linalg.norm(move), 1e-9)
    distances = np.linalg.norm(offsets, axis=1)
    for k in np.flatnonzero(distances < keep):  # too close: move away
        move -= offsets[k] / max(distances[k], 1e-9) * 2 * (keep - distances[k]) / margin
    return move


EXPERTS = {  # keys: names in recipes
    "hazards": HazardWalk,
    "ant-hazards": AntHazardWalk,
    "pace": PaceRun,
}

"""Runners with a speed limit, as in Safety-Gymnasium.

The limits are those of version 1 of `PKU-Alignment/safety-gymnasium:safety_gymnasium/tasks/
safe_velocity`. A step above the limit has info `cost` 1; reward and termination are those of the
task without a limit. The cost limits are those of DSRL (arXiv:2306.09303).
"""

from typing import Any

import numpy as np

from envs.outcomes import CostFunction, Outcomes, never
from envs.suites.locomotion import OUTCOMES as OUTCOMES_OF_RUNNERS
from envs.suites.locomotion import Ant, HalfCheetah, Hopper, Runner, Walker2d, control_penalty


class VelocityRunner(Runner):
    """Runner with a speed limit."""

    speed_limit: float
    cost_limits: tuple[float, ...] = (20.0, 40.0, 80.0)

    def x(self, indices: np.ndarray) -> np.ndarray:
        """Return the distances [B] m from the origin along x, which are not observed."""
        return self._qpos[indices, 0]


class HalfCheetahVelocity(VelocityRunner, HalfCheetah):
    """Half-cheetah with a speed limit."""

    speed_limit = 3.2096


class HopperVelocity(VelocityRunner, Hopper):
    """Hopper with a speed limit."""

    speed_limit = 0.7402


class Walker2dVelocity(VelocityRunner, Walker2d):
    """Walker2d with a speed limit."""

    speed_limit = 2.3415


class AntVelocity(VelocityRunner, Ant):
    """Ant of Gymnasium's v4, with a limit on its speed in the plane. Observation [27]."""

    speed_limit, limits_plane, num_zeros = 2.6222, True, 0


class SwimmerVelocity(VelocityRunner):
    """Swimmer with a limit on its speed along x; never terminates.

    Observation [8]: 3 angles, velocities of x, y and the angles.
    """

    xml, frame_skip = "swimmer.xml", 4
    control_cost, reset_noise, hidden_positions = 1e-4, 0.1, 2
    speed_limit = 0.2282


class Pace(VelocityRunner):
    """Training task of the controller `pace`: run, but not faster than a commanded speed.

    Observation: the runner's, then the command as a share of the speed limit. Each episode draws
    its command. Reward: the task's, minus `overspeed` for each m/s above the command.
    """

    slowest, fastest = 0.2, 1.6  # range of the commands, as shares of the speed limit
    overspeed = 3.0
    cost_limits = ()

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (self.observation_shape[0] + 1,)
        self._commands = np.ones(num_envs)

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self._commands[index] = rng.uniform(self.slowest, self.fastest)
        return super().start(index, rng)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        rewards, terminated, infos = super().outcome(indices, before, actions)
        excess = infos["x_velocity"] - self._commands[indices] * self.speed_limit
        return rewards - self.overspeed * excess.clip(0), terminated, infos

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([super()._observations(indices), self._commands[indices, None]], 1)


class HalfCheetahPace(Pace, HalfCheetahVelocity):
    """Half-cheetah with a commanded speed."""


class HopperPace(Pace, HopperVelocity):
    """Hopper with a commanded speed."""


def speed_cost(kind: type[VelocityRunner]) -> CostFunction:
    """Return the cost of a transition as a function of its reward and action.

    The reward of these runners is speed + alive bonus - control cost, so they determine the speed.
    """

    def cost(s: Any, a: Any, r: Any, s2: Any) -> Any:
        speed = r - kind.alive_bonus + control_penalty(a, kind.control_cost)
        return 1.0 * (speed > kind.speed_limit)

    return cost


# the tasks whose rewards determine their costs, and the tasks without a limit
RUNNERS: dict[str, tuple[type[VelocityRunner], str]] = {
    "safe/HalfCheetahVelocity": (HalfCheetahVelocity, "HalfCheetah-v4"),
    "safe/HopperVelocity": (HopperVelocity, "Hopper-v4"),
    "safe/Walker2dVelocity": (Walker2dVelocity, "Walker2d-v4"),
}
ENVS: dict[str, type[Runner]] = {
    **{name: kind for name, (kind, _) in RUNNERS.items()},
    "safe/AntVelocity": AntVelocity,
    "safe/SwimmerVelocity": SwimmerVelocity,
    "HalfCheetah-pace": HalfCheetahPace,
    "Hopper-pace": HopperPace,
}
OUTCOMES = {name: OUTCOMES_OF_RUNNERS[base] for name, (_, base) in RUNNERS.items()}
OUTCOMES |= {
    "safe/AntVelocity": OUTCOMES_OF_RUNNERS["Ant-v2"],
    "safe/SwimmerVelocity": Outcomes({"task": never}),
}
COSTS = {name: speed_cost(kind) for name, (kind, _) in RUNNERS.items()}

"""Vectorized Hopper, Walker2d, HalfCheetah and Ant with the semantics of Gymnasium's v4.

The equations follow `Farama-Foundation/Gymnasium:gymnasium/envs/mujoco/{hopper,walker2d,
half_cheetah,ant}_v4.py`; the models are Gymnasium's XML files. v4 is the version closest to gym's
v2, in which D4RL was recorded: the alive bonus is also paid on the step of the fall, and the two
feet of Walker2d have different friction.
"""

from typing import Any

import numpy as np

from envs.outcomes import Outcomes, finite, never, out_of_bounds
from envs.physics import MujocoVectorEnv, load_model


class Runner(MujocoVectorEnv):
    """Locomotion task: reward = speed + alive bonus - control cost; a fall terminates."""

    xml: str
    control_cost: float  # coefficient of the sum of squared actions
    reset_noise: float  # half-width of the uniform noise on the initial positions, m or rad
    alive_bonus = 0.0
    limits_plane = False  # True: `speed_limit` is for the speed in the plane, not for that along x
    speed_limit: float | None = None  # m/s; info `cost` is 1 in a step above it, else 0
    hidden_positions = 1  # x
    max_episode_steps = 1000
    camera = "track"

    def build(self) -> Any:
        return load_model(self.xml)

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """Return [B] bool for qpos [B, nq] and qvel [B, nv]. False ends the episode."""
        return np.ones(len(qpos), bool)

    def reward(self, speed: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return rewards [B] for speed [B] m/s and actions [B, A].

        The bonus is also paid on the step of a fall.
        """
        return speed + self.alive_bonus - control_penalty(actions, self.control_cost)

    def velocity_noise(self, rng: np.random.Generator) -> np.ndarray:
        """Return the noise on the initial velocities, [nv]."""
        return rng.uniform(-self.reset_noise, self.reset_noise, self.model.nv)

    def velocity(self, indices: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the velocity [B, 2] in the last step, m/s: along x, and along y or z.

        before: qpos at the start of that step.
        """
        return (self._qpos[indices, :2] - before[:, :2]) / self.dt_s

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        noise = rng.uniform(-self.reset_noise, self.reset_noise, self.model.nq)
        return self.model.qpos0 + noise, self.velocity_noise(rng)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        qpos, qvel = self._qpos[indices], self._qvel[indices]
        velocity = self.velocity(indices, before)
        speed = velocity[:, 0]
        infos = {"x_velocity": speed}
        if self.speed_limit is not None:
            limited = np.sqrt((velocity**2).sum(1)) if self.limits_plane else speed
            infos["cost"] = (limited > self.speed_limit).astype(np.float64)
        return self.reward(speed, actions), ~self.healthy(qpos, qvel), infos


class Hopper(Runner):
    """Hopper with one leg. Observation [11]: z, 4 angles, velocities of x, z and the angles."""

    xml, frame_skip = "hopper.xml", 4
    control_cost, reset_noise, alive_bonus, max_speed = 1e-3, 5e-3, 1.0, 10.0

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        return hopper_stands(np.concatenate([qpos[:, 1:], qvel], 1))


class Walker2d(Runner):
    """Walker with two legs. Observation [17]: z, 7 angles, velocities of x, z and the angles."""

    xml, frame_skip = "walker2d.xml", 4
    control_cost, reset_noise, alive_bonus, max_speed = 1e-3, 5e-3, 1.0, 10.0

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        return walker_stands(qpos[:, 1:])


class HalfCheetah(Runner):
    """Half-cheetah; never terminates. Observation [17]: z, 7 angles, velocities of x, z, angles."""

    xml, frame_skip = "half_cheetah.xml", 5
    control_cost, reset_noise = 0.1, 0.1

    def velocity_noise(self, rng: np.random.Generator) -> np.ndarray:
        return self.reset_noise * rng.standard_normal(self.model.nv)


class Ant(Runner):
    """Ant with four legs, as in gym's v2.

    Observation [111]: z, orientation, 8 angles, velocities, 84 zeros. The zeros replace the contact
    forces, which are also zero in D4RL's data. As in gym, the speed is computed from the torso's
    `xpos`. MuJoCo updates `xpos` in its kinematics pass, so it is one integrator stage older than
    `qpos`.
    """

    xml, frame_skip = "ant.xml", 5
    control_cost, reset_noise, alive_bonus, hidden_positions = 0.5, 0.1, 1.0, 2
    num_zeros = 84

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (27 + self.num_zeros,)
        self._torso = np.zeros((num_envs, 2))  # x and y, m

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        return finite(qpos) & ant_stands(np.concatenate([qpos[:, 2:], qvel], 1))

    def velocity_noise(self, rng: np.random.Generator) -> np.ndarray:
        return self.reset_noise * rng.standard_normal(self.model.nv)

    def _read(self, indices: np.ndarray) -> None:
        super()._read(indices)
        self._before, self._torso = self._torso, self._torso.copy()
        for index in indices:
            self._torso[index] = self._data[index].xpos[1, :2]

    def velocity(self, indices: np.ndarray, before: np.ndarray) -> np.ndarray:
        return (self._torso - self._before)[indices] / self.dt_s

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        zeros = np.zeros((len(indices), self.num_zeros))
        return np.concatenate([super()._observations(indices), zeros], 1)


def control_penalty(actions: Any, coefficient: float) -> Any:
    """Return the control cost of actions [..., A]."""
    return coefficient * (actions * actions).sum(-1)


def hopper_stands(state: Any) -> Any:
    """True where Hopper is healthy. state [..., 11]: all positions and velocities except x."""
    z, angle = state[..., 0], state[..., 1]
    return (z > 0.7) & (abs(angle) < 0.2) & (abs(state[..., 1:]) < 100).all(-1)


def walker_stands(state: Any) -> Any:
    """True where Walker2d is healthy. state [..., N]: z, the torso's angle, other numbers."""
    z, angle = state[..., 0], state[..., 1]
    return (z > 0.8) & (z < 2) & (abs(angle) < 1)


def ant_stands(state: Any) -> Any:
    """True where Ant is healthy. state [..., N]: z and other numbers."""
    return finite(state) & (state[..., 0] >= 0.2) & (state[..., 0] <= 1)


def hopper_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where Hopper falls. Observed velocities are clipped to 10, far below the limit."""
    return ~hopper_stands(s2)


def hopper_falls_published(s: Any, a: Any, s2: Any) -> Any:
    """True where Hopper falls, without a lower limit on angles and velocities.

    As in `jannerm/mbpo:mbpo/static/hopper.py` and later code: it takes the absolute value of the
    comparison, not of the state.
    """
    z, angle = s2[..., 0], s2[..., 1]
    return ~(finite(s2) & (s2[..., 1:] < 100).all(-1) & (z > 0.7) & (abs(angle) < 0.2))


def walker_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where Walker2d falls."""
    return ~walker_stands(s2)


def walker_falls_published(s: Any, a: Any, s2: Any) -> Any:
    """True where Walker2d falls or a number reaches 100, as in `yihaosun1124/OfflineRL-Kit`."""
    return walker_falls(s, a, s2) | out_of_bounds(s, a, s2)


def ant_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where Ant falls or a number is not finite."""
    return ~ant_stands(s2)


# The rewards need the distance traveled along x, which is not observed. HalfCheetah's published
# function is that of `yihaosun1124/OfflineRL-Kit`; in `jannerm/mbpo`, its rollouts never end.
OUTCOMES = {
    "Hopper-v4": Outcomes({"task": hopper_falls, "published": hopper_falls_published}),
    "Walker2d-v4": Outcomes({"task": walker_falls, "published": walker_falls_published}),
    "HalfCheetah-v4": Outcomes({"task": never, "published": out_of_bounds}),
    "Ant-v2": Outcomes({"task": ant_falls}),
}
ENVS: dict[str, type[Runner]] = {
    "Hopper-v4": Hopper,
    "Walker2d-v4": Walker2d,
    "HalfCheetah-v4": HalfCheetah,
    "Ant-v2": Ant,
}

"""Hopper, Walker2d and HalfCheetah with the semantics of Gymnasium's v4, many at a time.

The equations are `Farama-Foundation/Gymnasium:gymnasium/envs/mujoco/{hopper,walker2d,
half_cheetah}_v4.py`, the models its XML files. v4 is the closest to gym's v2, in which D4RL was
recorded: the alive bonus is also paid on the step that falls, and Walker2d's feet differ.

`mujoco.rollout` is no faster here, and it does not carry the constraint solver's warm start from
call to call, so that trajectories depart from Gymnasium's after contacts. Hence `mj_step`.
"""

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envs.vector import Step, VectorEnv


@functools.cache
def load_model(xml: str) -> Any:
    """Gymnasium's MuJoCo model `xml`, with contacts as in the MuJoCo that D4RL was made with.

    From 3.5 a contact's margin is the sum of its two geoms' margins, before it was the larger.
    All geoms of these models have the same margin, so that halving them restores the contacts.
    """
    import mujoco

    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / xml
    spec = mujoco.MjSpec.from_file(str(path))
    if tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 5):
        for geom in spec.geoms:
            geom.margin /= 2
    with warnings.catch_warnings():  # MuJoCo 4 on an attribute of half_cheetah.xml
        warnings.filterwarnings("ignore", message=".*settotalmass")
        return spec.compile()


class MujocoVectorEnv(VectorEnv):
    """A planar runner: reward = speed + alive bonus - control cost, fallen = terminated.

    num_threads: of the simulation, which runs outside Python's lock.
    """

    xml: str
    frame_skip: int
    control_cost: float  # times the sum of squared actions
    reset_noise: float  # half width of the uniform noise on the initial positions, m or rad
    alive_bonus = 0.0
    max_speed = np.inf  # observed velocities are clipped to it, m/s or rad/s
    hidden_positions = 1  # leading positions (x) that are not observed
    max_episode_steps = 1000

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; at least 1 thread is needed.")
        import mujoco

        self._mujoco = mujoco
        self.model = load_model(self.xml)
        self.dt_s = self.model.opt.timestep * self.frame_skip
        self.observation_shape = (self.model.nq + self.model.nv - self.hidden_positions,)
        self.action_dim = self.model.nu
        self._models = [self.model] * num_envs  # a subclass may give each environment its own
        self._data = [mujoco.MjData(self.model) for _ in range(num_envs)]
        self._qpos = np.stack([data.qpos for data in self._data])
        self._qvel = np.stack([data.qvel for data in self._data])
        self._num_threads = min(num_threads, num_envs)
        self._pool = ThreadPoolExecutor(num_threads)  # starts no thread before it is used
        self._renderer: Any = None

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """qpos [B, nq], qvel [B, nv] -> [B] bool; False terminates."""
        return np.ones(len(qpos), bool)

    def reward(self, speed: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """speed [B] m/s, actions [B, act] -> [B]. The bonus is also paid on the falling step."""
        return speed + self.alive_bonus - self.control_cost * np.square(actions).sum(1)

    def velocity_noise(self, rng: np.random.Generator) -> np.ndarray:
        """Noise on the initial velocities, [nv]."""
        return rng.uniform(-self.reset_noise, self.reset_noise, self.model.nv)

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = np.random.Generator(np.random.PCG64(seed))
            model, data = self._models[index], self._data[index]
            self._mujoco.mj_resetData(model, data)
            data.qpos += rng.uniform(-self.reset_noise, self.reset_noise, model.nq)
            data.qvel += self.velocity_noise(rng)
            self._mujoco.mj_forward(model, data)
        self._read(indices)
        return self._observations(indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        actions = actions.astype(np.float64)
        x = self._qpos[indices, 0]
        self._simulate(actions, indices)
        self._read(indices)
        qpos, qvel = self._qpos[indices], self._qvel[indices]
        speed = (qpos[:, 0] - x) / self.dt_s
        return Step(
            self._observations(indices),
            self.reward(speed, actions),
            ~self.healthy(qpos, qvel),
            np.zeros(len(indices), bool),
            {"x_velocity": speed},
        )

    def _simulate(self, actions: np.ndarray, indices: np.ndarray) -> None:
        """Shared out evenly over the threads, of which the caller's is one."""
        shares = [np.array_split(array, self._num_threads) for array in (actions, indices)]
        mine, *others = zip(*shares, strict=True)
        futures = [self._pool.submit(self._simulate_some, *share) for share in others]
        self._simulate_some(*mine)
        for future in futures:
            future.result()

    def _simulate_some(self, actions: np.ndarray, indices: np.ndarray) -> None:
        step = self._mujoco.mj_step
        for action, index in zip(actions, indices, strict=True):
            data = self._data[index]
            data.ctrl[:] = action
            step(self._models[index], data, self.frame_skip)

    def _read(self, indices: np.ndarray) -> None:
        for index in indices:
            self._qpos[index] = self._data[index].qpos
            self._qvel[index] = self._data[index].qvel

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        velocities = self._qvel[indices].clip(-self.max_speed, self.max_speed)
        return np.concatenate([self._qpos[indices, self.hidden_positions :], velocities], 1)

    def render(self, index: int = 0) -> np.ndarray:
        if self._renderer is None:
            self._renderer = self._mujoco.Renderer(self.model, height=480, width=480)
        self._renderer.update_scene(self._data[index], camera="track")
        return self._renderer.render()

    def close(self) -> None:
        self._pool.shutdown()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


class Hopper(MujocoVectorEnv):
    """One leg. Observation [11]: z, 4 angles, velocities of x, z and the angles."""

    xml, frame_skip = "hopper.xml", 4
    control_cost, reset_noise, alive_bonus, max_speed = 1e-3, 5e-3, 1.0, 10.0

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        state = np.concatenate([qpos[:, 2:], qvel], 1)
        return (qpos[:, 1] > 0.7) & (abs(qpos[:, 2]) < 0.2) & (abs(state) < 100).all(1)


class Walker2d(MujocoVectorEnv):
    """Two legs. Observation [17]: z, 7 angles, velocities of x, z and the angles."""

    xml, frame_skip = "walker2d.xml", 4
    control_cost, reset_noise, alive_bonus, max_speed = 1e-3, 5e-3, 1.0, 10.0

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        return (qpos[:, 1] > 0.8) & (qpos[:, 1] < 2.0) & (abs(qpos[:, 2]) < 1.0)


class HalfCheetah(MujocoVectorEnv):
    """Never falls. Observation [17]: z, 7 angles, velocities of x, z and the angles."""

    xml, frame_skip = "half_cheetah.xml", 5
    control_cost, reset_noise = 0.1, 0.1

    def velocity_noise(self, rng: np.random.Generator) -> np.ndarray:
        return self.reset_noise * rng.standard_normal(self.model.nv)


ENVS: dict[str, type[MujocoVectorEnv]] = {
    "Hopper-v4": Hopper,
    "Walker2d-v4": Walker2d,
    "HalfCheetah-v4": HalfCheetah,
}

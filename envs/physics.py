"""MuJoCo simulation of many environments: models, threads, state and rendering.

Each step calls `mj_step`. `mujoco.rollout` is no faster here. It also drops the constraint solver's
warm start between calls, so trajectories would differ from Gymnasium's after contacts.
"""

import functools
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envs.vector import Step, Threads, VectorEnv


def gymnasium_spec(xml: str) -> Any:
    """Return the MjSpec of Gymnasium's MuJoCo model `xml`, which callers may change."""
    import mujoco

    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / xml
    return mujoco.MjSpec.from_file(str(path))


def compile_spec(spec: Any) -> Any:
    """Return the compiled model, with contacts as in the MuJoCo version used for D4RL.

    Since MuJoCo 3.5 a contact's margin is the sum of its geoms' margins; before, it was the larger
    one. All geoms of a model here have the same margin, so halving them restores the contacts.
    """
    import mujoco

    if tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 5):
        for geom in spec.geoms:
            geom.margin /= 2
    with warnings.catch_warnings():  # MuJoCo 4 warns of an attribute in half_cheetah.xml
        warnings.filterwarnings("ignore", message=".*settotalmass")
        return spec.compile()


@functools.cache
def load_model(xml: str) -> Any:
    """Return Gymnasium's compiled MuJoCo model `xml`."""
    return compile_spec(gymnasium_spec(xml))


class MujocoVectorEnv(VectorEnv):
    """MuJoCo environments with actions in [-1, 1] as controls.

    num_threads: threads of the simulation, which runs outside Python's global interpreter lock.
    """

    frame_skip: int  # simulation steps per environment step
    max_speed = np.inf  # clip limit of observed velocities, m/s or rad/s
    hidden_positions = 0  # leading positions that are not observed
    camera: int | str = -1
    threads_help = True  # whether simulating a step takes longer than handing it to a thread

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        if num_threads < 1:
            raise ValueError(f"num_threads={num_threads} is too small. At least 1 is needed.")
        import mujoco

        self._mujoco = mujoco
        self.model = self.build()
        self.dt_s = self.model.opt.timestep * self.frame_skip
        self.rate_hz = 1 / self.dt_s
        self.observation_shape = (self.model.nq + self.model.nv - self.hidden_positions,)
        self.action_dim = self.model.nu
        self._models = [self.model] * num_envs  # a subclass may use one model per environment
        self._data = [mujoco.MjData(self.model) for _ in range(num_envs)]
        self._qpos = np.stack([data.qpos for data in self._data])
        self._qvel = np.stack([data.qvel for data in self._data])
        self._threads = Threads(min(num_threads, num_envs) if self.threads_help else 1)
        self._renderer: Any = None

    @abstractmethod
    def build(self) -> Any:
        """Build the MuJoCo model."""

    @abstractmethod
    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the initial qpos [nq] and qvel [nv] of an episode in environment `index`."""

    @abstractmethod
    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Return rewards [B], terminated [B] and infos of a step.

        before: qpos [B, nq] at the start of the step.
        """

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            model, data = self._models[index], self._data[index]
            self._mujoco.mj_resetData(model, data)
            rng = np.random.Generator(np.random.PCG64(seed))
            data.qpos[:], data.qvel[:] = self.start(index, rng)
            self._mujoco.mj_forward(model, data)
        self._read(indices)
        return self._observations(indices)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        actions, before = actions.astype(np.float64), self._qpos[indices]
        self._threads(self._simulate_some, actions, indices)
        self._read(indices)
        rewards, terminated, infos = self.outcome(indices, before, actions)
        never = np.zeros(len(indices), bool)
        return Step(self._observations(indices), rewards, terminated, never, infos)

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
        self._renderer.update_scene(self._data[index], camera=self.camera)
        return self._renderer.render()

    def close(self) -> None:
        self._threads.close()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

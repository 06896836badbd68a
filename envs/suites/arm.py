"""The tabletop arm of configs/robot/desk.yaml, with two tasks: reach and push.

Actions and observations are those of the robot. Actions are joint targets at 25 Hz. Observations
are encoder readings with the servos' resolution, and a tracker's noisy position of the target or
the puck. Both tasks, the simulated hardware and the safety layer's kinematics use the same model.
"""

from functools import cache
from typing import Any

import numpy as np
import yaml

from envs.paths import share
from envs.physics import MujocoVectorEnv, compile_spec

TICK_RAD, TICK_RAD_S = 2 * np.pi / 4096, 0.229 * 2 * np.pi / 60  # resolution of the encoders
TRACKER_M = 0.0005  # standard deviation of a tracker's reading
CLOSE_M = 0.02  # success: maximum distance of tip and target, or of puck and goal
STILL_RAD_S = 0.2  # success in reach: maximum joint speed
TIP_M, PUCK_M = 0.01, 0.035  # radii


@cache
def load_robot(name: str = "desk") -> dict[str, Any]:
    """Return the contents of the robot's file: limits, joints and model."""
    values: dict[str, Any] = yaml.safe_load((share("configs/robot") / f"{name}.yaml").read_text())
    return values


class Desk(MujocoVectorEnv):
    """Base class of the arm's tasks.

    Actions are joint targets, with [-1, 1] mapped to the robot's position limits. During a period,
    the servos' set points move linearly from the previous targets to the new ones, at most at the
    robot's speed limit. Names, units, limits and rate are those of the robot.
    """

    frame_skip = 20
    rate_hz = 25.0
    action_offset = 1.0
    camera = "desk"
    tracked: tuple[str, ...] = ()  # tracked positions in the observation, after the joints, m
    action_low: np.ndarray
    action_high: np.ndarray

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        joints = load_robot()["joints"]
        self.action_names = tuple(joints)
        limits = np.array([row["position"] for row in joints.values()], np.float64)
        self.action_low, self.action_high = limits.T  # [J] rad
        self.action_units = ("rad",) * len(joints)
        self.observation_names = (
            *(f"{joint}.q" for joint in joints),
            *(f"{joint}.dq" for joint in joints),
            *self.tracked,
        )
        units = ("rad",) * len(joints) + ("rad/s",) * len(joints) + ("m",) * len(self.tracked)
        self.observation_units = units
        self._step_rad = np.array([row["velocity"] for row in joints.values()]) / self.rate_hz
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (len(self.observation_names),)
        self._targets = np.zeros((num_envs, len(joints)))  # current targets of the servos, rad
        self._noise = [np.random.Generator(np.random.PCG64(0)) for _ in range(num_envs)]
        self._tip = self.model.site("tip").id

    def build(self) -> Any:
        import mujoco

        path = share("configs/robot") / load_robot()["model"]
        return compile_spec(mujoco.MjSpec.from_file(str(path)))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return a state at rest near the arm's ready pose."""
        qpos = self.model.key("ready").qpos.copy()
        joints = len(self.action_names)
        qpos[:joints] += rng.uniform(-0.15, 0.15, joints)
        self._targets[index] = qpos[:joints]
        self._noise[index] = rng
        return qpos, np.zeros(self.model.nv)

    def _simulate_some(self, actions: np.ndarray, indices: np.ndarray) -> None:
        middle, half = (self.action_high + self.action_low) / 2, self._half
        num_substeps = 10
        for action, index in zip(actions, indices, strict=True):
            data, start = self._data[index], self._targets[index].copy()
            change = (middle + half * action - start).clip(-self._step_rad, self._step_rad)
            for k in range(1, num_substeps + 1):
                data.ctrl[:] = start + change * (k / num_substeps)
                self._mujoco.mj_step(self._models[index], data, self.frame_skip // num_substeps)
            self._targets[index] = start + change

    @property
    def _half(self) -> np.ndarray:
        return (self.action_high - self.action_low) / 2

    def action(self, angles: np.ndarray) -> np.ndarray:
        """Return the actions for joint targets [B, J] rad."""
        return (angles - (self.action_high + self.action_low) / 2) / self._half

    def tip(self, indices: np.ndarray) -> np.ndarray:
        """Return the tip positions [B, 3] m."""
        return np.stack([self._data[index].site_xpos[self._tip] for index in indices])

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        joints = len(self.action_names)
        angles = np.rint(self._qpos[indices, :joints] / TICK_RAD) * TICK_RAD
        speeds = np.rint(self._qvel[indices, :joints] / TICK_RAD_S) * TICK_RAD_S
        return np.concatenate([angles, speeds, self._track(indices)], 1)

    def _track(self, indices: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _add_tracker_noise(self, truth: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the positions [B, n] m with noise from each environment's generator."""
        noise = [self._noise[index].normal(0, TRACKER_M, truth.shape[1]) for index in indices]
        return truth + np.stack(noise)


class Reach(Desk):
    """Bring the tip to the target and stop. Success ends the episode with reward 1; other steps: 0.

    Observation [13]: joint angles, joint speeds, target position.
    """

    max_episode_steps = 100
    tracked = ("target.x", "target.y", "target.z")

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self._places = np.zeros((num_envs, 3))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self._places[index] = position = np.append(
            random_position(rng, 0.15, 0.32, 1.0), rng.uniform(0.04, 0.18)
        )
        self._data[index].mocap_pos[self.model.body("target").mocapid[0]] = position
        return super().start(index, rng)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        distance = np.linalg.norm(self.tip(indices) - self._places[indices], axis=1)
        still = abs(self._qvel[indices, : len(self.action_names)]).max(1) < STILL_RAD_S
        done = (distance < CLOSE_M) & still
        return done.astype(np.float64), done, {"success": done, "distance": distance}

    def _track(self, indices: np.ndarray) -> np.ndarray:
        return self._add_tracker_noise(self._places[indices], indices)


class Push(Desk):
    """Push the puck to the goal. Success ends the episode with reward 1; other steps: 0.

    Observation [14]: joint angles, joint speeds, x and y of the puck, x and y of the goal.
    """

    max_episode_steps = 300
    tracked = ("puck.x", "puck.y", "goal.x", "goal.y")

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self._goals = np.zeros((num_envs, 2))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return an initial state with puck and goal in front of the arm, at least 0.08 m apart."""
        while True:
            puck, goal = (random_position(rng, 0.19, 0.28, 0.7) for _ in range(2))
            if np.linalg.norm(puck - goal) >= 0.08:
                break
        self._goals[index] = goal
        self._data[index].mocap_pos[self.model.body("target").mocapid[0]] = [*goal, 0]
        qpos, qvel = super().start(index, rng)
        qpos[-2:] = puck
        return qpos, qvel

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        distance = np.linalg.norm(self._qpos[indices, -2:] - self._goals[indices], axis=1)
        done = distance < CLOSE_M
        return done.astype(np.float64), done, {"success": done, "distance": distance}

    def _track(self, indices: np.ndarray) -> np.ndarray:
        puck = self._add_tracker_noise(self._qpos[indices, -2:], indices)
        return np.concatenate([puck, self._goals[indices]], 1)


def random_position(rng: np.random.Generator, near: float, far: float, side: float) -> np.ndarray:
    """Return a random position [2] m in front of the arm.

    The position is `near` to `far` m away, at most `side` rad to either side.
    """
    radius, angle = rng.uniform(near, far), rng.uniform(-side, side)
    return radius * np.array([np.cos(angle), np.sin(angle)])


ENVS = {"arm/reach": Reach, "arm/push": Push}

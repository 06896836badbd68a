"""The tabletop arm of configs/robot/desk.yaml, as the robot itself is driven: reach and push.

Joint targets 25 times a second; what the policy sees is what the robot has: its encoders, rounded
as the servos round, and a tracker's noisy reading of target or puck. Both tasks, the simulated
hardware and the safety layer's kinematics read one model.
"""

from functools import cache
from typing import Any

import numpy as np
import yaml

from envs.paths import share
from envs.physics import MujocoVectorEnv, compile_spec

TICK_RAD, TICK_RAD_S = 2 * np.pi / 4096, 0.229 * 2 * np.pi / 60  # of the servos' encoders
TRACKER_M = 0.0005  # deviation of a tracker's reading
CLOSE_M = 0.02  # the tip is at the target, or the puck at its goal, within it
STILL_RAD_S = 0.2  # and no joint is faster
TIP_M, PUCK_M = 0.01, 0.035  # radii


@cache
def robot(name: str = "desk") -> dict[str, Any]:
    """The robot's file: its limits, joints and model."""
    values: dict[str, Any] = yaml.safe_load((share("configs/robot") / f"{name}.yaml").read_text())
    return values


class Desk(MujocoVectorEnv):
    """Actions: joint targets, [-1, 1] for the robot's position limits, reached a period later.

    Between two targets the joints are led along a straight line, at most at the robot's speed.
    Names, units, limits and rate are those of the robot.
    """

    frame_skip = 20
    rate_hz = 25.0
    action_offset = 1.0
    camera = "desk"
    tracked: tuple[str, ...] = ()  # what is observed beside the joints, m
    action_low: np.ndarray
    action_high: np.ndarray

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        joints = robot()["joints"]
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
        self._targets = np.zeros((num_envs, len(joints)))  # that the servos have now, rad
        self._noise = [np.random.Generator(np.random.PCG64(0)) for _ in range(num_envs)]
        self._tip = self.model.site("tip").id

    def build(self) -> Any:
        import mujoco

        path = share("configs/robot") / robot()["model"]
        return compile_spec(mujoco.MjSpec.from_file(str(path)))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Near the pose in which the arm is made ready, at rest."""
        qpos = self.model.key("ready").qpos.copy()
        joints = len(self.action_names)
        qpos[:joints] += rng.uniform(-0.15, 0.15, joints)
        self._targets[index] = qpos[:joints]
        self._noise[index] = rng
        return qpos, np.zeros(self.model.nv)

    def _simulate_some(self, actions: np.ndarray, indices: np.ndarray) -> None:
        middle, half = (self.action_high + self.action_low) / 2, self._half
        pieces = 10
        for action, index in zip(actions, indices, strict=True):
            data, before = self._data[index], self._targets[index].copy()
            way = (middle + half * action - before).clip(-self._step_rad, self._step_rad)
            for k in range(1, pieces + 1):
                data.ctrl[:] = before + way * (k / pieces)
                self._mujoco.mj_step(self._models[index], data, self.frame_skip // pieces)
            self._targets[index] = before + way

    @property
    def _half(self) -> np.ndarray:
        return (self.action_high - self.action_low) / 2

    def action(self, angles: np.ndarray) -> np.ndarray:
        """The action for joint targets; [B, J] rad."""
        return (angles - (self.action_high + self.action_low) / 2) / self._half

    def tip(self, indices: np.ndarray) -> np.ndarray:
        """[B, 3] m."""
        return np.stack([self._data[index].site_xpos[self._tip] for index in indices])

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        joints = len(self.action_names)
        angles = np.rint(self._qpos[indices, :joints] / TICK_RAD) * TICK_RAD
        speeds = np.rint(self._qvel[indices, :joints] / TICK_RAD_S) * TICK_RAD_S
        return np.concatenate([angles, speeds, self._tracked(indices)], 1)

    def _tracked(self, indices: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _read_by_tracker(self, truth: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """With noise of each environment's own; [B, n] m."""
        noise = [self._noise[index].normal(0, TRACKER_M, truth.shape[1]) for index in indices]
        return truth + np.stack(noise)


class Reach(Desk):
    """Bring the tip to the target and stop there: reward 1, which ends the episode, else 0.

    Observation [13]: the joints' angles and speeds, the target.
    """

    max_episode_steps = 100
    tracked = ("target.x", "target.y", "target.z")

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self._places = np.zeros((num_envs, 3))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self._places[index] = place = np.append(
            on_table(rng, 0.15, 0.32, 1.0), rng.uniform(0.04, 0.18)
        )
        self._data[index].mocap_pos[self.model.body("target").mocapid[0]] = place
        return super().start(index, rng)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        apart = np.linalg.norm(self.tip(indices) - self._places[indices], axis=1)
        still = abs(self._qvel[indices, : len(self.action_names)]).max(1) < STILL_RAD_S
        done = (apart < CLOSE_M) & still
        return done.astype(np.float64), done, {"success": done, "distance": apart}

    def _tracked(self, indices: np.ndarray) -> np.ndarray:
        return self._read_by_tracker(self._places[indices], indices)


class Push(Desk):
    """Push the puck to the goal: reward 1 there, which ends the episode, else 0.

    Observation [14]: the joints' angles and speeds, the puck and the goal, x and y of each.
    """

    max_episode_steps = 300
    tracked = ("puck.x", "puck.y", "goal.x", "goal.y")

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self._goals = np.zeros((num_envs, 2))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Puck and goal in front of the arm, at least 0.08 m apart."""
        while True:
            puck, goal = (on_table(rng, 0.19, 0.28, 0.7) for _ in range(2))
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
        apart = np.linalg.norm(self._qpos[indices, -2:] - self._goals[indices], axis=1)
        done = apart < CLOSE_M
        return done.astype(np.float64), done, {"success": done, "distance": apart}

    def _tracked(self, indices: np.ndarray) -> np.ndarray:
        puck = self._read_by_tracker(self._qpos[indices, -2:], indices)
        return np.concatenate([puck, self._goals[indices]], 1)


def on_table(rng: np.random.Generator, near: float, far: float, side: float) -> np.ndarray:
    """A place in front of the arm, from `near` to `far` m, at most `side` rad aside; [2] m."""
    radius, angle = rng.uniform(near, far), rng.uniform(-side, side)
    return radius * np.array([np.cos(angle), np.sin(angle)])


ENVS = {"arm/reach": Reach, "arm/push": Push}

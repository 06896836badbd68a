"""A point and an ant that move from goal to goal among hazards, in our own MuJoCo models.

They are modeled on the Goal tasks of Safety-Gymnasium (arXiv:2310.12567). Hazards are discs without
contact. A step that ends inside one has info `cost` 1. Hazards, start and goals are drawn from the
episode's seed. The shortest way to a goal often leads through hazards, so a policy trades reward
for cost.
"""

from abc import abstractmethod
from typing import Any

import numpy as np

from envs.outcomes import CostFunction, Function, Outcomes, library, never
from envs.physics import MujocoVectorEnv, compile_spec
from envs.suites.mazes import ant_spec

# lengths in units of `Hazards.unit_m`
HALF = 2.4  # half the width of the walled square that the agent's center can reach
RADIUS = 0.4  # of a hazard
GOAL = 0.2  # a goal is reached within this distance
APART = 1.05  # minimum distance between the centers of two hazards
CLEAR = 0.15  # minimum distance of starts and goals from the edge of a hazard
LEG = 1.0  # minimum distance of a new goal
RANGE = 1.5  # distance from a hazard's edge at which the lidar reads 0
NUM_HAZARDS, NUM_BINS = 9, 16


class Hazards(MujocoVectorEnv):
    """Task of moving from goal to goal. A reached goal is replaced by a new one.

    Observation: all positions (the first two are x and y) and velocities, the goal relative to the
    agent (2, m), and a lidar (16). Reward: progress toward the goal in units of `unit_m`, plus 1 at
    the goal.
    """

    unit_m: float
    cost_limits = (10.0, 20.0, 40.0)
    frame_skip = 5

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (self.model.nq + self.model.nv + 2 + NUM_BINS,)
        self.hazards = np.zeros((num_envs, NUM_HAZARDS, 2))  # centers, m
        self.goals = np.zeros((num_envs, 2))  # m
        self._rngs = [np.random.default_rng(0)] * num_envs

    @abstractmethod
    def agent(self) -> Any:
        """Return the MjSpec of the agent on a plane."""

    @abstractmethod
    def pose(self, position: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return initial qpos [nq] and qvel [nv] of the agent at a position [2] m."""

    def build(self) -> Any:
        import mujoco

        spec, unit = self.agent(), self.unit_m
        face = (HALF + 0.1) * unit  # the agent's radius is about 0.1
        for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                size=[
                    (0.1 if x else HALF + 0.3) * unit,
                    (0.1 if y else HALF + 0.3) * unit,
                    unit / 4,
                ],
                pos=[x * (face + 0.1 * unit), y * (face + 0.1 * unit), unit / 4],
                contype=1,
                conaffinity=1,
                rgba=[0.7, 0.5, 0.3, 1],
            )
        discs = [("goal", GOAL, [0.2, 0.8, 0.2, 0.6])]
        discs += [(f"hazard{k}", RADIUS, [0.2, 0.2, 0.9, 0.5]) for k in range(NUM_HAZARDS)]
        for name, radius, color in discs:
            body = spec.worldbody.add_body(name=name, mocap=True)
            body.add_geom(
                type=mujoco.mjtGeom.mjGEOM_CYLINDER,
                size=[radius * unit, 0.01 * unit, 0],
                contype=0,
                conaffinity=0,
                rgba=color,
            )
        return compile_spec(spec)

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self._rngs[index] = rng
        self.hazards[index] = self.unit_m * draw_hazards(rng)
        position = self._free_place(index)
        self._sample_goal(index, position)
        discs = np.concatenate([self.goals[index, None], self.hazards[index]])
        self._data[index].mocap_pos[:, :2] = discs  # shown in images only
        return self.pose(position, rng)

    def _free_place(self, index: int) -> np.ndarray:
        """Return a random position [2] m outside the hazards."""
        limit = (HALF - 0.2) * self.unit_m
        while True:
            place = self._rngs[index].uniform(-limit, limit, 2)
            edges = np.linalg.norm(self.hazards[index] - place, axis=1) / self.unit_m - RADIUS
            if (edges > CLEAR).all():
                return place

    def _sample_goal(self, index: int, position: np.ndarray) -> None:
        """Sample a new goal, not too close to `position`."""
        while True:
            self.goals[index] = self._free_place(index)
            if np.linalg.norm(self.goals[index] - position) > LEG * self.unit_m:
                break
        self._data[index].mocap_pos[0, :2] = self.goals[index]

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        places, goals = self._qpos[indices, :2], self.goals[indices]
        rewards = progress(goals - before[:, :2], goals - places, self.unit_m)
        edges = edge_distances(self.hazards[indices] - places[:, None], self.unit_m)
        reached = np.linalg.norm(goals - places, axis=1) <= GOAL * self.unit_m
        for index in indices[reached]:
            self._sample_goal(index, self._qpos[index, :2])
        costs = (edges.min(1) < 0).astype(np.float64)
        return rewards, np.zeros(len(indices), bool), {"cost": costs}

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        places = self._qpos[indices, None, :2]
        scan = lidar(self.hazards[indices] - places, self.unit_m)
        goals = self.goals[indices] - places[:, 0]
        return np.concatenate([super()._observations(indices), goals, scan], 1)


def draw_hazards(rng: np.random.Generator) -> np.ndarray:
    """Return the centers of hazards that do not overlap, [NUM_HAZARDS, 2], in units."""
    limit = HALF - RADIUS
    while True:
        centers = np.empty((0, 2))
        for _ in range(100):
            center = rng.uniform(-limit, limit, 2)
            if (np.linalg.norm(centers - center, axis=1) >= APART).all():
                centers = np.append(centers, center[None], 0)
            if len(centers) == NUM_HAZARDS:
                return centers


def edge_distances(offsets: np.ndarray, unit_m: float) -> np.ndarray:
    """Return the distances [B, H] from hazards' edges, in units; negative inside.

    offsets: [B, H, 2] m, centers relative to the agent.
    """
    return np.linalg.norm(offsets, axis=2) / unit_m - RADIUS


def lidar(offsets: np.ndarray, unit_m: float) -> np.ndarray:
    """Return the lidar's readings [B, 16] for hazards at `offsets` [B, H, 2] m.

    A hazard reads 1 at its edge, more inside, and 0 at RANGE. As in Safety-Gymnasium, it is read in
    full in the sector of its center, and in the two adjacent sectors in proportion to its closeness
    to their borders, so that readings are continuous. Each sector has its largest reading.
    """
    readings = (1 - edge_distances(offsets, unit_m) / RANGE).clip(0)
    sectors = np.arctan2(offsets[..., 1], offsets[..., 0]) % (2 * np.pi) / (2 * np.pi) * NUM_BINS
    place = sectors.astype(int)
    share = sectors - place
    scan = np.zeros((len(offsets), NUM_BINS))
    rows = np.arange(len(offsets))[:, None]
    for shift, weight in ((0, 1.0), (1, share), (-1, 1 - share)):
        np.maximum.at(scan, (rows, (place + shift) % NUM_BINS), weight * readings)
    return scan


def progress(before: Any, after: Any, unit_m: float) -> Any:
    """Return the rewards [...] of steps that change the goal's offset, [..., 2] m."""
    xp = library(before)
    d0, d1 = (xp.hypot(x[..., 0], x[..., 1]) / unit_m for x in (before, after))
    return d0 - d1 + 1.0 * (d1 <= GOAL)


class PointHazards(Hazards):
    """Point moved by two forces. Observation [22]; at most 1 m/s, reached with a lag of 0.3 s."""

    unit_m = 1.0
    max_episode_steps = 400
    camera = "above"
    threads_help = False

    def agent(self) -> Any:
        import mujoco

        return mujoco.MjSpec.from_string(POINT)

    def pose(self, position: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return position, np.zeros(2)


class AntHazards(Hazards):
    """Ant of D4RL's mazes. Observation [47]. The episode ends when the ant is upside down."""

    unit_m = 4.0
    max_episode_steps = 500
    camera = "track"

    def agent(self) -> Any:
        return ant_spec()

    def pose(self, position: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        qpos = self.model.qpos0 + rng.uniform(-0.1, 0.1, self.model.nq)
        qpos[:2] = position
        return qpos, 0.1 * rng.standard_normal(self.model.nv)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        rewards, _, infos = super().outcome(indices, before, actions)
        return rewards, is_upside_down(self._qpos[indices]), infos


POINT = """<mujoco>
  <compiler inertiafromgeom="true"/>
  <option timestep="0.02" gravity="0 0 0" integrator="implicitfast"/>
  <worldbody>
    <light pos="0 0 5" dir="0 0 -1" directional="true"/>
    <camera name="above" pos="0 0 6.8"/>
    <geom type="plane" size="10 10 0.25" contype="0" conaffinity="0"/>
    <body name="point" pos="0 0 0.1">
      <geom type="sphere" size="0.1" mass="1" condim="1" contype="1" conaffinity="1"
            rgba="0.9 0.2 0.2 1"/>
      <joint name="x" type="slide" axis="1 0 0" damping="3.3"/>
      <joint name="y" type="slide" axis="0 1 0" damping="3.3"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="x" ctrlrange="-1 1" ctrllimited="true" gear="3.3"/>
    <motor joint="y" ctrlrange="-1 1" ctrllimited="true" gear="3.3"/>
  </actuator>
</mujoco>"""


def is_upside_down(observations: Any) -> Any:
    """True where the ant's torso is upside down. observations [..., O]: x, y, z, quaternion, …"""
    return 2 * (observations[..., 4] ** 2 + observations[..., 5] ** 2) > 1


def reward_of(size: int, unit_m: float) -> Function:
    """Return the reward as a function. size: numbers in the observation before the goal."""

    def reward(s: Any, a: Any, s2: Any) -> Any:
        goal = s[..., size : size + 2]
        return progress(goal, goal - (s2[..., :2] - s[..., :2]), unit_m)

    return reward


def cost(s: Any, a: Any, r: Any, s2: Any) -> Any:
    """Return 1 where the lidar reads more than 1, inside a hazard, else 0."""
    return 1.0 * (s2[..., -NUM_BINS:] > 1).any(-1)


def ant_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where the ant is upside down."""
    return is_upside_down(s2)


ENVS: dict[str, type[Hazards]] = {"safe/PointHazards": PointHazards, "safe/AntHazards": AntHazards}
OUTCOMES = {
    "safe/PointHazards": Outcomes({"task": never}, reward_of(4, PointHazards.unit_m)),
    "safe/AntHazards": Outcomes({"task": ant_falls}, reward_of(29, AntHazards.unit_m)),
}
COSTS: dict[str, CostFunction] = dict.fromkeys(ENVS, cost)

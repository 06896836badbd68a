"""Vectorized ant mazes and point mazes of D4RL, with D4RL's physics.

They follow `Farama-Foundation/D4RL:d4rl/locomotion/{maze_env,ant}.py` and
`d4rl/pointmaze/maze_model.py` (arXiv:2004.07219). The ant is Gymnasium's ant.xml, which differs
from D4RL's ant in time step and motors only. gymnasium-robotics has a different ant, different
noise and a different origin.

Differs from D4RL: all randomness comes from the episode's seed, and every version draws a new goal
per episode (in D4RL only v2 does).
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np

from envs.outcomes import Function, Outcomes, library, never
from envs.physics import MujocoVectorEnv, compile_spec, gymnasium_spec

# '#' wall, 'R' the ant's start, 'G' the goal. Rows increase with y in ant mazes and with x in point
# mazes. The point starts in any free cell.
MAPS = {
    "umaze": ("#####", "#R..#", "###.#", "#G..#", "#####"),
    "medium": (
        "########",
        "#R.##..#",
        "#..#...#",
        "##...###",
        "#..#...#",
        "#.#..#.#",
        "#...#.G#",
        "########",
    ),
    "large": (
        "############",
        "#R...#.....#",
        "#.##.#.#.#.#",
        "#......#...#",
        "#.####.###.#",
        "#..#.#.....#",
        "##.#.#.#.###",
        "#..#...#.G.#",
        "############",
    ),
    "eval-umaze": ("#####", "#..R#", "#.###", "#..G#", "#####"),
    "eval-medium": (
        "########",
        "#R....G#",
        "#.#.##.#",
        "#....#.#",
        "###..###",
        "#......#",
        "#..##..#",
        "########",
    ),
    "eval-large": (
        "############",
        "#R.#...#.G.#",
        "##.###.#.#.#",
        "#..#.#.....#",
        "#.##.#..##.#",
        "#......#...#",
        "#.##.#.#.###",
        "#....#.....#",
        "############",
    ),
    "open": ("#######", "#.....#", "#..G..#", "#.....#", "#######"),
}
GOAL_IN = {"umaze": (1, 1), "eval-umaze": (1, 3)}  # goal cells of point mazes that differ from 'G'
RADIUS = 0.5  # the goal is reached within this distance, m


def cells(maze: str, tiles: str) -> list[tuple[int, int]]:
    """Return (row, column) of every cell of the map with one of these tiles."""
    rows = enumerate(MAPS[maze])
    return [(i, j) for i, row in rows for j, tile in enumerate(row) if tile in tiles]


class Maze(MujocoVectorEnv):
    """Maze with reward 1 within RADIUS of the goal, else 0; or with a dense reward.

    maze: a key of MAPS. info `success`: the goal is reached.
    """

    dense = False

    def __init__(
        self, num_envs: int, *, maze: str, max_episode_steps: int, num_threads: int = 1
    ) -> None:
        self.maze, self.max_episode_steps = maze, max_episode_steps
        super().__init__(num_envs, num_threads=num_threads)
        self._goals = np.zeros((num_envs, 2))

    @abstractmethod
    def center(self, row: int, column: int) -> tuple[float, float]:
        """Return the center of a cell, m."""

    def cell(self, position: np.ndarray) -> tuple[int, int]:
        """Return the free cell nearest to a position [2] m."""
        free = cells(self.maze, ".RG")
        return min(free, key=lambda cell: np.linalg.norm(position - self.center(*cell)).item())

    def distance(self, indices: np.ndarray) -> np.ndarray:
        """Return the distances from the goal, [B] m."""
        return np.linalg.norm(self._qpos[indices, :2] - self._goals[indices], axis=1)


def ant_spec() -> Any:
    """Return the model of D4RL's ant on a plane."""
    spec = gymnasium_spec("ant.xml")
    spec.option.timestep = 0.02  # 0.01 in Gymnasium
    for motor in spec.actuators:
        motor.gear[0] = 30  # N m at action 1; 150 in Gymnasium
    return spec


class AntGoal(MujocoVectorEnv):
    """Training task for an ant on an open plane; reward: the ant's speed toward a goal, m/s.

    Observation [29]: positions without x and y (13), velocities (14), goal position relative to the
    ant (2, m). A reached goal is replaced by a new one 1 to 6 m away. The episode ends when the ant
    is upside down.
    """

    frame_skip, camera, max_episode_steps = 5, "track", 300
    hidden_positions = 2

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs, num_threads=num_threads)
        self.observation_shape = (self.model.nq + self.model.nv,)
        self._goals = np.zeros((num_envs, 2))
        self._rngs = [np.random.default_rng(0)] * num_envs

    def build(self) -> Any:
        return compile_spec(ant_spec())

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        qpos = self.model.qpos0 + rng.uniform(-0.1, 0.1, self.model.nq)
        self._rngs[index] = rng
        self._sample_goal(index, qpos[:2])
        return qpos, 0.1 * rng.standard_normal(self.model.nv)

    def _sample_goal(self, index: int, position: np.ndarray) -> None:
        """Sample a new goal around `position`."""
        angle, distance = self._rngs[index].uniform((-np.pi, 1), (np.pi, 6))
        self._goals[index] = position + distance * np.array([np.cos(angle), np.sin(angle)])

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        goals, qpos = self._goals[indices], self._qpos[indices]
        distances = [np.linalg.norm(q[:, :2] - goals, axis=1) for q in (before, qpos)]
        reached = distances[1] <= RADIUS
        for index in indices[reached]:
            self._sample_goal(index, self._qpos[index, :2])
        up = 1 - 2 * (qpos[:, 4] ** 2 + qpos[:, 5] ** 2)  # z component of the torso's z axis
        return (distances[0] - distances[1]) / self.dt_s, up < 0, {"success": reached}

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        ant = super()._observations(indices)
        return np.concatenate([ant, self._goals[indices] - self._qpos[indices, :2]], 1)


CELL = 4.0  # width of a cell of an ant maze, m


def ant_center(maze: str, row: int, column: int) -> tuple[float, float]:
    """Return the center of a cell of an ant maze, m. The start is the origin."""
    ((start_row, start_column),) = cells(maze, "R")
    return (column - start_column) * CELL, (row - start_row) * CELL


class AntMaze(Maze):
    """Ant maze; reaching the goal ends the episode.

    Observation [29]: positions (15), velocities (14). Cells are 4 m wide and the start is the
    origin. The goal is not observed.
    diverse: start in any free cell except the goal's, as in the collection of D4RL's diverse sets.
    """

    frame_skip, camera = 5, "track"

    def __init__(self, num_envs: int, *, diverse: bool = False, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self.diverse = diverse

    def build(self) -> Any:
        import mujoco

        spec, half = ant_spec(), CELL / 2
        for row, column in cells(self.maze, "#"):
            x, y = self.center(row, column)
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                size=[half, half, half / 2],
                pos=[x, y, half / 2],
                contype=1,
                conaffinity=1,
                rgba=[0.7, 0.5, 0.3, 1],
            )
        return compile_spec(spec)

    def center(self, row: int, column: int) -> tuple[float, float]:
        return ant_center(self.maze, row, column)

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        qpos = self.model.qpos0 + rng.uniform(-0.1, 0.1, self.model.nq)
        qvel = 0.1 * rng.standard_normal(self.model.nv)
        ((row, column),) = cells(self.maze, "G")
        offset = rng.uniform(0, CELL / 4, 2) + rng.uniform(0, 0.5, 2) * CELL / 4
        self._goals[index] = np.maximum(self.center(row, column) + offset, 0)
        if self.diverse:
            free = cells(self.maze, ".R")
            qpos[:2] += self.center(*free[rng.integers(len(free))])
        return qpos, qvel

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        reached = self.distance(indices) <= RADIUS
        return reached.astype(np.float64), reached, {"success": reached}


POINT = """<mujoco>
  <compiler inertiafromgeom="true" angle="radian"/>
  <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
  <default>
    <joint damping="1" limited="false"/>
    <geom friction=".5 .1 .1" density="1000" margin="0.002" condim="1" contype="2" conaffinity="1"/>
  </default>
  <worldbody>
    <geom name="ground" type="plane" size="40 40 0.25" pos="0 0 -0.1" contype="1" conaffinity="0"/>
    <body name="particle" pos="1.2 1.2 0">
      <geom type="sphere" size="0.1" contype="1" rgba="0 0 1 1"/>
      <joint name="ball_x" type="slide" axis="1 0 0"/>
      <joint name="ball_y" type="slide" axis="0 1 0"/>
    </body>
    {walls}
  </worldbody>
  <actuator>
    <motor joint="ball_x" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
    <motor joint="ball_y" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
  </actuator>
</mujoco>"""
WALL = '<geom type="box" size="0.5 0.5 0.2" pos="{x} {y} 0" rgba=".7 .5 .3 1"/>'


class PointMaze(Maze):
    """Point maze: a point moved by two forces. The episode does not end at the goal.

    Observation [4]: x, y, velocities. Cells are 1 m wide and (row, column) is (x, y). As in D4RL,
    the body's origin is at 1.2 and the cells' centers start at 1, so the point can come closer to
    the walls at low x and y.
    """

    frame_skip = 1
    threads_help = False
    MAX_SPEED = 5.0  # m/s; velocities are clipped to it before each step

    def center(self, row: int, column: int) -> tuple[float, float]:
        return float(row), float(column)

    def build(self) -> Any:
        import mujoco

        walls = [WALL.format(x=row + 1.0, y=column + 1.0) for row, column in cells(self.maze, "#")]
        return compile_spec(mujoco.MjSpec.from_string(POINT.format(walls="".join(walls))))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self._goals[index] = point_goal(self.maze)
        free = cells(self.maze, ".RG")
        position = free[rng.integers(len(free))] + rng.uniform(-0.1, 0.1, 2)
        return position, 0.1 * rng.standard_normal(2)

    def _simulate_some(self, actions: np.ndarray, indices: np.ndarray) -> None:
        for index in indices:
            self._data[index].qvel.clip(-self.MAX_SPEED, self.MAX_SPEED, self._data[index].qvel)
        super()._simulate_some(actions, indices)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        distance = self.distance(indices)
        reached = distance <= RADIUS
        rewards = point_reward(distance, self.dense)
        return rewards, np.zeros(len(indices), bool), {"success": reached}


class PointMazeNoVelocity(PointMaze):
    """Point maze whose velocities are hidden. Observation [2]: x, y.

    The velocity follows from the positions of past steps, so a policy needs a history.
    """

    def __init__(self, num_envs: int, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self.observation_shape = (2,)

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        return super()._observations(indices)[:, :2]


class DensePointMaze(PointMaze):
    """Point maze with reward exp(-distance)."""

    dense = True


def point_goal(maze: str) -> tuple[float, float]:
    """Return the goal of a point maze, m."""
    (goal,) = cells(maze, "G")
    row, column = GOAL_IN.get(maze, goal)
    return float(row), float(column)


def point_reward(distance: Any, dense: bool) -> Any:
    """Return the rewards of a point at these distances from the goal, m."""
    return library(distance).exp(-distance) if dense else 1.0 * (distance <= RADIUS)


def within(goal: tuple[float, float], radius: float) -> Function:
    """Return a function that is True within `radius` of the goal, m."""
    return lambda s, a, s2: distance_from(goal, s2) <= radius


def distance_from(goal: tuple[float, float], observations: Any) -> Any:
    """Return the distances of observed positions from the goal, m."""
    x, y = observations[..., 0] - goal[0], observations[..., 1] - goal[1]
    return library(x).hypot(x, y)


def ant_outcomes(maze: str) -> Outcomes:
    """Return the outcomes of an ant maze.

    An episode ends within 0.5 m of its goal. The goal is sampled for each episode, up to 1.5 m in x
    and y from the center of its cell, and is not observed. These functions use the mean goal, so
    `task` is not exact, and the reward is not known. `published` is the function of LEQ
    (`kwanyoungpark/LEQ`). In RAMBO, rollouts of ant mazes never end. In D4RL's files, the ant walks
    on after it has reached the goal, and `terminals` marks all positions within 0.5 m of it.
    """
    ((row, column),) = cells(maze, "G")
    x, y = ant_center(maze, row, column)
    goal = max(x + 0.75, 0.0), max(y + 0.75, 0.0)
    return Outcomes({"task": within(goal, RADIUS), "published": within(goal, 0.25)})


def point_outcomes(maze: str, dense: bool) -> Outcomes:
    """Return the outcomes of a point maze, whose episodes continue at the goal."""
    goal = point_goal(maze)
    return Outcomes({"task": never}, lambda s, a, s2: point_reward(distance_from(goal, s2), dense))


# time limits of the point mazes' versions v0 and v1, steps
LIMITS = {"open": (150,), "umaze": (150, 300), "medium": (250, 600), "large": (600, 800)}


def _envs() -> dict[str, Any]:
    """Return the tasks by name.

    Names: `Ant-goal`, `AntMaze-<map>[-diverse]`, `PointMaze[Dense|NoVelocity]-<map>-v<version>`.
    """
    table: dict[str, Any] = {"Ant-goal": AntGoal}
    for size, limits in LIMITS.items():
        points = {"PointMaze": PointMaze, "PointMazeDense": DensePointMaze}
        points["PointMazeNoVelocity"] = PointMazeNoVelocity
        for name, cls in points.items():
            for version, steps in enumerate(limits):
                kind = partial(cls, maze=size, max_episode_steps=steps)
                table[f"{name}-{size}-v{version}"] = kind
            if size != "open":
                kind = partial(cls, maze=f"eval-{size}", max_episode_steps=limits[1])
                table[f"{name}-eval-{size}-v1"] = kind
        for maze in (size, f"eval-{size}") if size != "open" else ():
            steps = 700 if size == "umaze" else 1000
            for ending in ("", "-diverse"):
                table[f"AntMaze-{maze}{ending}"] = partial(
                    AntMaze, maze=maze, max_episode_steps=steps, diverse=ending != ""
                )
    return table


def _outcomes() -> dict[str, Outcomes]:
    """Return the outcomes of the mazes by the names of the tasks."""
    table = {}
    for name, kind in ENVS.items():
        if name.startswith("AntMaze-"):
            table[name] = ant_outcomes(kind.keywords["maze"])
        elif name.startswith("PointMaze"):
            dense = name.startswith("PointMazeDense-")
            table[name] = point_outcomes(kind.keywords["maze"], dense)
    return table


ENVS = _envs()
OUTCOMES = _outcomes()

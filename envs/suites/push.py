"""Fast manipulation environment: a planar arm pushes a puck to a goal on a table.

Few degrees of freedom and spherical contacts allow thousands of steps per second. Several
embodiments allow a policy of one arm to be tested on another. The reward is sparse.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from envs.physics import MujocoVectorEnv, compile_spec


@dataclass(frozen=True)
class Arm:
    """An embodiment. The arm hangs over the table, so only its tip touches the puck."""

    links: tuple[float, ...]  # m
    max_speed: float = 2.5  # speed limit of every joint, rad/s
    reach: float = 2.9  # an angle, not a length: joint angles are in [-reach, reach], rad


ARMS = {
    "standard": Arm((0.30, 0.30)),
    "short": Arm((0.27, 0.27)),
    "long": Arm((0.36, 0.34)),
    "slow": Arm((0.30, 0.30), max_speed=1.5),
    "three": Arm((0.22, 0.22, 0.18)),
}
TIP, PUCK = 0.02, 0.04  # radii, m
CLOSE = 0.03  # success: maximum distance of puck and goal, m
BACKGROUND = 235
MARGIN = 0.25  # the puck may come to rest this far beyond the stretched arm's tip, m


class Frame(NamedTuple):
    """Region shown by a square image from above, with the arm's base at half the image's height."""

    size: int  # side, pixels
    width: float  # side, m
    left: float  # distance from the left side to the arm's base, m


CAMERA = Frame(96, 0.9, 0.15)  # for observed images, which show puck and goal, not the whole arm


def model_xml(arm: Arm) -> str:
    """Return the MuJoCo XML: velocity-controlled links in a chain, and a puck with damping."""
    chain, end = "", ""
    for k, length in enumerate(arm.links):
        at = f'pos="{arm.links[k - 1]} 0 0"' if k else 'pos="0 0 0.1"'
        chain += (
            f'<body name="link{k}" {at}><joint name="joint{k}" type="hinge" axis="0 0 1" '
            f'range="{-arm.reach} {arm.reach}" damping="0.2" armature="0.02"/>'
            f'<geom type="capsule" fromto="0 0 0 {length} 0 0" size="0.015" mass="0.3"/>'
        )
        end += "</body>"
    chain += (
        f'<geom name="tip" type="sphere" size="{TIP}" pos="{arm.links[-1]} 0 0" mass="0.05" '
        'contype="1" conaffinity="1"/>'
        f'<site name="tip" pos="{arm.links[-1]} 0 0"/>'
    )
    motors = "".join(
        f'<velocity joint="joint{k}" kv="4" ctrlrange="{-arm.max_speed} {arm.max_speed}"/>'
        for k in range(len(arm.links))
    )
    return f"""<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.01" gravity="0 0 0" integrator="implicitfast"/>
  <default><geom contype="0" conaffinity="0" condim="1" solref="0.02 1"/></default>
  <worldbody>
    {chain}{end}
    <body name="puck" pos="0 0 0.1">
      <joint name="puck_x" type="slide" axis="1 0 0" damping="4"/>
      <joint name="puck_y" type="slide" axis="0 1 0" damping="4"/>
      <geom name="puck" type="sphere" size="{PUCK}" mass="0.2" contype="1" conaffinity="1"/>
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
</mujoco>"""


class Push(MujocoVectorEnv):
    """Push the puck to the goal. Success ends the episode with reward 1; other steps: 0.

    Actions: joint speeds as fractions of the arm's limit, at 20 Hz.
    Observation [3 J + 8]: cos and sin of the J joint angles, joint speeds (rad/s), then x and y of
    tip (m), puck (m), puck velocity (m/s) and goal (m).
    """

    frame_skip = 5
    max_episode_steps = 150

    def __init__(self, num_envs: int, *, arm: str = "standard", num_threads: int = 1) -> None:
        self.arm = ARMS[arm]
        super().__init__(num_envs, num_threads=num_threads)
        joints = len(self.arm.links)
        self.observation_shape = (3 * joints + 8,)
        self._goals = np.zeros((num_envs, 2))
        self._speeds = np.full(joints, self.arm.max_speed)

    def build(self) -> Any:
        import mujoco

        return compile_spec(mujoco.MjSpec.from_string(model_xml(self.arm)))

    def start(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return an initial state with the arm folded to a side.

        Puck and goal are in front of the arm, at least 0.12 m apart.
        """
        joints = len(self.arm.links)
        side = rng.choice([-1.0, 1.0])
        fold = np.array([1.6, -1.8, -0.6])[:joints] * side
        while True:
            puck, goal = (random_position(rng) * sum(self.arm.links) for _ in range(2))
            if np.linalg.norm(puck - goal) >= 0.12:
                break
        self._goals[index] = goal
        qpos = np.concatenate([fold + rng.uniform(-0.1, 0.1, joints), puck])
        return qpos, np.zeros(joints + 2)

    def _simulate_some(self, actions: np.ndarray, indices: np.ndarray) -> None:
        super()._simulate_some(actions * self._speeds, indices)

    def outcome(
        self, indices: np.ndarray, before: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        distance = np.linalg.norm(self._qpos[indices, -2:] - self._goals[indices], axis=1)
        done = distance < CLOSE
        return done.astype(np.float64), done, {"success": done, "distance": distance}

    def full_state(self, indices: np.ndarray) -> np.ndarray:
        """Return the complete state [B, 3 J + 8], which is the observation without images."""
        puck, velocity = self._qpos[indices, -2:], self._qvel[indices, -2:]
        return np.concatenate([self.arm_state(indices), puck, velocity, self._goals[indices]], 1)

    def arm_state(self, indices: np.ndarray) -> np.ndarray:
        """Return cos and sin of the angles, joint speeds and tip position, [B, 3 J + 2]."""
        angles, speeds = self._qpos[indices, :-2], self._qvel[indices, :-2]
        tip = joint_positions(self.arm, angles)[:, -1]
        return np.concatenate([np.cos(angles), np.sin(angles), speeds, tip], 1)

    def _observations(self, indices: np.ndarray) -> Any:
        return self.full_state(indices)

    def render(self, index: int = 0, frame: Frame | None = None) -> np.ndarray:
        """Return an image of the region `frame`, [size, size, 3] uint8.

        No graphics driver is needed. The default region has 640 x 640 pixels and shows everything
        that the arm and the puck can reach.
        """
        if frame is None:
            reach = sum(self.arm.links) + MARGIN
            frame = Frame(640, 2 * reach, reach)
        qpos = self._qpos[index]
        return draw_image(
            joint_positions(self.arm, qpos[None, :-2])[0], qpos[-2:], self._goals[index], frame
        )


def random_position(rng: np.random.Generator) -> np.ndarray:
    """Return a random position [2] in front of the arm, in units of the arm's length."""
    radius, angle = rng.uniform(0.5, 0.75), rng.uniform(-0.9, 0.9)
    return radius * np.array([np.cos(angle), np.sin(angle)])


def joint_positions(arm: Arm, angles: np.ndarray) -> np.ndarray:
    """Return the positions of base, joints and tip [B, J + 1, 2] m for angles [B, J] rad."""
    heading = np.cumsum(angles, 1)
    steps = np.stack([np.cos(heading), np.sin(heading)], -1) * np.array(arm.links)[:, None]
    return np.concatenate([np.zeros((len(angles), 1, 2)), np.cumsum(steps, 1)], 1)


def draw_image(arm: np.ndarray, puck: np.ndarray, goal: np.ndarray, frame: Frame) -> np.ndarray:
    """Return an image of arm, puck and goal. arm: joint positions [J + 1, 2] m."""
    x, y = pixel_positions(frame)
    size, pixel = frame.size, frame.width / frame.size
    image = np.full((size, size, 3), BACKGROUND, np.uint8)

    def paint(
        start: np.ndarray, end: np.ndarray, radius: float, color: tuple[int, ...], width: float = 0
    ) -> None:
        """Fill the area within `radius` of a segment; with `width`, draw only its outline."""
        outer = radius + width / 2 + pixel  # nothing is painted farther away
        low, high = np.minimum(start, end) - outer, np.maximum(start, end) + outer
        columns = slice(*np.searchsorted(x, (low[0], high[0])))
        rows = slice(*np.searchsorted(-y, (-high[1], -low[1])))
        dx, dy = x[columns] - start[0], (y[rows] - start[1])[:, None]  # [w], [h, 1]
        if (length := float(np.hypot(*(end - start)))) > 0:
            east, north = (end - start) / length
            along = (dx * east + dy * north).clip(0, length)
            dx, dy = dx - along * east, dy - along * north
        distance = np.hypot(dx, dy) - radius
        distance = abs(distance) - width / 2 if width else distance
        share = (0.5 - distance / pixel).clip(0, 1)[..., None]
        part = image[rows, columns]
        part[:] = part * (1 - share) + np.asarray(color) * share

    paint(goal, goal, CLOSE + 0.01, (60, 160, 80), width=0.016)
    paint(puck, puck, PUCK, (205, 75, 60))
    for start, end in zip(arm[:-1], arm[1:], strict=True):
        paint(start, end, 0.015, (70, 80, 105))
    paint(arm[-1], arm[-1], TIP, (25, 30, 45))
    return image


@cache
def pixel_positions(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Return the centers of an image's columns from the left and rows from the top, in m."""
    centers = (np.arange(frame.size) + 0.5) * (frame.width / frame.size)
    return centers - frame.left, frame.width / 2 - centers


class PushPixels(Push):
    """Push task with an image from above and the arm's state as observation.

    Channels: `picture` [96, 96, 3] uint8, and `state` [3 J + 2], the first numbers of `Push`'s
    observation. Puck and goal are visible in the image only.
    """

    frame = CAMERA

    def __init__(self, num_envs: int, *, arm: str = "standard", num_threads: int = 1) -> None:
        super().__init__(num_envs, arm=arm, num_threads=num_threads)
        state = (3 * len(self.arm.links) + 2,)
        self.observation_shape = {"picture": (self.frame.size,) * 2 + (3,), "state": state}

    def _observations(self, indices: np.ndarray) -> Any:
        images = np.stack([self.render(index, self.frame) for index in indices])
        return {"picture": images, "state": self.arm_state(indices)}


KINDS: dict[str, type[Push]] = {"": Push, "-pixels": PushPixels}
ENVS = {f"push/{arm}{end}": partial(kind, arm=arm) for end, kind in KINDS.items() for arm in ARMS}

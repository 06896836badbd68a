"""Scripted expert for the tabletop arm tasks. It uses the observation only."""

import numpy as np

from envs.experts.pushing import Pushing
from envs.experts.skilled import Skilled
from envs.suites.arm import PUCK_M, TIP_M, Desk, Push

UPPER_M, FORE_M, HAND_M = 0.2, 0.2, 0.13  # link lengths; the hand includes its stick
SHOULDER_M = 0.12  # height above the table
LAG_S = 0.051  # delay of a joint behind its target: (kv + damping) / kp of the model
# within the robot's limits: joint speed (rad/s), gain (1/s), increase of speed (rad/s per step)
SPEED, GAIN, SPEED_INCREASE = 1.2, 4.0, 0.25
PUSH_HEIGHT_M = 0.035  # height of the tip while it pushes
# standard deviation of the noise on joint targets, so that the data also show recovery from errors
TARGET_NOISE_RAD = 0.008
PUSHING = Pushing(
    touch_m=TIP_M + PUCK_M,
    behind=0.6,
    aside=0.3,
    forward=0.12,
    to_line=4,
    around=0.2,
    to_ring=6,
    near_m=0.03,
    to_point=5,
)


class ArmExpert(Skilled):
    """Expert for `arm/reach` and `arm/push`.

    Reach: move the stick, pointing straight down, to the target. Push: go around the puck, then
    push through it. Noise is added to the joint targets, as in Laskey et al., CoRL 2017,
    arXiv:1703.09327: a policy trained by imitation of a noise-free expert sees none of the states
    that its own errors lead to.

    skill: in [0, 1]. Below 1, the target is off by up to 0.1 (1 - skill) m for the complete
    episode, and every action has noise with standard deviation (1 - skill) / 20.
    """

    def __init__(self, env: Desk, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.env, self.pushes = env, isinstance(env, Push)
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """Start new episodes in `num_envs` environments."""
        self._offset = self.goal_offset(num_envs, 0.1)

    def __call__(self, observations: np.ndarray, indices: np.ndarray | None = None) -> np.ndarray:
        """Return actions [B, J] for observations [B, O] of the environments `indices`."""
        joints = len(self.env.action_names)
        states = observations.astype(np.float64)
        angles, speeds, rest = np.split(states, [joints, 2 * joints], axis=1)
        offset = self._offset[np.arange(len(states)) if indices is None else indices]
        if self.pushes:
            tip = forward_kinematics(angles)
            velocity = PUSHING.velocity(tip[:, :2], rest[:, :2], rest[:, 2:] + offset)
            goal = np.column_stack([tip[:, :2] + 0.15 * velocity, np.full(len(tip), PUSH_HEIGHT_M)])
        else:
            goal = rest + np.column_stack([offset, 0 * offset[:, :1]])
        targets = next_targets(inverse_kinematics(goal), angles, speeds, 1 / self.env.rate_hz)
        targets += TARGET_NOISE_RAD * self._rng.standard_normal(targets.shape)
        actions = self.env.action(targets)
        return self.add_noise(actions, 20)


def forward_kinematics(angles: np.ndarray) -> np.ndarray:
    """Return the tip position [B, 3] m for joint angles [B, 5] rad."""
    tilt = np.cumsum(angles[:, 1:4], 1)  # angle between each link and the vertical
    links = np.array([UPPER_M, FORE_M, HAND_M])
    reach, height = (np.sin(tilt) * links).sum(1), (np.cos(tilt) * links).sum(1) + SHOULDER_M
    waist = angles[:, 0]
    return np.column_stack([reach * np.cos(waist), reach * np.sin(waist), height])


def inverse_kinematics(tip: np.ndarray) -> np.ndarray:
    """Return joint angles [B, 5] rad that bring the tip to positions [B, 3] m.

    The stick points straight down and the elbow is up. For an unreachable position, the angles are
    those of the nearest reachable one.
    """
    out, up = np.linalg.norm(tip[:, :2], axis=1), tip[:, 2] + HAND_M - SHOULDER_M
    cosine = (out**2 + up**2 - UPPER_M**2 - FORE_M**2) / (2 * UPPER_M * FORE_M)
    elbow = np.arccos(cosine.clip(-0.85, 1))
    inner = np.arctan2(FORE_M * np.sin(elbow), UPPER_M + FORE_M * np.cos(elbow))
    shoulder = np.arctan2(out, up) - inner
    waist = np.arctan2(tip[:, 1], tip[:, 0])
    return np.column_stack([waist, shoulder, elbow, np.pi - shoulder - elbow, 0 * waist])


def next_targets(
    goal: np.ndarray, angles: np.ndarray, speeds: np.ndarray, period_s: float
) -> np.ndarray:
    """Return the next joint targets [B, 5] rad toward `goal`; all joints arrive together.

    Moving joints lag behind their targets. The targets therefore lead the joints by the lag at the
    desired velocity. The desired velocity is computed from the positions; the measured velocity
    only limits its increase per step. Extrapolating the measured motion would accumulate errors.
    """
    error = goal - angles
    velocity = error * np.minimum(GAIN, SPEED / np.maximum(abs(error).max(1, keepdims=True), 1e-9))
    limit = abs(speeds) + SPEED_INCREASE
    velocity *= (limit / np.maximum(abs(velocity), 1e-9)).min(1, keepdims=True).clip(max=1)
    return angles + (LAG_S + period_s) * velocity


EXPERTS = {"arm": ArmExpert}  # keys: names in recipes

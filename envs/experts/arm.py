"""Who reaches and pushes with the tabletop arm, from what it observes alone."""

import numpy as np

from envs.experts.pushing import Pushing
from envs.experts.skilled import Skilled
from envs.suites.arm import PUCK_M, TIP_M, Desk, Push

UPPER_M, FORE_M, HAND_M = 0.2, 0.2, 0.13  # the links; the hand with its stick
SHOULDER_M = 0.12  # above the table
LAG_S = 0.051  # of a joint behind its target: (kv + damping) / kp of the model
SPEED, GAIN, SPEEDING_UP = 1.2, 4.0, 0.25  # rad/s, 1/s, rad/s in a step: inside the robot's limits
LOW_M = 0.035  # the tip's height while it pushes
SHAKE_RAD = 0.008  # of its hand at each step: so its data shows the way back, too
PUSHING = Pushing(
    touch_m=TIP_M + PUCK_M,
    behind=0.6,
    beside=0.3,
    forward=0.12,
    to_line=4,
    around=0.2,
    to_ring=6,
    near_m=0.03,
    to_place=5,
)


class ArmExpert(Skilled):
    """Reach: the stick straight down to the target. Push: around the puck, then through it.

    Its hand shakes, as in Laskey et al., CoRL 2017, arXiv:1703.09327: whoever clones one that never
    does learns nothing of the states that its own errors lead to.

    skill: in [0, 1]; below 1 it takes the target to be up to 0.1 (1 - skill) m elsewhere, a whole
    episode long, and every action has noise of deviation (1 - skill) / 20.
    """

    def __init__(self, env: Desk, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.env, self.pushes = env, isinstance(env, Push)
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New episodes in `num_envs` environments."""
        self._astray = self.astray(num_envs, 0.1)

    def __call__(self, observations: np.ndarray, indices: np.ndarray | None = None) -> np.ndarray:
        """[B, O] -> actions [B, J]; indices: of the environments they come from."""
        joints = len(self.env.action_names)
        seen = observations.astype(np.float64)
        angles, speeds, rest = np.split(seen, [joints, 2 * joints], axis=1)
        astray = self._astray[np.arange(len(seen)) if indices is None else indices]
        if self.pushes:
            tip = forward(angles)
            way = PUSHING.velocity(tip[:, :2], rest[:, :2], rest[:, 2:] + astray)
            goal = np.column_stack([tip[:, :2] + 0.15 * way, np.full(len(tip), LOW_M)])
        else:
            goal = rest + np.column_stack([astray, 0 * astray[:, :1]])
        targets = next_targets(inverse(goal), angles, speeds, 1 / self.env.rate_hz)
        targets += SHAKE_RAD * self._rng.standard_normal(targets.shape)
        actions = self.env.action(targets)
        return self.noisy(actions, 20)


def forward(angles: np.ndarray) -> np.ndarray:
    """The tip; [B, 5] rad -> [B, 3] m."""
    tilt = np.cumsum(angles[:, 1:4], 1)  # of each link from upright
    links = np.array([UPPER_M, FORE_M, HAND_M])
    reach, height = (np.sin(tilt) * links).sum(1), (np.cos(tilt) * links).sum(1) + SHOULDER_M
    waist = angles[:, 0]
    return np.column_stack([reach * np.cos(waist), reach * np.sin(waist), height])


def inverse(tip: np.ndarray) -> np.ndarray:
    """Joint angles that bring the tip there with the stick straight down, the elbow up.

    [B, 3] m -> [B, 5] rad; the nearest that the links reach.
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
    """The next joint targets on the way to `goal`, all joints alike; [B, 5] rad.

    As far ahead of the joints as they lag behind targets that move at the speed that is wanted.
    Where they are decides, how fast they are only that they speed up smoothly: to continue a motion
    because it is there would add up every error.
    """
    way = goal - angles
    wanted = way * np.minimum(GAIN, SPEED / np.maximum(abs(way).max(1, keepdims=True), 1e-9))
    most = abs(speeds) + SPEEDING_UP
    wanted *= (most / np.maximum(abs(wanted), 1e-9)).min(1, keepdims=True).clip(max=1)
    return angles + (LAG_S + period_s) * wanted


EXPERTS = {"arm": ArmExpert}  # by their names in recipes

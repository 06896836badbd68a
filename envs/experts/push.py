"""Scripted expert that pushes the puck to its goal."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.experts.pushing import Pushing
from envs.experts.skilled import Skilled
from envs.suites.push import PUCK, TIP, Push, joint_positions

PUSHING = Pushing(
    touch_m=TIP + PUCK,
    behind=0.5,
    aside=0.35,
    forward=0.25,
    to_line=6,
    around=0.5,
    to_ring=8,
    near_m=0.05,
    to_point=8,
)


class PushExpert(Skilled):
    """Expert that goes around the puck to its far side and pushes it along the line to the goal.

    skill: in [0, 1]. Below 1, the goal is off by up to 0.15 (1 - skill) m for the complete episode,
    and every action has noise with standard deviation (1 - skill) / 2.
    """

    def __init__(self, env: Push, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.arm, self.env = env.arm, env
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """Start new episodes in `num_envs` environments."""
        self._offset = self.goal_offset(num_envs, 0.15)

    def __call__(self, observations: Any, indices: np.ndarray | None = None) -> np.ndarray:
        """Return actions [B, J] for observations [B, O] of the environments `indices`.

        If the observations contain images, the simulator's state is used instead.
        """
        joints = len(self.arm.links)
        if isinstance(observations, Mapping):
            every = np.arange(self.env.num_envs) if indices is None else indices
            observations = self.env.full_state(every).astype(np.float32)
        angles = np.arctan2(observations[:, joints : 2 * joints], observations[:, :joints])
        pairs = observations[:, 3 * joints :].astype(np.float64).reshape(-1, 4, 2)
        indices = np.arange(len(angles)) if indices is None else indices
        velocity = PUSHING.velocity(pairs[:, 0], pairs[:, 1], pairs[:, 3] + self._offset[indices])
        return self.joint_speeds(angles.astype(np.float64), velocity)

    def joint_speeds(self, angles: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return joint speeds [B, J], as fractions of the limit, that give the tip `velocity`.

        They are computed by damped least squares from the tip's Jacobian.
        """
        at = joint_positions(self.arm, angles)
        lever = at[:, -1:] - at[:, :-1]  # [B, J, 2]
        jacobian = np.stack([-lever[..., 1], lever[..., 0]], 1)  # [B, 2, J]
        gram = jacobian @ jacobian.swapaxes(1, 2) + 1e-4 * np.eye(2)
        speeds = (jacobian.swapaxes(1, 2) @ np.linalg.solve(gram, velocity[..., None]))[..., 0]
        share = speeds / self.arm.max_speed
        # beyond the limit, slow down all joints alike, so that the tip's direction stays the same
        share /= np.maximum(abs(share).max(1, keepdims=True), 1)
        return self.add_noise(share)


EXPERTS = {"push": PushExpert}  # keys: names in recipes

"""Who pushes the puck to its goal."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.experts.skilled import Skilled
from envs.suites.push import PUCK, TIP, Push, points, unit


class PushExpert(Skilled):
    """Goes around the puck to its far side and pushes it along the line to the goal.

    skill: in [0, 1]; below 1 it takes the goal to be up to 0.15 (1 - skill) m elsewhere, a whole
    episode long, and every action has noise of deviation (1 - skill) / 2.
    """

    def __init__(self, env: Push, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.arm, self.env = env.arm, env
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New episodes in `num_envs` environments."""
        angle = self._rng.uniform(0, 2 * np.pi, num_envs)
        far = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, num_envs)
        self._astray = far[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)  # m

    def __call__(self, observations: Any, indices: np.ndarray | None = None) -> np.ndarray:
        """[B, obs] -> actions [B, J]; indices: of the environments they come from.

        Where these show pictures, it looks at what they are of.
        """
        joints = len(self.arm.links)
        if isinstance(observations, Mapping):
            every = np.arange(self.env.num_envs) if indices is None else indices
            observations = self.env.everything(every).astype(np.float32)
        angles = np.arctan2(observations[:, joints : 2 * joints], observations[:, :joints])
        pairs = observations[:, 3 * joints :].astype(np.float64).reshape(-1, 4, 2)
        indices = np.arange(len(angles)) if indices is None else indices
        want = self.tip_velocity(pairs[:, 0], pairs[:, 1], pairs[:, 3] + self._astray[indices])
        return self.joint_speeds(angles.astype(np.float64), want)

    def tip_velocity(self, tip: np.ndarray, puck: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """[B, 2] m/s: around the puck until behind it, then through it."""
        way = unit(goal - puck)
        side = np.stack([-way[:, 1], way[:, 0]], 1)
        offset = tip - puck  # from the puck's middle
        behind, beside = -(offset * way).sum(1), (offset * side).sum(1)
        touch = TIP + PUCK
        aligned = (behind > 0.5 * touch) & (abs(beside) < 0.35 * touch)
        # pushing: forward, and towards the line the more it is off it
        push = 0.25 * way - (6 * beside[:, None]) * side
        # going around: along a circle of some clearance towards the point behind
        radius = np.linalg.norm(offset, axis=1, keepdims=True)
        out = offset / np.maximum(radius, 1e-6)
        tangent = np.stack([-out[:, 1], out[:, 0]], 1)
        turn = np.where((tangent * -way).sum(1) > 0, 1.0, -1.0)[:, None]
        ring = touch + 0.025
        around = 0.5 * turn * tangent + 8 * (ring - radius).clip(-0.05, 0.05) * out
        place = puck - ring * way
        near = np.linalg.norm(tip - place, axis=1) < 0.05
        around = np.where(near[:, None], 8 * (place - tip), around)
        return np.where(aligned[:, None], push, around)

    def joint_speeds(self, angles: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Damped least squares on the tip's Jacobian; shares of the limit, [B, J]."""
        at = points(self.arm, angles)
        lever = at[:, -1:] - at[:, :-1]  # [B, J, 2]
        jacobian = np.stack([-lever[..., 1], lever[..., 0]], 1)  # [B, 2, J]
        gram = jacobian @ jacobian.swapaxes(1, 2) + 1e-4 * np.eye(2)
        speeds = (jacobian.swapaxes(1, 2) @ np.linalg.solve(gram, velocity[..., None]))[..., 0]
        share = speeds / self.arm.max_speed
        share /= np.maximum(abs(share).max(1, keepdims=True), 1)  # slower, in the same direction
        return self.noisy(share)


EXPERTS = {"push": PushExpert}  # by their names in recipes

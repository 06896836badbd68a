"""Controller that pushes a puck over a table to its goal with the tip of an arm."""

from dataclasses import dataclass

import numpy as np

CLEARANCE_M = 0.025  # gap between tip and puck while the tip goes around the puck


@dataclass(frozen=True)
class Pushing:
    """Controller that moves the tip around the puck to the side away from the goal, then pushes.

    Speeds are in m/s, gains in 1/s.
    """

    touch_m: float  # distance between the centers of tip and puck when they touch
    behind: float  # minimum distance behind the puck for pushing, as a fraction of touch_m
    aside: float  # maximum distance from the line to the goal for pushing, same fraction
    forward: float  # speed while pushing
    to_line: float  # gain toward the line while pushing
    around: float  # speed while going around the puck
    to_ring: float  # gain toward the circle around the puck
    near_m: float  # within this distance of the point behind the puck, go straight to it
    to_point: float  # gain of the straight motion to that point

    def velocity(self, tip: np.ndarray, puck: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Return the tip velocity [B, 2] m/s; all arguments are [B, 2] m."""
        direction = normalize(goal - puck)
        side = np.stack([-direction[:, 1], direction[:, 0]], 1)
        offset = tip - puck
        behind, aside = -(offset * direction).sum(1), (offset * side).sum(1)
        aligned = behind > self.behind * self.touch_m
        aligned &= abs(aside) < self.aside * self.touch_m
        # pushing: forward, and back toward the line in proportion to the distance from it
        push = self.forward * direction - (self.to_line * aside[:, None]) * side
        # going around: along a circle with clearance, toward the point behind the puck
        radius = np.linalg.norm(offset, axis=1, keepdims=True)
        out = offset / np.maximum(radius, 1e-6)
        tangent = np.stack([-out[:, 1], out[:, 0]], 1)
        turn = np.where((tangent * -direction).sum(1) > 0, 1.0, -1.0)[:, None]
        ring = self.touch_m + CLEARANCE_M
        around = self.around * turn * tangent
        around = around + self.to_ring * (ring - radius).clip(-0.05, 0.05) * out
        point = puck - ring * direction
        near = np.linalg.norm(tip - point, axis=1) < self.near_m
        around = np.where(near[:, None], self.to_point * (point - tip), around)
        return np.where(aligned[:, None], push, around)


def normalize(x: np.ndarray) -> np.ndarray:
    """Return the vectors [..., 2] scaled to length 1."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)

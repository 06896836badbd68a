"""How a tip pushes a puck over a table to its goal."""

from dataclasses import dataclass

import numpy as np

CLEARANCE_M = 0.025  # between tip and puck on the way round it


@dataclass(frozen=True)
class Pushing:
    """Around the puck until behind it, then through it; speeds in m/s, gains in 1/s."""

    touch_m: float  # between the middles of tip and puck where they touch
    behind: float  # share of that by which the tip has to be behind the puck to push
    beside: float  # and may be beside the line to the goal
    forward: float  # speed of pushing
    to_line: float  # gain toward the line while pushing
    around: float  # speed of going round
    to_ring: float  # gain toward the circle on which it goes round
    near_m: float  # from the place behind the puck, within which it goes straight there
    to_place: float  # and with which gain

    def velocity(self, tip: np.ndarray, puck: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """The tip's, [B, 2] m/s; all arguments [B, 2] m."""
        way = unit(goal - puck)
        side = np.stack([-way[:, 1], way[:, 0]], 1)
        offset = tip - puck  # from the puck's middle
        behind, beside = -(offset * way).sum(1), (offset * side).sum(1)
        aligned = behind > self.behind * self.touch_m
        aligned &= abs(beside) < self.beside * self.touch_m
        # pushing: forward, and toward the line the more it is off it
        push = self.forward * way - (self.to_line * beside[:, None]) * side
        # going around: along a circle of some clearance toward the place behind
        radius = np.linalg.norm(offset, axis=1, keepdims=True)
        out = offset / np.maximum(radius, 1e-6)
        tangent = np.stack([-out[:, 1], out[:, 0]], 1)
        turn = np.where((tangent * -way).sum(1) > 0, 1.0, -1.0)[:, None]
        ring = self.touch_m + CLEARANCE_M
        around = self.around * turn * tangent
        around = around + self.to_ring * (ring - radius).clip(-0.05, 0.05) * out
        place = puck - ring * way
        near = np.linalg.norm(tip - place, axis=1) < self.near_m
        around = np.where(near[:, None], self.to_place * (place - tip), around)
        return np.where(aligned[:, None], push, around)


def unit(x: np.ndarray) -> np.ndarray:
    """[..., 2] of length 1."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)

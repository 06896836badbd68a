"""Experts of arm/reach and arm/push also succeed on the servo protocol."""

from typing import Any

import numpy as np
import pytest

from envs.experts.arm import ArmExpert
from envs.suites.arm import CLOSE_M, Desk, Push, Reach

TICKS = 4  # control periods per period of the policy


def follow(rig: Any, world: type[Desk], told: np.ndarray, most: int) -> float:
    """Run the expert. Return the final distance to the target or the puck's goal, m."""
    env, q = world(1), rig.armed().q
    expert, command, speed = ArmExpert(env), q.copy(), np.zeros(5)
    apart = np.inf
    for _ in range(most):
        puck = rig.line.physics.position_of("puck")[:2]
        tracker_values = told if world is Reach else np.concatenate([puck, told])
        observation = np.concatenate([q, speed, tracker_values])[None].astype(np.float32)
        action = expert(observation)[0].astype(np.float64)
        target = env.action_low + (action + 1) / 2 * (env.action_high - env.action_low)
        step = (target - command) / TICKS
        for _ in range(TICKS):
            command = command + step
            reading, _ = rig.tick(command)
        q, speed = reading.q, reading.dq
        here = rig.line.physics.position_of("tip") if world is Reach else puck
        apart = float(np.linalg.norm(here - told))
        if apart < CLOSE_M and (world is Push or abs(speed).max() < 0.2):
            break
    return apart


@pytest.mark.parametrize("target", [[0.25, 0.1, 0.1], [0.17, -0.12, 0.05]])
def test_the_tip_reaches_the_target(rig: Any, target: list[float]) -> None:
    assert follow(rig, Reach, np.array(target), most=40) < CLOSE_M


def test_the_puck_reaches_its_goal(rig: Any) -> None:
    rig.event("place", body="puck", at_m=[0.22, -0.05])
    assert follow(rig, Push, np.array([0.24, 0.08]), most=150) < CLOSE_M

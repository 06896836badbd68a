"""From what the robot measures to what a policy observes, and from its actions to joint goals.

Joined by name, never by order: `<joint>.q`, `<joint>.dq`, `<joint>.current`, and the numbers of a
channel as `<channel>.x .y .z`, `<channel>.0 …`, or `<channel>` where it is one number.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import unknown
from policies.spec import Spec
from real_robot.robot import RobotSpec

FIELDS = {"q": "q", "dq": "dq", "current": "current_a"}


def places(robot: RobotSpec) -> dict[str, tuple[str, int]]:
    """Name -> the row's field and the place in it."""
    found = {
        f"{joint}.{name}": (field, i)
        for i, joint in enumerate(robot.joints)
        for name, field in FIELDS.items()
    }
    for name, channel in robot.channels.items():
        count = prod(channel.shape)
        for i in range(count):
            found[f"{name}.{i}"] = (f"channel.{name}", i)
            if count <= 3 and len(channel.shape) == 1:
                found[f"{name}.{'xyz'[i]}"] = (f"channel.{name}", i)
        if count == 1:
            found[name] = (f"channel.{name}", 0)
    return found


def observer(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], np.ndarray]:
    """A row of the recording -> the policy's observation [O], float32.

    Raises UserError where the policy observes what the robot does not measure.
    """
    if not policy.observation_names:
        raise UserError(
            "the bundle does not name its observations: train it with observation_names"
        )
    known = places(robot)
    fields = list[tuple[str, int]]()
    for name in policy.observation_names:
        if name not in known:
            what = unknown("measurement", name, known)
            raise UserError(f"{robot.name} does not measure what the policy observes: {what}")
        fields.append(known[name])

    def observe(row: np.ndarray) -> np.ndarray:
        return np.array([row[field].reshape(-1)[i] for field, i in fields], np.float32)

    return observe


def action_order(policy: Spec, robot: RobotSpec) -> list[int]:
    """For each joint of the robot, the place of its action. Raises UserError."""
    if not policy.action_names:
        raise UserError("the bundle does not name its actions, so no joint can be joined to them")
    if sorted(policy.action_names) != sorted(robot.joints):
        raise UserError(
            f"the policy moves {', '.join(policy.action_names)}; {robot.name} has "
            f"{', '.join(robot.joints)}: this bundle is another robot's"
        )
    return [policy.action_names.index(joint) for joint in robot.joints]


def goals(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], np.ndarray]:
    """A chunk [H, A] in [-1, 1] -> joint goals [H, J] in rad or m, in the robot's order."""
    order = action_order(policy, robot)
    if not policy.action_low:
        raise UserError("the bundle does not say what its actions of -1 and 1 stand for")
    low, high = np.array(policy.action_low), np.array(policy.action_high)

    def to_goals(chunk: np.ndarray) -> np.ndarray:
        return ((low + high) / 2 + chunk.astype(np.float64) * (high - low) / 2)[:, order]

    return to_goals

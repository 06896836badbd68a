"""From what the robot measures to what a policy observes, and from its actions to joint goals.

Joined by name, never by order: `<joint>.q`, `<joint>.dq`, `<joint>.current`, and the numbers of a
channel as `<channel>.x .y .z`, `<channel>.0 …`, or `<channel>` where it is one number.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

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


def unit_of(robot: RobotSpec, field: str, place: int) -> str:
    """Of a number in a row's field, as `places` says."""
    if field.startswith("channel."):
        return robot.channels[field.removeprefix("channel.")].unit
    unit = robot.units[place]
    return {"q": unit, "dq": f"{unit}/s"}.get(field, "A")


def observer(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], Any]:
    """A row of the recording -> what the policy observes, float32: an array, or several by name.

    Raises UserError where the policy observes what the robot does not measure, or in other units.
    """
    if pictures := [channel.name for channel in policy.channels if channel.kind == "picture"]:
        raise UserError(f"the policy observes pictures, {', '.join(pictures)}: no camera is known")
    if not policy.observation_names:
        raise UserError(
            "the bundle does not name its observations: train it on data or an environment that "
            "names them"
        )
    known = places(robot)
    fields = dict[str, list[tuple[str, int]]]()
    for channel in policy.channels:
        units = channel.each_unit or (None,) * channel.size
        fields[channel.name] = []
        for name, unit in zip(channel.names, units, strict=True):
            if name not in known:
                what = unknown("measurement", name, known)
                raise UserError(f"{robot.name} does not measure what the policy observes: {what}")
            own = unit_of(robot, *known[name])
            if unit is None:
                raise UserError(
                    f"the bundle does not say in which unit it observes {name}, which "
                    f"{robot.name} measures in {own}: train it on data or an environment that "
                    "says its units"
                )
            if unit != own:
                raise UserError(
                    f"the policy observes {name} in {unit}, {robot.name} measures it in {own}"
                )
            fields[channel.name].append(known[name])

    def observe(row: np.ndarray) -> Any:
        seen = {
            channel.name: np.array(
                [row[field].reshape(-1)[i] for field, i in fields[channel.name]], np.float32
            ).reshape(channel.shape)
            for channel in policy.channels
        }
        return seen if policy.lone is None else seen[policy.lone.name]

    return observe


def sees_channels(policy: Spec, robot: RobotSpec) -> bool:
    """Whether it observes more than the joints: what has a stamp of its own."""
    known = places(robot)
    return any(known[name][0].startswith("channel.") for name in policy.observation_names)


def action_order(policy: Spec, robot: RobotSpec) -> list[int]:
    """For each joint of the robot, the place of its action. Raises UserError."""
    if not policy.action_names:
        raise UserError("the bundle does not name its actions, so no joint can be joined to them")
    if sorted(policy.action_names) != sorted(robot.joints):
        raise UserError(
            f"the policy moves {', '.join(policy.action_names)}; {robot.name} has "
            f"{', '.join(robot.joints)}: this bundle is another robot's"
        )
    if policy.action_mode == "delta":
        raise UserError(
            "the policy's actions are changes of what was commanded last: joint targets are "
            "expected; a change that is lost or late would move the robot elsewhere"
        )
    order = [policy.action_names.index(joint) for joint in robot.joints]
    if not policy.action_units:
        raise UserError(
            "the bundle does not say the units of its actions: train it on data or an environment "
            "that says them"
        )
    for joint, own, place in zip(robot.joints, robot.units, order, strict=True):
        if (unit := policy.each_action_unit[place]) != own:
            raise UserError(
                f"joint {joint} is moved by the policy in {unit}, {robot.name} is told it in {own}"
            )
    return order


def goals(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], np.ndarray]:
    """A chunk [H, A] in [-1, 1] -> joint goals [H, J] in rad or m, in the robot's order."""
    order = action_order(policy, robot)
    if not policy.action_low:
        raise UserError("the bundle does not say what its actions of -1 and 1 stand for")
    low, high = policy.action_bounds

    def to_goals(chunk: np.ndarray) -> np.ndarray:
        return ((low + high) / 2 + chunk.astype(np.float64) * (high - low) / 2)[:, order]

    return to_goals


def offset(policy: Spec) -> float | None:
    """`schedule.Timing`'s, of a chunk's first action; a single one counts from when it arrives."""
    return policy.action_offset if policy.chunk_size > 1 else None

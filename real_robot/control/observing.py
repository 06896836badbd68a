"""Conversion of measurements to a policy's observation, and of its actions to joint goals.

Numbers are matched by name, never by order: `<joint>.q`, `<joint>.dq`, `<joint>.current`, and for a
channel `<channel>.x .y .z`, `<channel>.0 …`, or `<channel>` if it is a single number.
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
    """Return, for each name, the field of a row and the index in it."""
    columns = {
        f"{joint}.{name}": (field, i)
        for i, joint in enumerate(robot.joints)
        for name, field in FIELDS.items()
    }
    for name, channel in robot.channels.items():
        count = prod(channel.shape)
        for i in range(count):
            columns[f"{name}.{i}"] = (f"channel.{name}", i)
            if count <= 3 and len(channel.shape) == 1:
                columns[f"{name}.{'xyz'[i]}"] = (f"channel.{name}", i)
        if count == 1:
            columns[name] = (f"channel.{name}", 0)
    return columns


def unit_of(robot: RobotSpec, field: str, place: int) -> str:
    """Return the unit of one number of a row. field, place: see `places`."""
    if field.startswith("channel."):
        return robot.channels[field.removeprefix("channel.")].unit
    unit = robot.units[place]
    return {"q": unit, "dq": f"{unit}/s"}.get(field, "A")


def observer(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], Any]:
    """Return a function from a row to the observation: a float32 array, or several by name.

    Raises UserError if the robot does not measure what the policy observes, or in another unit.
    """
    if images := [channel.name for channel in policy.channels if channel.kind == "image"]:
        raise UserError(
            f"the policy observes images, {', '.join(images)}: cameras are not supported"
        )
    if not policy.observation_names:
        raise UserError(
            "the bundle does not name its observations: train it on data or an environment that "
            "names them"
        )
    row_places = places(robot)
    fields = dict[str, list[tuple[str, int]]]()
    for channel in policy.channels:
        units = channel.expanded_units or (None,) * channel.size
        fields[channel.name] = []
        for name, unit in zip(channel.names, units, strict=True):
            if name not in row_places:
                message = unknown("measurement", name, row_places)
                raise UserError(
                    f"{robot.name} does not measure what the policy observes: {message}"
                )
            unit_of_robot = unit_of(robot, *row_places[name])
            if unit is None:
                raise UserError(
                    f"the bundle does not say in which unit it observes {name}, which "
                    f"{robot.name} measures in {unit_of_robot}: train it on data or an environment "
                    "that names its units"
                )
            if unit != unit_of_robot:
                raise UserError(
                    f"the policy observes {name} in {unit}, but {robot.name} measures it in "
                    f"{unit_of_robot}"
                )
            fields[channel.name].append(row_places[name])

    def observe(row: np.ndarray) -> Any:
        observation = {
            channel.name: np.array(
                [row[field].reshape(-1)[i] for field, i in fields[channel.name]], np.float32
            ).reshape(channel.shape)
            for channel in policy.channels
        }
        return (
            observation if policy.single_vector is None else observation[policy.single_vector.name]
        )

    return observe


def observes_channels(policy: Spec, robot: RobotSpec) -> bool:
    """Return True if the policy observes channels, which have their own timestamp."""
    row_places = places(robot)
    return any(row_places[name][0].startswith("channel.") for name in policy.observation_names)


def action_order(policy: Spec, robot: RobotSpec) -> list[int]:
    """Return the index of the action of each joint of the robot. Raises UserError."""
    if not policy.action_names:
        raise UserError("the bundle does not name its actions, so they cannot be matched to joints")
    if sorted(policy.action_names) != sorted(robot.joints):
        raise UserError(
            f"the policy moves {', '.join(policy.action_names)}; {robot.name} has "
            f"{', '.join(robot.joints)}: this bundle is for another robot"
        )
    if policy.action_mode == "delta":
        raise UserError(
            "the policy's actions are changes of the last command, expected joint targets: a lost "
            "or late change would move the robot to a wrong position"
        )
    order = [policy.action_names.index(joint) for joint in robot.joints]
    if not policy.action_units:
        raise UserError(
            "the bundle does not name the units of its actions: train it on data or an environment "
            "that names them"
        )
    for joint, robot_unit, place in zip(robot.joints, robot.units, order, strict=True):
        if (unit := policy.expanded_action_units[place]) != robot_unit:
            raise UserError(
                f"the policy moves joint {joint} in {unit}, but {robot.name} takes {robot_unit}"
            )
    return order


def goals(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from a chunk in [-1, 1], [H, A], to joint goals, [H, J] rad or m."""
    order = action_order(policy, robot)
    if not policy.action_low:
        raise UserError("the bundle does not say which positions its actions -1 and 1 mean")
    low, high = policy.action_bounds

    def to_goals(chunk: np.ndarray) -> np.ndarray:
        return ((low + high) / 2 + chunk.astype(np.float64) * (high - low) / 2)[:, order]

    return to_goals


def offset(policy: Spec) -> float | None:
    """Return the offset for `schedule.Timing`. None: unknown, or actions come one by one."""
    return policy.action_offset if policy.chunk_size > 1 else None

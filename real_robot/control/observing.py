"""Conversion of measurements to a policy's observation, and of its actions to joint positions.

Policy and robot are matched by the names of the numbers, never by their order. A joint's
measurements are named `<joint>.q`, `<joint>.dq` and `<joint>.current`. A channel's are named
`<channel>.x`, `.y` and `.z`, or `<channel>.0`, `.1`, …, or `<channel>` if it has one number.
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

FIELDS = {"q": "q", "dq": "dq", "current": "current_a"}  # suffix of the name -> field of a row


def places(robot: RobotSpec) -> dict[str, tuple[str, int]]:
    """Return the place of each measurement in a row: name -> (field, index in the field)."""
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
    """Return the unit of a measurement. field, place: its place in a row, see `places`."""
    if field.startswith("channel."):
        return robot.channels[field.removeprefix("channel.")].unit
    unit = robot.units[place]
    return {"q": unit, "dq": f"{unit}/s"}.get(field, "A")


def observer(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], Any]:
    """Return a function from a row to the policy's observation.

    The observation is a float32 array, or a dict of arrays if the policy has several channels.
    Raises UserError if the robot does not measure what the policy observes, or measures it in
    another unit.
    """
    if images := [channel.name for channel in policy.channels if channel.kind == "image"]:
        raise UserError(
            f"the policy observes images, {', '.join(images)}, but cameras are not supported: use "
            "a policy without images"
        )
    if not policy.observation_names:
        raise UserError(
            "the bundle does not name its observations: train it on data or in an environment that "
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
                    f"the bundle does not state the unit of {name}, which {robot.name} measures in "
                    f"{unit_of_robot}: train it on data or in an environment that states its units"
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
    """Return True if the policy observes channels, whose timestamps differ from the joints'."""
    row_places = places(robot)
    return any(row_places[name][0].startswith("channel.") for name in policy.observation_names)


def action_order(policy: Spec, robot: RobotSpec) -> list[int]:
    """Return the index of each joint's action, in the robot's order of joints. Raises UserError."""
    if not policy.action_names:
        raise UserError(
            "the bundle does not name its actions, so they cannot be matched to joints: train it "
            "on data or in an environment that names them"
        )
    if sorted(policy.action_names) != sorted(robot.joints):
        raise UserError(
            f"the policy moves {', '.join(policy.action_names)}; {robot.name} has "
            f"{', '.join(robot.joints)}: use a bundle for this robot"
        )
    if policy.action_mode == "delta":
        raise UserError(
            "the policy's actions are changes of the last command (action_mode: delta). A lost or "
            "late change would move the robot to a wrong position: train a policy whose actions "
            "are joint positions"
        )
    order = [policy.action_names.index(joint) for joint in robot.joints]
    if not policy.action_units:
        raise UserError(
            "the bundle does not state the units of its actions: train it on data or in an "
            "environment that states them"
        )
    for joint, robot_unit, place in zip(robot.joints, robot.units, order, strict=True):
        if (unit := policy.expanded_action_units[place]) != robot_unit:
            raise UserError(
                f"the policy's action for joint {joint} is in {unit}, but {robot.name} uses "
                f"{robot_unit}"
            )
    return order


def goals(policy: Spec, robot: RobotSpec) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from a chunk of actions in [-1, 1], [H, A], to joint positions, [H, J].

    The positions are in rad or m. Raises UserError.
    """
    order = action_order(policy, robot)
    if not policy.action_low:
        raise UserError(
            "the bundle does not state which positions its actions -1 and 1 stand for: action_low "
            "and action_high are missing in its Spec"
        )
    low, high = policy.action_bounds

    def to_goals(chunk: np.ndarray) -> np.ndarray:
        return ((low + high) / 2 + chunk.astype(np.float64) * (high - low) / 2)[:, order]

    return to_goals


def offset(policy: Spec) -> float | None:
    """Return the offset for `schedule.Timing`. None: unknown, or a chunk has a single action."""
    return policy.action_offset if policy.chunk_size > 1 else None

"""Last row of the failure matrix: bundles that do not fit the robot, or lack information."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.processes import follower
from offline_rl.utils.errors import UserError
from policies import Spec, bundle
from policies.golden import seal
from real_robot.check import check
from real_robot.robots.make import make

Edit = Callable[[Spec, np.random.Generator], Spec]


def _rename_joint(spec: Spec, chance: np.random.Generator) -> Spec:
    names = [*spec.action_names]
    names[chance.integers(len(names))] = "gripper"
    return replace(spec, action_names=tuple(names))


def _exchange_joints(spec: Spec, chance: np.random.Generator) -> Spec:
    """Exchange the names of two joints with different ranges."""
    names, place = [*spec.action_names], int(chance.integers(2, 5))
    names[1], names[place] = names[place], names[1]
    return replace(spec, action_names=tuple(names))


def _use_degrees(spec: Spec, chance: np.random.Generator) -> Spec:
    low, high = (tuple(float(np.rad2deg(x)) for x in ends) for ends in spec.action_bounds)
    return replace(spec, action_low=low, action_high=high)


def _raise_rate(spec: Spec, chance: np.random.Generator) -> Spec:
    return replace(spec, rate_hz=float(chance.uniform(101, 500)))


def _rename_observation(spec: Spec, chance: np.random.Generator) -> Spec:
    """Make the bundle observe something that the robot does not measure."""
    channel = spec.channels[0]
    names = [*channel.names]
    names[chance.integers(len(names))] = "force.z"
    return replace(spec, channels=(replace(channel, names=tuple(names)),))


def _remove_information(spec: Spec, chance: np.random.Generator) -> Spec:
    """Remove the bundle's rate, or the names of its actions."""
    missing: dict[str, Any] = {"rate_hz": None} if chance.integers(2) else {"action_names": ()}
    return replace(spec, **missing)


EDITS: dict[str, Edit] = {
    "a joint that the robot lacks": _rename_joint,
    "two joints exchanged": _exchange_joints,
    "degrees for radians": _use_degrees,
    "faster than the control loop": _raise_rate,
    "a measurement that the robot lacks": _rename_observation,
    "no rate, or no names": _remove_information,
}


def count_refused(repeats: int) -> list[dict[str, Any]]:
    """Return the number of bundles of each kind that `robot check` refused, without a robot."""
    chance, rows = np.random.default_rng(24), []
    with tempfile.TemporaryDirectory() as folder:
        path = follower(Path(folder) / "right.bundle")
        robot = make("desk", adapter="simulated")
        check(robot, path, connect=False, runtime="numpy")
        right = bundle.read(path)
        for name, edit in EDITS.items():
            count = 0
            for _ in range(repeats):
                path_wrong = Path(folder) / "wrong.bundle"
                spec = edit(right.spec, chance)
                bundle.write(path_wrong, seal(replace(right, spec=spec, golden=None)))
                try:
                    check(robot, path_wrong, connect=False, runtime="numpy")
                except UserError:
                    count += 1
            rows.append({"row": "24", "bundle": name, "repeats": repeats, "refused": count})
    return rows

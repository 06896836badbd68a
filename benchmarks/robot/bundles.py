"""The failure matrix's last row: bundles that are another robot's, or say too little."""

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


def _other_joint(spec: Spec, chance: np.random.Generator) -> Spec:
    names = [*spec.action_names]
    names[chance.integers(len(names))] = "gripper"
    return replace(spec, action_names=tuple(names))


def _exchanged(spec: Spec, chance: np.random.Generator) -> Spec:
    """Two joints' names, of joints with unlike ranges."""
    names, place = [*spec.action_names], int(chance.integers(2, 5))
    names[1], names[place] = names[place], names[1]
    return replace(spec, action_names=tuple(names))


def _degrees(spec: Spec, chance: np.random.Generator) -> Spec:
    low, high = (tuple(float(np.rad2deg(x)) for x in ends) for ends in spec.action_bounds)
    return replace(spec, action_low=low, action_high=high)


def _faster(spec: Spec, chance: np.random.Generator) -> Spec:
    return replace(spec, rate_hz=float(chance.uniform(101, 500)))


def _unnamed(spec: Spec, chance: np.random.Generator) -> Spec:
    """It observes something that the robot does not measure."""
    seen = spec.channels[0]
    names = [*seen.names]
    names[chance.integers(len(names))] = "force.z"
    return replace(spec, channels=(replace(seen, names=tuple(names)),))


def _silent(spec: Spec, chance: np.random.Generator) -> Spec:
    """It does not say what its actions stand for, or how often they come."""
    missing: dict[str, Any] = {"rate_hz": None} if chance.integers(2) else {"action_names": ()}
    return replace(spec, **missing)


EDITS: dict[str, Edit] = {
    "a joint that the robot lacks": _other_joint,
    "two joints exchanged": _exchanged,
    "degrees for radians": _degrees,
    "faster than the control loop": _faster,
    "a measurement that the robot lacks": _unnamed,
    "no rate, or no names": _silent,
}


def refused(repeats: int) -> list[dict[str, Any]]:
    """How many of each were refused; nothing is connected before."""
    chance, found = np.random.default_rng(24), []
    with tempfile.TemporaryDirectory() as folder:
        path = follower(Path(folder) / "right.bundle")
        robot = make("desk", adapter="simulated")
        check(robot, path, connect=False, runtime="numpy")
        right = bundle.read(path)
        for name, edit in EDITS.items():
            count = 0
            for _ in range(repeats):
                wrong = Path(folder) / "wrong.bundle"
                spec = edit(right.spec, chance)
                bundle.write(wrong, seal(replace(right, spec=spec, golden=None)))
                try:
                    check(robot, wrong, connect=False, runtime="numpy")
                except UserError:
                    count += 1
            found.append({"row": "24", "bundle": name, "repeats": repeats, "refused": count})
    return found

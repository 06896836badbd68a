"""Safe execution of policies on robots: adapters, the control loop and the safety check.

real_robot.run("policy.bundle", "desk")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import offline_rl.utils  # noqa: F401  (checks that the packages next to it are imported)

if TYPE_CHECKING:
    from real_robot.recording.files import Recording, read
    from real_robot.robot import Robot, RobotSpec
    from real_robot.running import Outcome, run

__all__ = ["Outcome", "Recording", "Robot", "RobotSpec", "read", "run"]

_LAZY = {
    "run": "real_robot.running",
    "Outcome": "real_robot.running",
    "read": "real_robot.recording.files",
    "Recording": "real_robot.recording.files",
    "Robot": "real_robot.robot",
    "RobotSpec": "real_robot.robot",
}


def __getattr__(name: str) -> Any:
    """Import a part when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'real_robot' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)

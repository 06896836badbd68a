"""Policy -> motion, safely: robots, the control loop, the check that every command passes.

real_robot.run("policy.bundle", "desk")
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def _check_neighbours() -> None:
    """`policies` is a common name: a folder of the user's must not stand in for ours."""
    home = Path(__file__).resolve().parents[1]
    for name in ("policies", "offline_rl"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
        if found != home:
            raise ImportError(
                f"the package {name!r} would be imported from {found or 'nowhere'}, but real_robot "
                f"lies in {home}: rename the other folder or start from another directory"
            )


_check_neighbours()


def __getattr__(name: str) -> Any:
    """Parts are imported when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'real_robot' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)

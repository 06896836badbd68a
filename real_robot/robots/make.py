"""Creation of robots from their files. An adapter is imported only when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import import_name
from offline_rl.utils.options import build
from real_robot.robot import Robot
from real_robot.robots.config import (
    ADAPTERS,
    DynamixelOptions,
    RobotDescription,
    SimulationOptions,
    describe,
)


def make(name: str | Path, *, adapter: str | None = None, **changes: Any) -> Robot:
    """Create the robot `name`, disconnected. Raises UserError.

    adapter: replaces the adapter in the robot's file. changes: options of the adapter, such as
    port=….
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    config = described.config
    if config.adapter == "simulated":
        from real_robot.robots.simulated import SimulatedRobot

        simulation = build(SimulationOptions, config.simulated | changes, "simulated.")
        return SimulatedRobot(described, simulation)
    if config.adapter not in ADAPTERS:
        return _load_adapter(described, config.options | changes)
    from real_robot.robots.dynamixel.robot import DynamixelRobot

    options = build(DynamixelOptions, config.dynamixel | changes, "dynamixel.")
    return DynamixelRobot.from_config(described, options)


def _load_adapter(described: RobotDescription, options: dict[str, Any]) -> Robot:
    """Create a robot of the user's class. Raises UserError."""
    adapter = described.config.adapter
    path = described.path.resolve().parent / adapter
    is_file = Path(str(path).rpartition(":")[0]).is_file()
    kind, _ = import_name("adapter", str(path) if is_file else adapter)
    try:
        robot: Robot = kind(described, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"adapter={adapter} failed: {type(error).__name__}: {error}. Check the class and its "
            "options"
        ) from error
    required = (name for name in vars(Robot) if not name.startswith("_"))
    if missing := [name for name in required if not hasattr(robot, name)]:
        raise UserError(
            f"adapter={adapter}: the class has no {', '.join(missing)}. Add them as described in "
            "real_robot.Robot"
        )
    return robot

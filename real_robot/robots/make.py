"""Make a robot from its configuration file. An adapter is imported when it is first used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import named
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
    """The robot `name`, disconnected. Raises UserError.

    adapter: another one than the file's. changes: of the adapter's own table, such as port=….
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    config = described.config
    if config.adapter == "simulated":
        from real_robot.robots.simulated import SimulatedRobot

        how = build(SimulationOptions, config.simulated | changes, "simulated.")
        return SimulatedRobot(described, how)
    if config.adapter not in ADAPTERS:
        return _load_adapter(described, config.options | changes)
    from real_robot.robots.dynamixel.robot import DynamixelRobot

    line = build(DynamixelOptions, config.dynamixel | changes, "dynamixel.")
    return DynamixelRobot.from_config(described, line)


def _load_adapter(described: RobotDescription, options: dict[str, Any]) -> Robot:
    """The user's class, given the file and its options. Raises UserError."""
    adapter = described.config.adapter
    beside = described.path.resolve().parent / adapter
    is_beside = Path(str(beside).rpartition(":")[0]).is_file()
    kind, _ = named("adapter", str(beside) if is_beside else adapter)
    try:
        robot: Robot = kind(described, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"adapter={adapter}: {type(error).__name__}: {error}") from error
    wanted = (name for name in vars(Robot) if not name.startswith("_"))
    if missing := [name for name in wanted if not hasattr(robot, name)]:
        raise UserError(f"adapter={adapter}: it has no {', '.join(missing)}; see real_robot.Robot")
    return robot

"""Robots by name: configs/robot/<name>.yaml, or a file of the user's, to a `Robot`.

The file's numbers are SI units and radians; its MJCF lies beside it. An adapter is imported when it
is asked for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import named
from offline_rl.utils.options import build, unknown
from offline_rl.utils.paths import share
from real_robot.robot import Channel, Limits, Robot, RobotSpec, Workspace

ADAPTERS = ("dynamixel", "simulated")


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A row of `joints`. What is left out is NaN, and refused by `robot check`."""

    id: int | None = None  # the servo's, 0 to 252
    unit: Literal["rad", "m"] = "rad"
    position: list[float] = field(default_factory=lambda: [math.nan, math.nan])  # lowest, highest
    velocity: float = math.nan
    acceleration: float = math.nan
    jerk: float = math.nan
    stop_acceleration: float = math.nan
    stop_jerk: float = math.nan
    tracking_error: float = math.nan
    current: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Box:
    """Of `workspace`."""

    sites: list[str]  # of the model
    low: list[float]  # m
    high: list[float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Of `dynamixel`."""

    port: str
    baud: int = 1_000_000
    watchdog_s: float | None = None  # the servos' own: 0.02 to 2.54
    calibration: str | None = None  # a file; default: see `calibration_file`
    tracker: str | None = None  # a ring that another process writes `channels` into
    latency_s: float | None = None  # of the adapter; default: what the system says of it


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Of `simulated`."""

    rate_hz: float = 250.0  # at which it takes goals and publishes; the physics run at 1 kHz
    folder: str | None = None  # of the shared memory; default: a temporary one
    place: dict = field(default_factory=dict)  # body of the model -> where it is at first, m


@dataclass(frozen=True, kw_only=True)
class Config:
    """A robot's file."""

    adapter: str  # dynamixel, simulated, or a class of yours: mine.py:Arm, beside the file
    joints: dict
    rate_hz: float
    timeout_s: float
    max_reading_age_s: float
    model: str | None = None  # MJCF, beside the file
    workspace: dict | None = None
    channels: dict = field(default_factory=dict)
    dynamixel: dict = field(default_factory=dict)
    simulated: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)  # of an adapter of yours

    def __post_init__(self) -> None:
        if self.adapter not in ADAPTERS and ":" not in self.adapter:
            expected = f"{', '.join(ADAPTERS)}, or a class of yours, such as mine.py:Arm"
            raise ValueError(f"adapter is {self.adapter!r}; expected {expected}")
        for name in ("rate_hz", "timeout_s", "max_reading_age_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; a positive number is expected")
        if not self.joints:
            raise ValueError("joints is empty; a robot has at least one")


@dataclass(frozen=True)
class Described:
    """A robot's file, read and checked."""

    path: Path
    config: Config
    joints: Mapping[str, Joint]
    spec: RobotSpec

    @property
    def model(self) -> Path:
        """Raises UserError where the file names none, or one that is not there."""
        if self.config.model is None:
            raise UserError(f"{self.path}: this needs the robot's MJCF; name it as model=…")
        model = self.path.parent / self.config.model
        if not model.is_file():
            raise UserError(f"{self.path}: model {model} does not exist")
        return model


def names() -> list[str]:
    return sorted(path.stem for path in (share("configs") / "robot").glob("*.yaml"))


def find(name: str | Path) -> Path:
    """The file of a robot by its name, or the file itself. Raises UserError."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise UserError(f"robot file {name} does not exist")
        return Path(name)
    if name not in names():
        raise UserError(f"{unknown('robot', str(name), names())}; a file of your own ends in .yaml")
    return share("configs") / "robot" / f"{name}.yaml"


def yaml_in(path: Path) -> Any:
    """What a YAML file holds. Raises UserError naming file and fault."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        fault = " ".join(str(error).split())
        raise UserError(f"{path} is not readable as YAML: {fault}") from None


def describe(name: str | Path, **changes: Any) -> Described:
    """The robot `name` with some of its file's values replaced. Raises UserError."""
    path = find(name)
    values = yaml_in(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected keys and values, found {type(values).__name__}")
    config = build(Config, values | changes, f"{path.name}: ")
    joints = {
        joint: build(Joint, _table(row, f"{path.name}: joints.{joint}"), f"joints.{joint}.")
        for joint, row in config.joints.items()
    }
    for joint, row in joints.items():
        if len(row.position) != 2 or row.position[0] > row.position[1]:
            raise UserError(
                f"{path.name}: joints.{joint}.position={row.position}: expected [lowest, highest]"
            )
    return Described(path, config, joints, _spec(path, config, joints))


def make(name: str | Path, *, adapter: str | None = None, **changes: Any) -> Robot:
    """The robot `name`, disconnected. Raises UserError.

    adapter: another one than the file's. changes: of the adapter's own table, such as port=….
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    config = described.config
    if config.adapter == "simulated":
        from real_robot.robots.simulated import SimulatedRobot

        how = build(Simulation, config.simulated | changes, "simulated.")
        return SimulatedRobot(described, how)
    if config.adapter not in ADAPTERS:
        return _own(described, config.options | changes)
    from real_robot.robots.dynamixel.robot import DynamixelRobot

    line = build(Line, config.dynamixel | changes, "dynamixel.")
    return DynamixelRobot.by_config(described, line)


def unconfirmed_file(
    name: str | Path, *, adapter: str | None = None, **changes: Any
) -> Path | None:
    """The file of joints that are to be confirmed, see `control.unconfirmed`; None if simulated.

    Arguments: those of `make`.
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    if described.config.adapter == "simulated":
        return None
    if described.config.adapter not in ADAPTERS:
        return settings() / f"{described.spec.name}.unconfirmed.json"
    line = build(Line, described.config.dynamixel | changes, "dynamixel.")
    return calibration_file(described, line).with_suffix(".unconfirmed.json")


def calibration_file(described: Described, line: Line) -> Path:
    """The line's own, or one in the user's folder for settings."""
    if line.calibration:
        return Path(line.calibration)
    return settings() / f"{described.spec.name}.calibration.json"


def settings() -> Path:
    """The user's folder for settings."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "offline_rl"


def _own(described: Described, options: dict[str, Any]) -> Robot:
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


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected keys and values, found {value!r}")
    return value


def _spec(path: Path, config: Config, joints: Mapping[str, Joint]) -> RobotSpec:
    rows = list(joints.values())
    columns = {f.name: np.array([getattr(row, f.name) for row in rows]) for f in fields(Joint)[3:]}
    columns["current_a"] = columns.pop("current")
    low, high = np.array([row.position for row in rows], np.float64).T
    workspace = None
    if config.workspace is not None:
        box = build(Box, config.workspace, f"{path.name}: workspace.")
        if config.model is None or len(box.low) != 3 or len(box.high) != 3:
            raise UserError(f"{path.name}: workspace needs a model, and low and high of 3 numbers")
        workspace = Workspace(
            path.parent / config.model, tuple(box.sites), np.array(box.low), np.array(box.high)
        )
    channels = {
        name: Channel(tuple(row["shape"]), row["unit"])
        for name, row in config.channels.items()
        if _channel(row, f"{path.name}: channels.{name}")
    }
    return RobotSpec(
        name=path.stem,
        joints=tuple(joints),
        units=tuple(row.unit for row in rows),
        limits=Limits(position_low=low, position_high=high, **columns),
        resolution=np.zeros(len(rows)),
        rate_hz=config.rate_hz,
        timeout_s=config.timeout_s,
        max_reading_age_s=config.max_reading_age_s,
        workspace=workspace,
        channels=channels,
    )


def _channel(row: Any, where: str) -> bool:
    if _table(row, where).keys() != {"shape", "unit"}:
        raise UserError(f"{where}: expected shape and unit, found {', '.join(map(str, row))}")
    shape, unit = row["shape"], row["unit"]
    sized = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    if not sized or not isinstance(unit, str):
        raise UserError(f"{where}: expected shape: [sizes] and unit: text, found {row}")
    return True

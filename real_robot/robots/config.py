"""Configuration of robots: read and check configs/robot/<name>.yaml or a user's file.

The file's numbers are in SI units and radians. Its MJCF is in the same folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.options import Checked, Range, build, unknown
from offline_rl.utils.paths import share
from real_robot.robot import Channel, Grip, Limits, RobotSpec, Workspace
from real_robot.safety.limits import FURTHEST_M, SMALLEST

ADAPTERS = ("dynamixel", "simulated")
LIMITS = (  # limits of a joint, by their names in a robot's file
    *("position", "velocity", "acceleration", "jerk", "stop_acceleration", "stop_jerk"),
    *("tracking_error", "current"),
)


TIMES = {  # plausible range and the likely mistake
    "rate_hz": (5.0, 2000.0, "it is a rate in 1/s, not a period"),
    "timeout_s": (1e-4, 1.0, "did you mean milliseconds? It is in s"),
    "max_reading_age_s": (1e-3, 1.0, "did you mean milliseconds? It is in s"),
}


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Entry of `joints` in a robot's file. `robot check` refuses missing limits (NaN)."""

    id: int | None = None  # id of the servo, 0 to 252
    unit: Literal["rad", "m"] = "rad"
    position: list[float] = field(default_factory=lambda: [math.nan, math.nan])  # lowest, highest
    velocity: float = math.nan
    acceleration: float = math.nan
    jerk: float = math.nan
    stop_acceleration: float = math.nan
    stop_jerk: float = math.nan
    tracking_error: float = math.nan
    current: float = math.nan  # A; .inf: the joint measures no current, so there is no check
    m_per_rad: float | None = None  # sliding joint: travel in m per rad of the servo
    unusual: list[str] = field(
        default_factory=list
    )  # limits that may be outside the plausible range
    grip: dict | None = None  # for a gripper: see `GripOptions`


@dataclass(frozen=True, kw_only=True)
class GripOptions:
    """The `grip:` table of a joint."""

    current: float  # A, maximum current for holding, below the joint's limit
    squeeze: float  # rad or m, maximum distance of the goal beyond the measured position
    closes: Literal["low", "high"]  # the end of `position` at which it is closed


@dataclass(frozen=True, kw_only=True)
class WorkspaceOptions:
    """The `workspace:` table of a robot's file."""

    sites: list[str]  # sites of the model that must stay inside
    low: list[float]  # lowest x, y, z in m
    high: list[float]  # highest x, y, z in m


@dataclass(frozen=True, kw_only=True)
class DynamixelOptions(Checked):
    """The `dynamixel:` table of a robot's file."""

    port: str  # serial port of the servos
    baud: int = 1_000_000
    # bus watchdog of the servos: they stop after this time without a request. 0.02 to 2.54; 0: off;
    # default: 0.2, for servos whose firmware has one
    watchdog_s: float | None = None
    calibration: str | None = None  # calibration file; default: in the user's settings folder
    tracker: str | None = None  # ring that a tracker process writes `channels` to
    # latency of the USB adapter, at most 0.1; default: as the system reports it
    latency_s: Annotated[float, Range(0, 0.1)] | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Checked):
    """The `simulated:` table of a robot's file."""

    rate_hz: Annotated[float, Range(1, 10_000)] = (
        250.0  # rate of goals and measurements; the physics run at 1 kHz
    )
    folder: str | None = None  # folder of the shared memory; default: a temporary one
    place: dict = field(default_factory=dict)  # body of the model -> initial position, m


@dataclass(frozen=True, kw_only=True)
class Config:
    """Contents of a robot's file."""

    adapter: str  # dynamixel, simulated, or your own class: mine.py:Arm, in the same folder
    joints: dict
    rate_hz: float
    timeout_s: float
    max_reading_age_s: float
    model: str | None = None  # MJCF in the same folder
    workspace: dict | None = None
    channels: dict = field(default_factory=dict)
    dynamixel: dict = field(default_factory=dict)
    simulated: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)  # options of your own adapter
    unusual: list[str] = field(
        default_factory=list
    )  # times that may be outside the plausible range

    def __post_init__(self) -> None:
        if self.adapter not in ADAPTERS and ":" not in self.adapter:
            expected = f"{', '.join(ADAPTERS)}, or your own class, such as mine.py:Arm"
            raise ValueError(f"adapter is {self.adapter!r}; expected {expected}")
        for name in ("rate_hz", "timeout_s", "max_reading_age_s"):
            if not SMALLEST <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; expected a positive number, at least "
                    f"{SMALLEST:g}"
                )
        _refuse_unknown(self.unusual, TIMES)
        for name, (low, high, hint) in TIMES.items():
            value = getattr(self, name)
            if not low <= value <= high and name not in self.unusual:
                raise ValueError(
                    f"{name} is {value:g}, expected {low:g} to {high:g}: {hint}; if it is right, "
                    f"add unusual: [{name}]"
                )
        if not self.joints:
            raise ValueError("joints is empty: add at least one")


@dataclass(frozen=True)
class RobotDescription:
    """Checked contents of a robot's file, with the robot's specification."""

    path: Path
    config: Config
    joints: Mapping[str, Joint]
    spec: RobotSpec

    @property
    def model(self) -> Path:
        """Path of the MJCF. Raises UserError if the file names none, or it does not exist."""
        if self.config.model is None:
            raise UserError(f"{self.path}: the robot's MJCF is needed: add model: <file>")
        model = self.path.parent / self.config.model
        if not model.is_file():
            raise UserError(f"{self.path}: model {model} does not exist")
        return model


def robot_names() -> list[str]:
    """Return the names of the robots in configs/robot."""
    return sorted(path.stem for path in (share("configs") / "robot").glob("*.yaml"))


def find(name: str | Path) -> Path:
    """Return the path of a robot's file, by name or path. Raises UserError."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise UserError(f"robot file {name} does not exist")
        return Path(name)
    if name not in robot_names():
        raise UserError(
            f"{unknown('robot', str(name), robot_names())}; your own file must end in .yaml"
        )
    return share("configs") / "robot" / f"{name}.yaml"


def describe(name: str | Path, **changes: Any) -> RobotDescription:
    """Read and check a robot's file, with some values replaced. Raises UserError."""
    path = find(name)
    values = read_yaml(path)
    config = build(Config, values | changes, f"{path.name}: ")
    joints = {
        joint: build(Joint, _as_table(row, f"{path.name}: joints.{joint}"), f"joints.{joint}.")
        for joint, row in config.joints.items()
    }
    for joint, row in joints.items():
        if len(row.position) != 2 or row.position[0] > row.position[1]:
            raise UserError(
                f"{path.name}: joints.{joint}.position={row.position}: expected [lowest, highest]"
            )
        _check_units(f"{path.name}: joints.{joint}", row)
    ids = [row.id for row in joints.values() if row.id is not None]
    if twice := [id_ for id_ in ids if ids.count(id_) > 1]:
        which = ", ".join(joint for joint, row in joints.items() if row.id == twice[0])
        raise UserError(
            f"{path.name}: joints {which} have the same id {twice[0]}: give each a different id"
        )
    return RobotDescription(path, config, joints, _spec(path, config, joints))


def _check_units(where: str, row: Joint) -> None:
    """Raise UserError for an unknown limit in `unusual`, or m_per_rad of a joint that turns."""
    try:
        _refuse_unknown(row.unusual, LIMITS)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if row.m_per_rad is None:
        return
    if row.unit != "m" or not 0 < row.m_per_rad < math.inf:
        raise UserError(
            f"{where}.m_per_rad={row.m_per_rad:g}: expected a positive number, and unit: m; it is "
            "the joint's travel in m per rad of its servo"
        )


def _refuse_unknown(names: Sequence[str], allowed: Iterable[str]) -> None:
    if wrong := [name for name in names if name not in allowed]:
        raise ValueError(unknown("unusual", wrong[0], allowed))


def unconfirmed_file(
    name: str | Path, *, adapter: str | None = None, **changes: Any
) -> Path | None:
    """Return the path of the file of unconfirmed joints; None: the robot is simulated.

    The arguments are those of `make.make`. The file: see `control.unconfirmed`.
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    if described.config.adapter == "simulated":
        return None
    if described.config.adapter not in ADAPTERS:
        return settings_folder() / f"{described.spec.name}.unconfirmed.json"
    line = build(DynamixelOptions, described.config.dynamixel | changes, "dynamixel.")
    return calibration_file(described, line).with_suffix(".unconfirmed.json")


def arm_identity(name: str | Path, *, adapter: str | None = None, **changes: Any) -> str:
    """Return a text that identifies the arm that `make.make` would connect to.

    It is the port of servos, the folder of a simulation, or else the robot's file and the adapter's
    options. The arguments are those of `make.make`.
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    config = described.config
    if config.adapter == "dynamixel":
        line = build(DynamixelOptions, config.dynamixel | changes, "dynamixel.")
        return f"port {os.path.realpath(line.port)}"
    if config.adapter == "simulated":
        how = build(SimulationOptions, config.simulated | changes, "simulated.")
        return f"simulation {os.path.realpath(how.folder) if how.folder else described.spec.name}"
    options = json.dumps(config.options | changes, sort_keys=True, default=str)
    return f"{described.path.resolve()} {config.adapter} {options}"


def calibration_file(described: RobotDescription, options: DynamixelOptions) -> Path:
    """Return the calibration file's path: as configured, or in the settings folder."""
    if options.calibration:
        return Path(options.calibration)
    return settings_folder() / f"{described.spec.name}.calibration.json"


def settings_folder() -> Path:
    """Return the user's settings folder."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "offline_rl"


def _as_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected keys and values, got {value!r}")
    return value


def _spec(path: Path, config: Config, joints: Mapping[str, Joint]) -> RobotSpec:
    rows = list(joints.values())
    columns = {
        name: np.array([getattr(row, name) for row in rows], np.float64)
        for name in LIMITS
        if name != "position"
    }
    columns["current_a"] = columns.pop("current")
    low, high = np.array([row.position for row in rows], np.float64).T
    workspace = None
    if config.workspace is not None:
        box = build(WorkspaceOptions, config.workspace, f"{path.name}: workspace.")
        if config.model is None or len(box.low) != 3 or len(box.high) != 3:
            raise UserError(
                f"{path.name}: workspace needs model, and 3 numbers each in low and high"
            )
        if (furthest := max(map(abs, (*box.low, *box.high)))) > FURTHEST_M:
            raise UserError(
                f"{path.name}: workspace reaches to {furthest:g} m, expected at most "
                f"{FURTHEST_M:g}: did you mean millimeters? Write {furthest / 1e3:g}"
            )
        workspace = Workspace(
            path.parent / config.model, tuple(box.sites), np.array(box.low), np.array(box.high)
        )
    channels = {
        name: Channel(tuple(row["shape"]), row["unit"])
        for name, row in config.channels.items()
        if _check_channel(row, f"{path.name}: channels.{name}")
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
        grips={
            name: _grip(f"{path.name}: joints.{name}", row)
            for name, row in joints.items()
            if row.grip is not None
        },
        unusual={name: tuple(row.unusual) for name, row in joints.items()},
    )


def _grip(where: str, row: Joint) -> Grip:
    """Return the grip of a joint. Raises UserError if it is not inside the joint's limits."""
    table = build(GripOptions, _as_table(row.grip, f"{where}.grip"), f"{where}.grip.")
    if not 0 < table.squeeze < row.tracking_error:
        raise UserError(
            f"{where}.grip.squeeze={table.squeeze:g}: expected above 0 and below tracking_error, "
            f"{row.tracking_error:g}: otherwise every grip would be a tracking error"
        )
    if not 0 < table.current < row.current:
        raise UserError(
            f"{where}.grip.current={table.current:g}: expected above 0 and below the joint's "
            f"current, {row.current:g} A, at which the robot stops"
        )
    return Grip(table.current, table.squeeze, 1 if table.closes == "high" else -1)


def _check_channel(row: Any, where: str) -> bool:
    """Return True for a valid entry of `channels`. Raises UserError."""
    if _as_table(row, where).keys() != {"shape", "unit"}:
        raise UserError(f"{where}: expected shape and unit, got {', '.join(map(str, row))}")
    shape, unit = row["shape"], row["unit"]
    sized = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    if not sized or not isinstance(unit, str):
        raise UserError(f"{where}: expected shape: [sizes] and unit: text, got {row}")
    return True

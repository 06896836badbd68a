"""Configuration of robots: read and check configs/robot/<name>.yaml or a user's file.

The numbers in the file are in SI units and radians. The MJCF that it names is in the same folder.
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


TIMES = {  # plausible range, and what a number outside it probably means
    "rate_hz": (5.0, 2000.0, "rate_hz is a rate in 1/s, not a period"),
    "timeout_s": (1e-4, 1.0, "did you mean milliseconds? timeout_s is in s"),
    "max_reading_age_s": (1e-3, 1.0, "did you mean milliseconds? max_reading_age_s is in s"),
}


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Entry of `joints` in a robot's file. `robot check` refuses missing limits (NaN)."""

    id: int | None = None  # id of the servo, 0 to 252
    unit: Literal["rad", "m"] = "rad"  # unit of the joint's position; m for a sliding joint
    # lowest and highest position, in `unit`
    position: list[float] = field(default_factory=lambda: [math.nan, math.nan])
    velocity: float = math.nan  # limit of the goals, unit/s
    acceleration: float = math.nan  # limit of the goals, unit/s²
    jerk: float = math.nan  # limit of the goals, unit/s³
    stop_acceleration: float = math.nan  # limit during a stop, at least `acceleration`
    stop_jerk: float = math.nan  # limit during a stop, at least `jerk`
    tracking_error: float = math.nan  # maximum distance of goal and measured position, in `unit`
    # maximum current, A; .inf: the joint measures no current, so its current is not checked
    current: float = math.nan
    m_per_rad: float | None = None  # for a sliding joint: travel in m per rad of the servo
    # names of limits that may be outside the plausible range
    unusual: list[str] = field(default_factory=list)
    grip: dict | None = None  # for a gripper: see `GripOptions`


@dataclass(frozen=True, kw_only=True)
class GripOptions:
    """Table `grip:` of a joint."""

    current: float  # maximum current for holding, A; less than the joint's `current`
    squeeze: float  # maximum distance of the goal beyond the measured position, rad or m
    closes: Literal["low", "high"]  # the end of `position` at which the gripper is closed


@dataclass(frozen=True, kw_only=True)
class WorkspaceOptions:
    """Table `workspace:` of a robot's file."""

    sites: list[str]  # sites of the model that must stay inside the workspace
    low: list[float]  # lowest x, y, z in m
    high: list[float]  # highest x, y, z in m


@dataclass(frozen=True, kw_only=True)
class DynamixelOptions(Checked):
    """Table `dynamixel:` of a robot's file."""

    port: str  # serial port of the servos
    baud: int = 1_000_000  # bits per second
    # The servos stop by themselves after this time in s without a request: 0.02 to 2.54; 0: off.
    # Default: 0.2 if the servos' firmware has a bus watchdog
    watchdog_s: float | None = None
    calibration: str | None = None  # calibration file; default: in the user's settings folder
    tracker: str | None = None  # file of the ring to which a tracker process writes the `channels`
    # latency of the USB adapter in s, at most 0.1; default: what the system reports
    latency_s: Annotated[float, Range(0, 0.1)] | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Checked):
    """Table `simulated:` of a robot's file."""

    # rate of goals and measurements; the physics run at 1 kHz
    rate_hz: Annotated[float, Range(1, 10_000)] = 250.0
    folder: str | None = None  # folder of the shared memory; default: a temporary folder
    place: dict = field(default_factory=dict)  # body of the model -> initial position, m


@dataclass(frozen=True, kw_only=True)
class Config:
    """Contents of a robot's file."""

    # dynamixel, simulated, or your own class, such as mine.py:Arm in the same folder
    adapter: str
    joints: dict  # joint -> `Joint`
    rate_hz: float  # nominal control rate
    timeout_s: float  # maximum duration of reading the robot, and of sending a command
    max_reading_age_s: float  # the robot stops if its last reading is older than this
    model: str | None = None  # MJCF in the same folder
    workspace: dict | None = None  # see `WorkspaceOptions`
    channels: dict = field(default_factory=dict)  # additional measurement -> {shape, unit}
    dynamixel: dict = field(default_factory=dict)  # see `DynamixelOptions`
    simulated: dict = field(default_factory=dict)  # see `SimulationOptions`
    options: dict = field(default_factory=dict)  # options of your own adapter
    # names of the times above that may be outside the plausible range
    unusual: list[str] = field(default_factory=list)

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
                    f"{name} is {value:g}, expected {low:g} to {high:g}: {hint}. If {value:g} is "
                    f"right, add unusual: [{name}]"
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
        """Path of the MJCF. Raises UserError if the robot's file names none, or it is missing."""
        if self.config.model is None:
            raise UserError(f"{self.path}: the robot's MJCF is needed: add model: <file>")
        model = self.path.parent / self.config.model
        if not model.is_file():
            raise UserError(f"{self.path}: model {model} does not exist: correct its path")
        return model


def robot_names() -> list[str]:
    """Return the names of the robots in configs/robot."""
    return sorted(path.stem for path in (share("configs") / "robot").glob("*.yaml"))


def find(name: str | Path) -> Path:
    """Return the path of a robot's file, by name or path. Raises UserError."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise UserError(f"robot file {name} does not exist: correct its path")
        return Path(name)
    if name not in robot_names():
        raise UserError(
            f"{unknown('robot', str(name), robot_names())}; your own file must end in .yaml"
        )
    return share("configs") / "robot" / f"{name}.yaml"


def describe(name: str | Path, **changes: Any) -> RobotDescription:
    """Read and check a robot's file. `changes` replace values of the file. Raises UserError."""
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
    """Raise UserError if `unusual` names an unknown limit, or if a turning joint has m_per_rad."""
    try:
        _refuse_unknown(row.unusual, LIMITS)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if row.m_per_rad is None:
        return
    if row.unit != "m" or not 0 < row.m_per_rad < math.inf:
        raise UserError(
            f"{where}.m_per_rad={row.m_per_rad:g}: expected a positive number, and unit: m. "
            "m_per_rad is the joint's travel in m per rad of its servo"
        )


def _refuse_unknown(names: Sequence[str], allowed: Iterable[str]) -> None:
    if wrong := [name for name in names if name not in allowed]:
        raise ValueError(unknown("unusual", wrong[0], allowed))


def unconfirmed_file(
    name: str | Path, *, adapter: str | None = None, **changes: Any
) -> Path | None:
    """Return the path of the file of unconfirmed joints; None: the robot is simulated.

    `control.unconfirmed` describes the file. The arguments are those of `make.make`.
    """
    described = describe(name, **({"adapter": adapter} if adapter else {}))
    if described.config.adapter == "simulated":
        return None
    if described.config.adapter not in ADAPTERS:
        return settings_folder() / f"{described.spec.name}.unconfirmed.json"
    line = build(DynamixelOptions, described.config.dynamixel | changes, "dynamixel.")
    return calibration_file(described, line).with_suffix(".unconfirmed.json")


def arm_identity(name: str | Path, *, adapter: str | None = None, **changes: Any) -> str:
    """Return a text that identifies the arm to which `make.make` would connect.

    For servos, the text is the port; for a simulation, its folder. For other adapters, the text is
    the robot's file and the adapter's options. The arguments are those of `make.make`.
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
    """Return the path of the calibration file; default: in the settings folder."""
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
                f"{path.name}: workspace needs model: <file>, and 3 numbers in low and in high"
            )
        if (furthest := max(map(abs, (*box.low, *box.high)))) > FURTHEST_M:
            raise UserError(
                f"{path.name}: workspace reaches to {furthest:g} m, expected at most "
                f"{FURTHEST_M:g}: did you mean millimeters? Then write {furthest / 1e3:g}"
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
            f"{where}.grip.squeeze={table.squeeze:g}: expected a number above 0 and below the "
            f"joint's tracking_error, {row.tracking_error:g}. Otherwise every grip would be a "
            "tracking error"
        )
    if not 0 < table.current < row.current:
        raise UserError(
            f"{where}.grip.current={table.current:g}: expected a number above 0 and below the "
            f"joint's current, {row.current:g} A, at which the robot stops"
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

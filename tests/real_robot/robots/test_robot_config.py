"""Configuration files of robots: contents and refusals."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml

from envs.experts.arm import ArmExpert
from envs.suites.arm import Push, Reach
from offline_rl.utils.errors import UserError
from real_robot.control.kinematics import forward
from real_robot.robots.config import describe, find, robot_names
from real_robot.robots.dynamixel import calibration
from real_robot.robots.make import make
from real_robot.safety.limits import envelope, limit_problems

MINIMAL = {
    "adapter": "dynamixel",
    "rate_hz": 100,
    "timeout_s": 0.01,
    "max_reading_age_s": 0.05,
    "joints": {"a": {"id": 1, "position": [-1, 1]}, "b": {"id": 2}},
    "dynamixel": {"port": "/dev/none"},
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return path


@pytest.mark.parametrize("name", robot_names())
def test_every_included_robot_declares_every_limit(name: str) -> None:
    described = describe(name)
    assert not described.spec.limits.missing()
    assert described.model.is_file()
    limits = described.spec.limits
    assert (limits.position_low < limits.position_high).all()
    assert (limits.stop_acceleration >= limits.acceleration).all()
    assert (limits.stop_jerk >= limits.jerk).all()


def inside_desk() -> Any:
    """Return a function from q to True if the desk arm is in its workspace."""
    spec = describe("desk").spec
    return envelope(spec, spec.limits, spec.rate_hz, points=forward(spec)).inside


def test_inside_its_workspace_the_desk_arm_does_not_touch_the_table() -> None:
    """The reference is the height of elbow, wrist and tip from lengths and radii of the links."""
    limits, inside = describe("desk").spec.limits, inside_desk()
    rng, low = np.random.default_rng(0), 0
    for _ in range(2000):
        q = rng.uniform(limits.position_low, limits.position_high)
        heights = 0.12 + np.cumsum(np.cos(np.cumsum(q[1:4])) * [0.2, 0.2, 0.13])
        lowest = heights - [0.02, 0.018, 0.01]
        low += lowest[2] > 0 > lowest.min()
        assert not (inside(q.tolist()) and lowest.min() < 0)
    assert low >= 20  # although the tip is above it


@pytest.mark.parametrize("world", [Reach, Push])
def test_the_desk_arms_tasks_are_inside_its_workspace(world: Any) -> None:
    env, inside = world(4), inside_desk()
    expert, observations, running = ArmExpert(env), env.reset(range(4)), np.arange(4)
    for _ in range(60):
        step = env.step(expert(observations, running), running)
        for q in step.observations[:, :5].astype(float).tolist():
            assert inside(q)
        goes_on = ~(step.terminated | step.truncated)
        observations, running = step.observations[goes_on], running[goes_on]
        if len(running) == 0:
            break


@pytest.mark.parametrize("name", robot_names())
def test_a_robots_limits_are_inside_its_models(name: str) -> None:
    import mujoco

    described = describe(name)
    model = mujoco.MjModel.from_xml_path(str(described.model))
    low, high = np.array([model.joint(joint).range for joint in described.spec.joints]).T
    assert (described.spec.limits.position_low >= low).all()
    assert (described.spec.limits.position_high <= high).all()
    assert described.spec.workspace is not None
    for site in described.spec.workspace.points:
        model.site(site)


def test_undeclared_limits_are_reported_as_missing(tmp_path: Path) -> None:
    spec = describe(written(tmp_path)).spec
    missing = spec.limits.missing()
    assert ("position_low", 1) in missing
    assert ("position_low", 0) not in missing
    assert ("jerk", 0) in missing


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": 5}, "did you mean .*rate_hz"),
        ({"rate_hz": -1}, "positive"),
        ({"joints": {}}, "at least one"),
        ({"joints": {"a": {"velocty": 2}}}, "joints.a.velocity"),
        ({"joints": {"a": {"position": [1, -1]}}}, "lowest, highest"),
        ({"joints": {"a": 3}}, "expected keys and values"),
        ({"adapter": "feetech"}, "expected dynamixel, simulated"),
        ({"workspace": {"sites": ["tip"], "low": [0], "high": [1]}}, "3 numbers"),
        ({"channels": {"puck": {"unit": "m"}}}, "expected shape and unit"),
        ({"timeout_s": 10}, r"timeout_s is 10, expected 0.0001 to 1: .*milliseconds"),
        ({"max_reading_age_s": 50}, r"max_reading_age_s is 50, expected .*milliseconds"),
        ({"rate_hz": 0.01}, "rate_hz is 0.01, expected 5 to 2000: .*not a period"),
        ({"unusual": ["timeout"]}, "unusual 'timeout'; did you mean timeout_s"),
        ({"joints": {"a": {"unusual": ["velocty"]}}}, "joints.a: .*did you mean velocity"),
        ({"joints": {"a": {"m_per_rad": 0.01}}}, "joints.a.m_per_rad=0.01: .*unit: m"),
        ({"joints": {"a": {"id": 1}, "b": {"id": 1}}}, "joints a, b have the same id 1"),
        (
            {"model": "m", "workspace": {"sites": [], "low": [0, 0, 0], "high": [9, 9, 460]}},
            "reaches to 460 m.*millimeters",
        ),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        describe(written(tmp_path, **changes))


def test_a_limit_in_another_unit_is_refused_with_the_number_in_the_right_one() -> None:
    """20 degrees are 0.349 rad, 45 are 0.785, and 800 mA are 0.8 A."""
    joint: dict[str, Any] = {"id": 1, "position": [-1, 1], "velocity": 2, "acceleration": 20}
    joint |= {"jerk": 800, "stop_acceleration": 30, "stop_jerk": 2000}
    joint |= {"tracking_error": 0.35, "current": 0.8}

    def problems_of(tmp: Path, **changes: Any) -> list[str]:
        spec = describe(written(tmp, joints={"waist": joint | changes})).spec
        return limit_problems(spec.joints, spec.limits, spec.units, spec.unusual)

    with TemporaryDirectory() as folder:
        path = Path(folder)
        assert problems_of(path) == []
        for name, value, says in (
            ("tracking_error", 20, "20 rad, more than a full turn, .*degrees.*write 0.3491"),
            ("velocity", 45, "45 rad/s.*degrees.*write 0.7854"),
            ("current", 800, "800 A.*mA.*write 0.8"),
            ("acceleration", 1145, "acceleration is 1145 rad/s²"),
            ("stop_jerk", 200_000, "stop_jerk is 200000 rad/s³"),
            ("position", [-90, 1], "position is -90 rad.*write -1.571"),
        ):
            changes = {name: value}
            changes |= {"stop_acceleration": 1145} if name == "acceleration" else {}
            (first, *_) = problems_of(path, **changes)
            assert re.search(f"joint waist: {name}.*{says}|{says}", first), first
            assert f"unusual: [{name}]" in first
        usual = problems_of(
            path, tracking_error=20, velocity=45, unusual=["tracking_error", "velocity"]
        )
        assert usual == []
        assert problems_of(path, current=float("inf")) == []
        (first,) = problems_of(path, unit="m", tracking_error=5)
        assert re.search("5 m, expected at most 0.2: did you mean millimeters.*0.005", first)


def test_a_servo_that_moves_a_slide_needs_its_travel_and_answers_in_m(tmp_path: Path) -> None:
    """A tick is 2 pi / 4096 * 0.01 m at 0.01 m/rad; the range is the servo's."""
    path = tmp_path / "arm.json"
    servo = calibration.Servo(id=1, drive_mode=0, homing_offset=0, range_min=0, range_max=4095)
    calibration.save(path, {"a": servo})
    joint = {"id": 1, "position": [-0.02, 0.02], "unit": "m"}
    with pytest.raises(UserError, match=r"joints\.a is in m, but its servo turns: add m_per_rad"):
        make(written(tmp_path, joints={"a": joint}), calibration=str(path))
    robot = make(
        written(tmp_path, joints={"a": joint | {"m_per_rad": 0.01}}), calibration=str(path)
    )
    assert robot.spec.resolution.tolist() == [0.01 * 2 * np.pi / 4096]
    assert robot.spec.limits.position_low.tolist() == [-0.02]
    wide = joint | {"m_per_rad": 0.01, "position": [-1, 1]}
    robot = make(written(tmp_path, joints={"a": wide}), calibration=str(path))
    np.testing.assert_allclose(robot.spec.limits.position_low, -0.01 * np.pi)


def test_an_unknown_name_and_a_missing_file_have_different_messages(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean desk"):
        find("dessk")
    with pytest.raises(UserError, match="does not exist"):
        find(tmp_path / "none.yaml")
    assert find("desk").name == "desk.yaml"


def test_a_calibration_of_other_ids_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arm.json"
    servos = {
        joint: calibration.Servo(id=id_, drive_mode=0, homing_offset=0, range_min=0, range_max=4095)
        for joint, id_ in (("a", 1), ("b", 3))
    }
    calibration.save(path, servos)
    with pytest.raises(UserError, match=r"b has id 3, but id 2 in mine\.yaml"):
        make(written(tmp_path), calibration=str(path))
    with pytest.raises(UserError, match=r"did you mean dynamixel\.port"):
        make(written(tmp_path), prt="/dev/ttyUSB1")


OWN = """
class Arm:
    connect = arm = read = command = hold = disarm = close = None

    def __init__(self, described, port, speed=1):
        self.spec, self.port, self.speed = described.spec, port, speed


class Half:
    def __init__(self, described, **options):
        self.spec = described.spec


class Broken:
    def __init__(self, described, **options):
        raise OSError("no such port")
"""


def test_an_adapter_can_be_a_class_in_a_users_file(tmp_path: Path) -> None:
    """The class is in the robot's folder and gets the file's contents and its options."""
    (tmp_path / "arms.py").write_text(OWN)
    path = written(tmp_path, adapter="arms.py:Arm", options={"port": "/dev/a", "speed": 2})
    robot: Any = make(path, port="/dev/b")
    assert (robot.spec.joints, robot.port, robot.speed) == (("a", "b"), "/dev/b", 2)
    for name, sentence in {
        "arms.py:Half": "the class has no connect, arm, read, command, hold, disarm, close",
        "arms.py:Broken": "OSError: no such port",
        "arms.py:PortLost": "has no 'PortLost'",
        "nowhere.py:Arm": "nowhere.py",
        "nowhere:Arm": "No module named 'nowhere'",
        "servo": "expected dynamixel, simulated, or your own class, such as mine.py:Arm",
    }.items():
        with pytest.raises(UserError, match=sentence):
            make(written(tmp_path, adapter=name))

"""Robots are files: what is read from one, and what is refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from envs.experts.arm import ArmExpert
from envs.suites.arm import Push, Reach
from offline_rl.utils.errors import UserError
from real_robot.control.kinematics import forward
from real_robot.robots.config import describe, find, make, names
from real_robot.robots.dynamixel import calibration
from real_robot.safety.limits import envelope

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


@pytest.mark.parametrize("name", names())
def test_a_robot_of_ours_declares_every_limit(name: str) -> None:
    described = describe(name)
    assert not described.spec.limits.missing()
    assert described.model.is_file()
    limits = described.spec.limits
    assert (limits.position_low < limits.position_high).all()
    assert (limits.stop_acceleration >= limits.acceleration).all()
    assert (limits.stop_jerk >= limits.jerk).all()


def inside_desk() -> Any:
    """Whether the desk arm's points lie in its workspace, by q."""
    spec = describe("desk").spec
    return envelope(spec, spec.limits, spec.rate_hz, points=forward(spec)).inside


def test_no_part_of_the_desk_arm_is_in_the_table_where_it_is_in_its_workspace() -> None:
    """By the links' lengths and radii: how low elbow, wrist and tip reach."""
    limits, inside = describe("desk").spec.limits, inside_desk()
    rng, low = np.random.default_rng(0), 0
    for _ in range(2000):
        q = rng.uniform(limits.position_low, limits.position_high)
        heights = 0.12 + np.cumsum(np.cos(np.cumsum(q[1:4])) * [0.2, 0.2, 0.13])
        lowest = heights - [0.02, 0.018, 0.01]
        low += lowest[2] > 0 > lowest.min()
        assert not (inside(q.tolist()) and lowest.min() < 0)
    assert low >= 20  # though the tip is above it


@pytest.mark.parametrize("world", [Reach, Push])
def test_the_desks_own_tasks_are_done_inside_the_workspace(world: Any) -> None:
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


@pytest.mark.parametrize("name", names())
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


def test_what_is_not_declared_is_missing_not_assumed(tmp_path: Path) -> None:
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
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        describe(written(tmp_path, **changes))


def test_a_name_that_does_not_exist_is_told_from_a_file(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match=r"b has id 3, in mine\.yaml 2"):
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


def test_an_adapter_of_yours_is_a_class_in_a_file(tmp_path: Path) -> None:
    """Beside the robot's; it gets what the robot's file says, and its options."""
    (tmp_path / "arms.py").write_text(OWN)
    path = written(tmp_path, adapter="arms.py:Arm", options={"port": "/dev/a", "speed": 2})
    robot: Any = make(path, port="/dev/b")
    assert (robot.spec.joints, robot.port, robot.speed) == (("a", "b"), "/dev/b", 2)
    for name, sentence in {
        "arms.py:Half": "it has no connect, arm, read, command, hold, disarm, close",
        "arms.py:Broken": "OSError: no such port",
        "arms.py:Gone": "there is no Gone in",
        "nowhere.py:Arm": "nowhere.py",
        "nowhere:Arm": "No module named 'nowhere'",
        "servo": "expected dynamixel, simulated, or a class of yours, such as mine.py:Arm",
    }.items():
        with pytest.raises(UserError, match=sentence):
            make(written(tmp_path, adapter=name))

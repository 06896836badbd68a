"""`robot calibrate` on new servos with arbitrary mounting and a simulated operator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offline_rl.utils.errors import UserError
from real_robot import calibrating
from real_robot.robots.config import RobotDescription
from real_robot.robots.dynamixel import bus, table
from real_robot.robots.make import make

ZERO, ASIDE = np.zeros(5), np.full(5, 0.3)
LOW, HIGH = np.array([-2.3, -1.5, -2.4, -1.8, -2.7]), np.array([2.2, 1.4, 2.3, 1.7, 2.6])


class Person:
    """Simulated operator. `lazy` names a step that is left out."""

    def __init__(self, rig: Any, lazy: str = "") -> None:
        self.rig, self.lazy, self.heard = rig, lazy, list[str]()

    def __call__(self, sentence: str, meanwhile: Callable[[], Any]) -> None:
        self.heard.append(sentence)
        poses = {"positive": [ASIDE], "zero": [ZERO], "ends": [LOW, ZERO, HIGH]}
        for word, places in poses.items():
            for place in places if word in sentence and word != self.lazy else ():
                self.rig.event("pose", q=place)
                meanwhile()


@pytest.fixture
def new_arm(make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an uncalibrated arm. Every other servo is reversed."""
    rig = make_rig(calibrated=False)
    monkeypatch.setattr(bus, "SerialPort", lambda path, baud: rig.port)
    return rig


def test_an_arm_moves_as_its_model_once_it_is_calibrated(
    tmp_path: Any, new_arm: Any, desk: RobotDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "calibration.json")
    person = Person(new_arm)
    assert calibrating.calibrate("desk", ask=person, calibration=file) == file
    assert len(person.heard) == 4
    monkeypatch.setattr("real_robot.robots.dynamixel.robot.SerialPort", bus.SerialPort)
    robot = make("desk", calibration=file)
    robot.connect()
    pose = np.array([0.5, -0.4, 1.2, 0.3, -1.0])
    new_arm.event("pose", q=pose)
    np.testing.assert_allclose(robot.read().q, pose, atol=0.004)
    limits = robot.spec.limits
    np.testing.assert_allclose(limits.position_low, LOW, atol=0.004)
    np.testing.assert_allclose(limits.position_high, HIGH, atol=0.004)
    assert robot.arm().code == 0
    robot.close()


@pytest.mark.parametrize(
    ("lazy", "sentence"),
    [
        ("positive", "not turned in its positive direction"),
        ("ends", "not moved to both ends of its range"),
    ],
)
def test_a_joint_that_was_not_moved_is_named_and_no_file_is_written(
    tmp_path: Any, new_arm: Any, lazy: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        calibrating.calibrate(
            "desk", ask=Person(new_arm, lazy), calibration=str(tmp_path / "calibration.json")
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("owner", "claimed"), [(4242, True), (None, False)])
def test_a_port_in_use_by_a_run_is_refused(
    new_arm: Any, monkeypatch: pytest.MonkeyPatch, owner: int | None, claimed: bool
) -> None:
    """Otherwise torque would go off while a policy moves the arm."""
    monkeypatch.setattr(new_arm.port, "owner", lambda: owner)
    monkeypatch.setattr(new_arm.port, "claim", lambda: claimed)
    person = Person(new_arm)
    with pytest.raises(UserError, match=f"in use by {'process 4242' if owner else 'another'}"):
        calibrating.calibrate("desk", ask=person)
    assert (new_arm.events, person.heard) == ([], [])


def test_calibration_sets_position_mode(tmp_path: Any, new_arm: Any) -> None:
    """LeRobot leaves mode 4, extended position."""
    for servo in new_arm.line.servos:
        assert servo.write(table.OPERATING_MODE.address, b"\4") == 0
    file = str(tmp_path / "calibration.json")
    calibrating.calibrate("desk", ask=Person(new_arm), calibration=file)
    modes = [servo.get(table.OPERATING_MODE) for servo in new_arm.line.servos]
    assert modes == [table.POSITION_MODE] * 5


def test_a_joint_that_passed_tick_0_backwards_is_calibrated_like_any_other(
    tmp_path: Any, new_arm: Any
) -> None:
    """Servo 1 shows a negative tick when turned; at its zero it is within its turn again."""
    servo = new_arm.line.servos[0]
    servo.mounting_ticks = 1030 - table.CENTER
    person = Person(new_arm)

    def ask(sentence: str, meanwhile: Callable[[], Any]) -> None:
        if "positive" in sentence:
            new_arm.event("pose", q=-1.6 * (np.arange(5) == 0) + ASIDE * (np.arange(5) > 0))
            assert servo.position() < 0
        else:
            person(sentence, meanwhile)

    file = str(tmp_path / "calibration.json")
    calibrating.calibrate("desk", ask=ask, calibration=file)


def test_a_servo_past_its_turn_is_not_reported_as_silent(tmp_path: Any, new_arm: Any) -> None:
    new_arm.line.servos[0].mounting_ticks = -10 - table.CENTER
    with pytest.raises(UserError, match=r"servo 1 shows tick -10 .*past its tick 0.*power off"):
        calibrating.calibrate("desk", ask=Person(new_arm), calibration=str(tmp_path / "c.json"))


def test_a_silent_servo_ends_calibration_before_anything_is_written(new_arm: Any) -> None:
    new_arm.faults(missing=(4,))
    with pytest.raises(UserError, match="servo 4 does not answer"):
        calibrating.calibrate("desk", ask=Person(new_arm))
    assert new_arm.of("write") == []

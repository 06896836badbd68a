"""The simulated robot: MuJoCo in a separate process, and its tracker."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from offline_rl.utils.errors import UserError
from real_robot.robot import Channel, Code, Command, Robot
from real_robot.robots.config import RobotDescription, describe, find
from real_robot.robots.make import make
from real_robot.robots.physics import Physics
from real_robot.robots.simulated import tracker_values


def test_a_simulated_tracker_measures_the_goal_and_nan_for_missing_bodies(
    desk: RobotDescription,
) -> None:
    """The goal of arm/push is where its environment places the target."""
    physics = Physics(desk.model, desk.spec.joints)
    channels = tracker_values(physics, {**desk.spec.channels, "force": Channel((1,), "N")})
    physics.place("target", [0.24, 0.08, 0.0])
    physics.place("puck", [0.2, -0.05])
    physics.advance(0)
    assert channels["goal"].tolist() == [0.24, 0.08]
    assert channels["target"].tolist() == [0.24, 0.08, 0.0]
    assert channels["puck"].tolist() == [0.2, -0.05]
    assert np.isnan(channels["force"]).all()


def test_bodies_are_at_their_configured_places_from_the_first_reading(tmp_path: Path) -> None:
    values = yaml.safe_load(find("desk").read_text()) | {"adapter": "simulated"}
    (tmp_path / "desk.xml").write_text(find("desk").with_name("desk.xml").read_text())
    file = tmp_path / "desk.yaml"

    def connected(place: dict[str, Any]) -> Robot:
        file.write_text(yaml.safe_dump(values | {"simulated": {"place": place}}))
        robot = make(file, folder=str(tmp_path / "memory"))
        robot.connect()
        return robot

    robot = connected({"target": [0.1, 0.2, 0.3], "puck": [0.25, -0.125, 0]})
    channels = robot.read().channels
    robot.close()
    np.testing.assert_allclose(channels["target"], [0.1, 0.2, 0.3])
    np.testing.assert_allclose(channels["puck"], [0.25, -0.125])
    with pytest.raises(UserError, match=r"desk\.yaml: simulated\.place\.cup=.*cup"):
        connected({"cup": [0.1, 0.2, 0.3]})
    with pytest.raises(UserError, match=r"simulated\.place\.target=\[0\.1\]"):
        connected({"target": [0.1]})


def test_the_desk_robots_target_is_in_the_range_of_its_task() -> None:
    place = describe("desk").config.simulated["place"]
    distance, height = np.hypot(*place["target"][:2]), place["target"][2]
    assert 0.15 <= distance <= 0.32
    assert 0.04 <= height <= 0.18
    assert 0.19 <= np.hypot(*place["puck"][:2]) <= 0.28


@pytest.mark.slow
def test_a_simulated_robot_keeps_time_and_is_shared(tmp_path: Path) -> None:
    folder = str(tmp_path / "memory")
    robot, watchdog = (make("desk", adapter="simulated", folder=folder) for _ in range(2))
    robot.connect()
    watchdog.connect()
    reading = robot.arm()
    assert reading.code is Code.OK
    goal = reading.q + np.array([0.3, 0.0, 0.0, 0.0, 0.2])
    begin, first = time.monotonic_ns(), int(robot.state["simulated_ns"])  # type: ignore[attr-defined]
    for k in range(100):
        robot.command(Command(k, time.monotonic_ns(), goal))
        time.sleep(0.01)
    state = robot.state  # type: ignore[attr-defined]
    np.testing.assert_allclose(state["q"], goal, atol=0.02)
    factor = (int(state["simulated_ns"]) - first) / (int(state["time_ns"]) - begin)
    assert factor == pytest.approx(
        1, abs=0.3
    )  # a shared machine stalls, which the factor shows, too
    robot.command(Command(100, 0, goal + 0.5))
    time.sleep(0.05)
    watchdog.hold("test")
    time.sleep(0.5)
    assert abs(robot.read().dq).max() < 0.05
    assert abs(robot.read().q[0] - goal[0]) < 0.45
    watchdog.close()
    robot.close()
    assert robot.read().code is Code.LOST

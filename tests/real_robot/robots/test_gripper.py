"""Gripper on an object: contact is not a fault, force is bounded, collisions stop the robot."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.robot.logic import Swing
from benchmarks.robot.stepped import Stepped
from offline_rl.utils.errors import UserError
from real_robot.control.loop import Request
from real_robot.robots.config import describe, find
from real_robot.safety.states import Reason, State

GRIPPER, GRIP_A, SQUEEZE = 4, 0.4, 0.08


class Closing(Swing):
    """Policy that turns the last joint at `speed` rad/s by at most `way` rad."""

    speed, way, joint = 1.0, 1.5, GRIPPER
    opens = False  # the joint opens

    def path(self, times_s: np.ndarray) -> np.ndarray:
        since = np.maximum(times_s - self.bench.start_s, 0)
        goals = np.tile(self.middle, (len(times_s), 1))
        goals[:, self.joint] += np.clip(self.speed * since, -self.way, self.way)
        return goals


def robot_file(folder: Path, **grip: Any) -> Path:
    values = yaml.safe_load(find("desk").read_text())
    values["joints"]["roll"] |= {"current": 1.2}
    usual = {"current": GRIP_A, "squeeze": SQUEEZE, "closes": "high"}
    values["joints"]["roll"]["grip"] = usual | grip
    (folder / "desk.xml").write_text(find("desk").with_name("desk.xml").read_text())
    path = folder / "gripper.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def run(
    folder: Path, seed: int, seconds: float, act: Any = lambda bench: None, **changes: Any
) -> Any:
    policy = Closing()
    for name, value in changes.items():
        setattr(policy, name, value)
    closes = "high" if policy.speed > 0 or policy.opens else "low"
    bench = Stepped(folder / str(seed), policy, seed, robot_file(folder, closes=closes))
    policy.bench = bench
    bench.arm()
    policy.middle = np.array(bench.guard.motion.q)
    bench.start_s = bench.now_ns * 1e-9  # type: ignore[attr-defined]
    act(bench)
    bench.inputs.requests.append(Request(start=True))
    currents = []
    for _ in range(round(seconds * 100)):
        bench.tick()
        currents.append(bench.guard.motion.current_a[GRIPPER])
        if bench.guard.machine.latched is not None:
            break
    return SimpleNamespace(bench=bench, guard=bench.guard, currents=currents)


def meets(at_rad: float, closes: int = 1, joint: int = GRIPPER) -> Any:
    """Place an object in the way of a joint."""
    return lambda bench: bench.event("grasp", index=joint, at_rad=at_rad, closes=closes)


@pytest.mark.parametrize(("seed", "sign"), [(0, 1), (1, 1), (2, -1), (3, -1)])
def test_a_grasp_holds_within_its_current_and_is_not_a_fault(
    tmp_path: Path, seed: int, sign: int
) -> None:
    """This holds for both closing directions, and in HOLD."""
    at_rad = float(np.random.default_rng(seed).uniform(0.2, 0.8))
    result = run(tmp_path, seed, 2.0, meets(sign * at_rad, sign), speed=float(sign))
    guard, bench = result.guard, result.bench
    assert guard.state is State.RUNNING
    assert max(result.currents[-50:]) < 1.05 * GRIP_A
    assert min(result.currents[-50:]) > 0.75 * GRIP_A
    bench.inputs.requests.append(Request(finish=True))
    bench.run(150)
    assert guard.state is State.HOLD
    assert guard.machine.latched is None
    q, goal = sign * guard.motion.measured[GRIPPER], sign * guard.motion.q[GRIPPER]
    assert at_rad < q < at_rad + 0.05
    assert 0 < goal - q < SQUEEZE
    assert guard.motion.current_a[GRIPPER] > 0.5 * GRIP_A


STOPS = {Reason.TRACKING_ERROR, Reason.SENSOR_STUCK, Reason.CURRENT_HIGH, Reason.CURRENT_EXTREME}


def test_a_gripper_that_is_blocked_while_it_opens_stops(tmp_path: Path) -> None:
    result = run(tmp_path, 0, 2.0, meets(-0.4, -1), speed=-1.0, opens=True)
    assert result.guard.cause in STOPS
    assert result.guard.culprits == 1 << GRIPPER


def test_another_blocked_joint_still_stops_the_robot(tmp_path: Path) -> None:
    result = run(tmp_path, 0, 2.0, meets(0.3, 1, 0), joint=0)
    assert result.guard.cause in STOPS
    assert result.guard.culprits == 1


def test_a_gripper_that_is_forced_far_beyond_its_grip_stops(tmp_path: Path) -> None:
    """3.5 N m on a servo of 1.78 N m/A are 2 A; the joint may draw 1.2."""
    result = run(tmp_path, 0, 1.0, meets(0.3))
    assert result.guard.state is State.RUNNING
    physics = result.bench.line.physics
    physics.grasp(GRIPPER, float(physics.q[GRIPPER]) - 0.15, 1)
    result.bench.run(60)
    assert result.guard.cause in STOPS


def test_an_emergency_stop_does_not_drop_the_object(tmp_path: Path) -> None:
    result = run(tmp_path, 0, 1.5, meets(0.3))
    result.bench.inputs.requests.append(Request(estop=True))
    result.bench.run(100)
    assert result.guard.state is State.ESTOP
    assert result.guard.motion.q[GRIPPER] > result.guard.motion.measured[GRIPPER] + 0.003
    assert result.guard.motion.current_a[GRIPPER] > 0.5 * GRIP_A


@pytest.mark.parametrize(
    ("grip", "says"),
    [
        ({"squeeze": 0.4}, "grip.squeeze=0.4: expected a number .*tracking_error, 0.35"),
        ({"current": 1.2}, "grip.current=1.2: expected a number .*joint's current, 1.2"),
        ({"closes": "up"}, "closes"),
        ({"force": 3}, "force"),
    ],
)
def test_a_grip_outside_the_joints_own_limits_is_refused(
    tmp_path: Path, grip: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        describe(robot_file(tmp_path, **grip))

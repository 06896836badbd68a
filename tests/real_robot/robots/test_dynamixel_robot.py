"""Adapter for X servos: refusals, arming, and faults in readings.

The simulated servos have arbitrary mounting angles, and every other one counts backward. So angles
are right only if calibration and signs are.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.robot.simulated_bus import arm
from benchmarks.robot.simulated_bus.servo import SimulatedServo
from offline_rl.utils.errors import UserError
from real_robot.control.rings import Ring
from real_robot.robot import Code, Status
from real_robot.robots import tracker
from real_robot.robots.dynamixel import calibration, table
from real_robot.robots.dynamixel.bus import Answer, Bus
from real_robot.robots.dynamixel.robot import Clock, DynamixelRobot

TICK = 2 * np.pi / 4096


def test_it_reads_the_joints_angles(rig: Any) -> None:
    q = np.array([0.3, -0.4, 1.2, -0.7, 0.9])
    rig.line.physics.pose(q)
    rig.robot.connect()
    reading = rig.robot.read()
    assert reading.code is Code.OK
    np.testing.assert_allclose(reading.q, q, atol=TICK / 2 + 1e-9)
    assert reading.request_ns <= reading.middle_ns <= reading.end_ns
    assert rig.robot.read().seq == reading.seq + 1


def test_connecting_writes_nothing(rig: Any) -> None:
    rig.robot.connect()
    assert not rig.events


def test_arming_moves_nothing_and_commands_move_the_joints_that_are_named(rig: Any) -> None:
    q = rig.line.physics.q.copy()
    reading = rig.armed()
    np.testing.assert_allclose(rig.line.physics.q, q, atol=0.02)  # it sags under gravity
    assert not reading.status.any()
    goal = reading.q + np.array([0.2, 0.1, -0.2, 0.1, 0.3])
    for _ in range(100):
        reading, sent = rig.tick(goal)
    np.testing.assert_allclose(sent.q, goal, atol=TICK / 2 + 1e-9)
    np.testing.assert_allclose(rig.line.physics.q, goal, atol=0.02)
    np.testing.assert_allclose(reading.q, rig.line.physics.q, atol=TICK)


def test_velocity_and_current_have_the_joints_sign(rig: Any) -> None:
    goal = rig.armed().q
    for _ in range(15):
        goal = goal + np.array([0.01, 0.01, -0.01, -0.01, 0.01])
        reading, _ = rig.tick(goal)
    np.testing.assert_allclose(reading.dq, rig.line.physics.dq, atol=0.1)
    assert (np.sign(reading.dq) == [1, 1, -1, -1, 1]).all()
    amperes = rig.line.physics.torque / (4.1 / 2.3)
    np.testing.assert_allclose(reading.current_a, amperes, atol=0.1)


def test_commands_are_inside_the_limits(rig: Any) -> None:
    rig.armed()
    limits = rig.robot.spec.limits
    for wild in (-9.0, 9.0):
        _, sent = rig.tick(np.full(5, wild))
        assert (sent.q >= limits.position_low).all()
        assert (sent.q <= limits.position_high).all()
        nearest = limits.position_low if wild < 0 else limits.position_high
        np.testing.assert_allclose(sent.q, nearest, atol=rig.robot.spec.resolution[0])


def test_nan_is_never_sent(rig: Any) -> None:
    q = rig.armed().q
    before = len(rig.of("goals"))
    for bad in (np.nan, np.inf):
        _, sent = rig.tick(np.where(np.arange(5) == 2, bad, q))
        assert sent.code is Code.REFUSED
    assert len(rig.of("goals")) == before


def test_a_calibrations_range_tightens_the_limits(desk: Any, rig: Any) -> None:
    servos = arm.calibration(rig.line, desk)
    servos["elbow"] = replace(servos["elbow"], range_min=1500, range_max=2500)
    robot = type(rig.robot)(desk.spec, servos, lambda: rig.port, baud=1_000_000)
    at = robot.spec.joints.index("elbow")
    assert robot.spec.limits.position_low[at] == pytest.approx((1500 - 2048) * TICK)
    assert robot.spec.limits.position_high[at] == pytest.approx((2500 - 2048) * TICK)
    assert robot.spec.limits.position_high[0] == desk.spec.limits.position_high[0]


def test_closing_holds(rig: Any) -> None:
    rig.armed()
    rig.robot.close()
    rig.robot.close()
    rig.wait(1.0)
    assert all(servo.torque_on for servo in rig.line.servos)
    assert abs(rig.line.physics.dq).max() < 0.01


def test_tracker_values_have_the_trackers_timestamp(rig: Any, desk: Any, tmp_path: Path) -> None:
    ring = Ring.create(tmp_path / "tracker", tracker.record_type(desk.spec.channels), tracker.SLOTS)
    servos = arm.calibration(rig.line, desk)
    robot = DynamixelRobot(
        desk.spec, servos, lambda: rig.port, baud=1_000_000, tracker=tmp_path / "tracker"
    )
    robot.connect()
    assert np.isnan(robot.read().channels["target"]).all()
    seen_ns = rig.port.now_ns() - 30_000_000
    ring.record["time_ns"], ring.record["target"] = seen_ns, [0.1, 0.2, 0.3]
    ring.push()
    reading = robot.read()
    assert (reading.channels["target"].tolist(), reading.channels_ns) == ([0.1, 0.2, 0.3], seen_ns)
    ring.record["time_ns"] = rig.port.now_ns() + 10**9  # with another clock it would never be old
    ring.push()
    assert np.isnan(robot.read().channels["target"]).all()


def test_disarming_lets_go(rig: Any) -> None:
    rig.armed()
    rig.robot.disarm()
    assert rig.robot.read().status.tolist() == [0] * 5
    assert not any(servo.torque_on for servo in rig.line.servos)


def test_joints_that_still_hold_are_named(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.armed()
    stuck, torque = rig.line.servos[1], type(rig.line.servos[1])._torque
    monkeypatch.setattr(SimulatedServo, "_torque", lambda s, on: s is stuck or torque(s, on))
    with pytest.raises(UserError, match=r"^shoulder may still hold"):
        rig.robot.disarm()


def test_arming_sets_goals_to_the_present_positions(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A servo that kept its last goal would jump there, so each confirms its goal."""
    told, write, sync_write = list[tuple[int, Any]](), Bus.write, Bus.sync_write

    def hears(bus: Bus, id_: int, address: int, data: bytes, *patience: float) -> Any:
        told.append((address, (id_, data)))
        return write(bus, id_, address, data, *patience)

    def hear(bus: Bus, ids: Any, address: int, data: Any) -> Any:
        told.append((address, [*data]))
        return sync_write(bus, ids, address, data)

    monkeypatch.setattr(Bus, "write", hears)
    monkeypatch.setattr(Bus, "sync_write", hear)
    rig.robot.connect()
    stands = [(s.id, table.GOAL_POSITION.pack(s.position())) for s in rig.line.servos]
    rig.robot.arm()
    torque = [address for address, _ in told].index(table.TORQUE_ENABLE.address)
    assert told[torque - 5 : torque] == [(table.GOAL_POSITION.address, each) for each in stands]


@pytest.mark.parametrize("heard", ["goal", "torque"])
def test_a_servo_that_misses_a_part_of_arming_is_retried_or_named(
    rig: Any, monkeypatch: pytest.MonkeyPatch, heard: str
) -> None:
    write, deaf = Bus.write, table.GOAL_POSITION if heard == "goal" else table.TORQUE_ENABLE
    missed = list[int]()

    def write_but_one(bus: Bus, id_: int, address: int, data: bytes, *patience: float) -> Any:
        if id_ == 3 and address == deaf.address and len(missed) < lost:
            missed.append(address)
            return Answer(Code.TIMEOUT)
        return write(bus, id_, address, data, *patience)

    monkeypatch.setattr(Bus, "write", write_but_one)
    lost = 2
    rig.armed()
    assert len(missed) == 2
    rig.robot.disarm()
    lost = 100
    rig.line.servos[2].write(table.TORQUE_ENABLE.address, b"\0")
    with pytest.raises(UserError, match="elbow: servo 3 did not accept"):
        rig.robot.arm()
    assert not any(servo.torque_on for servo in rig.line.servos if servo.id != 3)


def test_a_servo_whose_mode_changed_after_connecting_is_not_armed(rig: Any) -> None:
    rig.robot.connect()
    rig.line.servos[3].write(table.OPERATING_MODE.address, b"\x04")
    with pytest.raises(UserError, match=r"wrist: servo 4 is in operating mode 4 .*calibrate"):
        rig.robot.arm()
    assert not any(servo.torque_on for servo in rig.line.servos)


def test_a_second_instance_holds_at_the_present_position(
    make_rig: Callable[..., Any], desk: Any
) -> None:
    """The watchdog's instance, connected at the same time, sets goals to positions once."""
    rig = make_rig()
    goal = rig.armed().q
    other = type(rig.robot)(
        desk.spec, arm.calibration(rig.line, desk), lambda: rig.port, baud=1_000_000
    )
    other.connect()
    for _ in range(20):
        goal = goal + 0.015
        rig.tick(goal)
    here = rig.line.physics.q.copy()
    other.hold("test")
    rig.wait(0.001)
    goals = rig.of("goals")[-1]
    shown = np.array([goals[str(id_)] for id_ in (1, 2, 3, 4, 5)])
    np.testing.assert_allclose((shown - 2048) * TICK, here, atol=0.02)
    rig.wait(0.5)
    assert abs(rig.line.physics.dq).max() < 0.01


# refusals


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"homing_offset": 7}, "homing offset"),
        ({"drive_mode": 4}, "drive mode"),
        ({"id": 77}, "servo 77 does not answer"),
    ],
)
def test_another_arms_calibration_is_refused(
    rig: Any, desk: Any, change: dict[str, int], says: str
) -> None:
    servos = arm.calibration(rig.line, desk)
    servos["wrist"] = replace(servos["wrist"], **change)
    robot = type(rig.robot)(desk.spec, servos, lambda: rig.port, baud=1_000_000)
    with pytest.raises(UserError, match=f"wrist: .*{says}"):
        robot.connect()
    assert not rig.events


def test_a_line_too_slow_for_the_loop_is_refused(make_rig: Callable[..., Any], desk: Any) -> None:
    rig = make_rig()
    spec = replace(desk.spec, timeout_s=0.004)
    servos = arm.calibration(rig.line, desk)
    robot = type(rig.robot)(spec, servos, lambda: rig.port, baud=1_000_000)
    with pytest.raises(UserError, match="return delay"):
        robot.connect()


def test_a_servo_with_a_hardware_error_is_not_armed(rig: Any) -> None:
    rig.event("fail", id=3, bits=0x20)
    rig.robot.connect()
    with pytest.raises(UserError, match="elbow: overload"):
        rig.robot.arm()
    assert not any(servo.torque_on for servo in rig.line.servos)


def test_a_joint_outside_its_servos_limits_is_not_armed(rig: Any) -> None:
    rig.line.physics.pose(np.array([0.0, 0.2, 2.0, 1.97, 0.0]))
    rig.robot.connect()
    with pytest.raises(UserError, match="wrist: servo 4 did not accept"):
        rig.robot.arm()
    assert not any(servo.torque_on for servo in rig.line.servos)


def test_servos_that_would_ignore_goals_are_refused(rig: Any) -> None:
    """A sync write has no answer: a goal beyond the servo's limits would be lost silently."""
    servo = rig.line.servo(3)
    servo.write(table.MAX_POSITION.address, table.MAX_POSITION.pack(3000))
    with pytest.raises(UserError, match=r"elbow: servo 3 is limited to ticks .* to 3000"):
        rig.robot.connect()


def test_a_calibration_file_with_other_joints_is_refused(
    tmp_path: Path, rig: Any, desk: Any
) -> None:
    servos = arm.calibration(rig.line, desk)
    path = tmp_path / "arm.json"
    calibration.save(path, servos)
    assert calibration.load(path, desk.spec.joints) == servos
    with pytest.raises(UserError, match="another arm"):
        calibration.load(path, (*desk.spec.joints[:-1], "gripper"))
    with pytest.raises(UserError, match="robot calibrate"):
        calibration.load(tmp_path / "none.json", desk.spec.joints)
    calibration.save(path, servos | {"roll": replace(servos["roll"], id=1)})
    with pytest.raises(UserError, match="same id"):
        calibration.load(path, desk.spec.joints)


def test_calibrating_sets_the_zero(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(calibrated=False)
    rig.line.physics.pose(np.array([0.1, -0.2, 0.3, 0.0, 0.0]))
    bus = rig.bus
    calibration.set_zero(bus, 2)
    assert rig.line.servo(2).position() == table.CENTER
    ranges = calibration.Ranges(bus, (2,))
    for angle in (0.0, 0.5, -0.4):
        rig.line.physics.pose(np.array([0.1, -0.2 + angle, 0.3, 0.0, 0.0]))
        ranges.update()
    servo = calibration.read_back(bus, 2, int(ranges.low[0]), int(ranges.high[0]))
    assert servo.range_max - servo.range_min == pytest.approx(0.9 / TICK, abs=2)
    calibration.write_limits(bus, servo)
    shown = rig.line.servo(2)
    assert (shown.get(table.MIN_POSITION), shown.get(table.RETURN_DELAY)) == (servo.range_min, 0)
    shown.mounting_ticks += 3000
    with pytest.raises(UserError, match="remount its horn"):
        calibration.set_zero(bus, 2)


# faults, as the failure matrix numbers them


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_9_a_missing_servo_is_named_in_time_and_its_values_are_the_last(
    rig: Any, missing: int
) -> None:
    q = rig.armed().q
    before, _ = rig.tick(q)
    rig.faults(missing=(missing,))
    reading = rig.robot.read()
    assert reading.code is Code.TIMEOUT
    assert reading.status.tolist() == [
        int(Status.MISSING) if id_ == missing else 0 for id_ in (1, 2, 3, 4, 5)
    ]
    assert reading.end_ns - reading.request_ns < 10e6
    assert reading.seq == before.seq
    assert reading.middle_ns == before.middle_ns  # time of its values
    np.testing.assert_array_equal(reading.q, before.q)
    rig.faults()
    assert rig.robot.read().code is Code.OK


@pytest.mark.parametrize(("share", "fails_at_most"), [(0.02, 0.02), (0.2, 0.6)])
@pytest.mark.parametrize("fault", ["drop", "corrupt"])
def test_10_and_11_lost_and_corrupt_answers_are_retried_within_the_tick(
    rig: Any, fault: str, share: float, fails_at_most: float
) -> None:
    q = rig.armed().q
    rig.faults(**{fault: share})
    failed = 0
    for _ in range(200):
        reading, _ = rig.tick(q, 0.015)
        failed += reading.code is not Code.OK
        assert reading.end_ns - reading.request_ns <= rig.robot.spec.timeout_s * 1e9
        np.testing.assert_allclose(reading.q, rig.line.physics.q, atol=0.01)
    assert failed <= fails_at_most * 200


def test_if_all_answers_are_late_the_reading_waits_until_its_timeout(rig: Any) -> None:
    """2.6 ms on the line and 4 ms late: there is no time left to ask all servos again."""
    q = rig.armed().q
    rig.faults(delay_s=0.004)
    reading, _ = rig.tick(q)
    assert reading.code is Code.OK
    rig.faults(delay_s=0.009)
    reading, _ = rig.tick(q)
    assert reading.code is Code.TIMEOUT
    assert reading.end_ns - reading.request_ns <= rig.robot.spec.timeout_s * 1e9


def test_12_after_a_late_answer_readings_are_current(rig: Any) -> None:
    """The arm turns with known motion; a reading of an earlier request would lag."""
    q = rig.armed().q
    for k in range(400):
        if k in (50, 120, 200):
            rig.event("late_once", seconds=(0.008, 0.02, 0.06)[(50, 120, 200).index(k)])
        q = q + np.array([0.008 * np.cos(k / 40), 0, 0, 0, 0])
        speed, at = rig.line.physics.dq[0], rig.line.physics.q[0]
        reading, _ = rig.tick(q)
        if reading.code is Code.OK:
            moved = abs(speed) * (reading.end_ns - reading.request_ns) * 1e-9
            assert abs(reading.q[0] - at) < moved + 0.003
    assert rig.robot.bus.counters.timeouts >= 3
    assert reading.code is Code.OK


def test_13_unplugging_is_a_code_and_plugging_in_arms_nothing(rig: Any) -> None:
    q = rig.armed().q
    rig.faults(unplugged=True)
    reading, sent = rig.tick(q)
    assert (reading.code, sent.code) == (Code.LOST, Code.LOST)
    assert reading.end_ns - reading.request_ns <= rig.robot.spec.timeout_s * 1e9
    rig.robot.close()
    rig.faults()
    before = len(rig.events)
    rig.robot.connect()
    assert len(rig.events) == before
    assert all(servo.torque_on for servo in rig.line.servos)  # held all the time


def test_14_a_reboot_is_detected_and_rearming_does_not_jump(rig: Any) -> None:
    q = rig.armed().q
    rig.event("reboot", id=2)
    seen = []
    for _ in range(60):
        reading, _ = rig.tick(q)
        seen.append(int(reading.status[1]))
        np.testing.assert_allclose(reading.q[0], rig.line.physics.q[0], atol=0.05)
    assert seen[0] & (Status.MISSING | Status.TORQUE_OFF)
    assert seen[-1] == Status.TORQUE_OFF
    fallen = rig.line.physics.q.copy()
    rig.robot.disarm()
    rig.robot.arm()
    rig.wait(0.3)
    assert abs(rig.line.physics.q - fallen)[[0, 2, 3, 4]].max() < 0.4
    assert rig.line.servo(2).torque_on


@pytest.mark.parametrize(
    "faults",
    [{"missing": (2,)}, {"drop": 1.0}, {"corrupt": 0.5}, {"drop": 0.5}, {"delay_s": 0.004}, {}],
)
@pytest.mark.parametrize("rebooted", [(2,), (1, 2, 3, 4, 5)])
def test_14_a_servo_that_reboots_and_then_falls_silent_takes_no_longer_than_a_reading(
    rig: Any, faults: dict[str, Any], rebooted: tuple[int, ...]
) -> None:
    q = rig.armed().q
    for id_ in rebooted:
        rig.event("reboot", id=id_)
    for _ in range(60):  # until it answers again, which shows that its mapping is lost
        reading, _ = rig.tick(q)
        if reading.code is Code.REFUSED:
            break
    assert reading.code is Code.REFUSED
    rig.faults(**faults)
    for _ in range(20):
        begun = rig.port.now_ns()
        reading, _ = rig.tick(q, 0.015)
        assert reading.end_ns - begun <= rig.robot.spec.timeout_s * 1e9
        assert reading.request_ns == begun
        if faults.get("missing"):
            assert reading.code is Code.TIMEOUT
            assert reading.status[1] & Status.MISSING
    rig.faults()
    for _ in range(10):
        reading, _ = rig.tick(q)
    assert reading.code is Code.OK


def test_14_lost_torque_is_detected_immediately(rig: Any) -> None:
    q = rig.armed().q
    rig.event("torque_off", id=4)
    reading, _ = rig.tick(q)
    assert reading.status.tolist() == [0, 0, 0, Status.TORQUE_OFF, 0]


@pytest.mark.parametrize(
    ("bits", "status"),
    [
        (0x01, Status.VOLTAGE),
        (0x04, Status.OVER_TEMPERATURE | Status.TORQUE_OFF),
        (0x20, Status.OVERLOAD | Status.TORQUE_OFF),
    ],
)
def test_15_a_hardware_error_is_in_the_next_reading(rig: Any, bits: int, status: int) -> None:
    q = rig.armed().q
    rig.event("fail", id=3, bits=bits)
    reading, _ = rig.tick(q)
    assert reading.status[2] == status


def test_8_frozen_measurements_are_not_new(rig: Any) -> None:
    q = rig.armed().q
    before, _ = rig.tick(q)
    rig.faults(frozen=(3,))
    later = [rig.tick(q)[0] for _ in range(10)]
    assert {reading.seq for reading in later[2:]} <= {before.seq, before.seq + 1, before.seq + 2}
    assert later[-1].code is Code.TIMEOUT
    assert later[-1].status[2] == Status.MISSING


def test_16_a_jump_by_a_turn_is_in_the_reading(rig: Any) -> None:
    q = rig.armed().q
    rig.faults(wrap={2: 4096})
    reading, _ = rig.tick(q)
    assert reading.q[1] - q[1] == pytest.approx(2 * np.pi, abs=0.02)


def test_20_servos_stop_by_themselves_when_the_host_is_silent(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(watchdog_s=0.1)
    goal = rig.armed().q
    assert rig.robot.spec.own_watchdog_s == pytest.approx(0.1)
    for _ in range(30):
        goal = goal + np.array([0.02, 0, 0, 0, 0])
        rig.tick(goal)
    assert not rig.of("watchdog")
    silent_ns = rig.port.now_ns()
    rig.tick(goal + np.array([0.3, 0, 0, 0, 0]))
    rig.wait(0.5)
    fired = [at for at, kind, _ in rig.events if kind == "watchdog"]
    assert len(fired) == 5
    assert (max(fired) - silent_ns) * 1e-9 < 0.1 + 0.02
    assert abs(rig.line.physics.dq).max() < 0.02
    reading, _ = rig.tick(goal)
    assert (reading.status == Status.WATCHDOG).all()
    here = rig.line.physics.q.copy()
    rig.tick(here + 0.3)
    rig.wait(0.2)
    np.testing.assert_allclose(rig.line.physics.q, here, atol=0.01)  # goals are ignored
    rig.robot.arm()
    for _ in range(50):
        reading, _ = rig.tick(here + 0.05)
    assert not reading.status.any()


def test_20_every_servo_that_has_a_watchdog_uses_it_unless_it_is_off(make_rig: Any) -> None:
    def counts(rig: Any) -> list[int]:
        rig.armed()
        return [servo.get(table.BUS_WATCHDOG) for servo in rig.line.servos]

    assert counts(make_rig(watchdog_s=None)) == [10] * 5  # 0.2 s
    assert counts(make_rig(watchdog_s=0)) == [0] * 5
    old = make_rig(watchdog_s=None)
    old.line.servos[1]._store(table.FIRMWARE, 37)
    assert counts(old) == [10, 0, 10, 10, 10]
    assert old.robot.spec.own_watchdog_s is None
    old = make_rig(watchdog_s=0.1)
    old.line.servos[1]._store(table.FIRMWARE, 37)
    with pytest.raises(UserError, match="shoulder: firmware 37 of servo 2 has no bus watchdog"):
        old.robot.connect()


def test_a_servos_clock_dates_its_answers_despite_drift() -> None:
    """A clock that runs 0.5 % fast is tracked. An answer older than its request is refused."""
    clock, now_ms = Clock(), 5_000.0
    for _ in range(20_000):
        now_ms += 5
        tick = int(now_ms * 1.005 + 17) % 32768
        assert clock.within(tick, int((now_ms - 1) * 1e6), int((now_ms + 2) * 1e6))
    now_ms += 5
    old = int((now_ms - 6) * 1.005 + 17) % 32768
    assert not clock.within(old, int((now_ms - 1) * 1e6), int((now_ms + 2) * 1e6))


def test_torque_goes_off_if_the_encoder_leaps_out_of_the_servos_limits(
    rig: Any,
) -> None:
    """The servo ignores goals that would hold it there; the other servos hold."""
    q = rig.armed().q
    rig.faults(wrap={2: 2048})
    assert rig.robot.hold("the encoder leapt") == []
    rig.wait(0.01)
    assert [servo.torque_on for servo in rig.line.servos] == [True, False, True, True, True]
    reading, _ = rig.tick(q)
    assert reading.status[1] == Status.TORQUE_OFF

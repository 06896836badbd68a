"""Simulated servos: documented behavior of the control table, and faults.

The vendor's unmodified SDK (extra `dev`) confirms that the simulation behaves like servos. These
tests and others on the wall clock are slow.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from benchmarks.robot.simulated_bus.line import Faults
from offline_rl.utils.errors import UserError
from real_robot.robot import Code, Command
from real_robot.robots.dynamixel import table as t
from real_robot.robots.make import make


def write(rig: Any, id_: int, item: t.Item, value: int) -> int:
    """Write a register and return the error code."""
    return rig.bus.write(id_, item.address, item.pack(value)).error


def get(rig: Any, id_: int, item: t.Item) -> int:
    return item.unpack(rig.bus.read(id_, item.address, item.size).data)


def test_eeprom_is_locked_while_torque_is_on(rig: Any) -> None:
    assert write(rig, 2, t.HOMING_OFFSET, 5) == 0
    assert write(rig, 2, t.TORQUE_ENABLE, 1) == 0
    assert write(rig, 2, t.HOMING_OFFSET, 6) == 7
    assert get(rig, 2, t.HOMING_OFFSET) == 5


def test_switching_torque_on_starts_at_the_present_position(rig: Any) -> None:
    """Earlier goals are ignored: nothing jumps."""
    here = get(rig, 3, t.PRESENT_POSITION)
    assert write(rig, 3, t.GOAL_POSITION, here - 400) == 0
    write(rig, 3, t.TORQUE_ENABLE, 1)
    rig.wait(0.5)
    assert abs(get(rig, 3, t.PRESENT_POSITION) - here) < 20


def test_goals_outside_the_servos_own_limits_are_refused(rig: Any) -> None:
    write(rig, 1, t.TORQUE_ENABLE, 1)
    high = get(rig, 1, t.MAX_POSITION)
    assert write(rig, 1, t.GOAL_POSITION, high) == 0
    assert write(rig, 1, t.GOAL_POSITION, high + 1) == 6
    assert get(rig, 1, t.GOAL_POSITION) == high


def test_the_homing_offset_is_added_without_reversal(rig: Any) -> None:
    for id_ in (1, 2):  # the second counts backward
        before = get(rig, id_, t.PRESENT_POSITION)
        write(rig, id_, t.HOMING_OFFSET, get(rig, id_, t.HOMING_OFFSET) + 100)
        assert get(rig, id_, t.PRESENT_POSITION) == before + 100


def test_a_profile_bounds_the_speed(rig: Any) -> None:
    write(rig, 1, t.TORQUE_ENABLE, 1)
    write(rig, 1, t.PROFILE_VELOCITY, 40)
    write(rig, 1, t.PROFILE_ACCELERATION, 20)
    start = get(rig, 1, t.PRESENT_POSITION)
    write(rig, 1, t.GOAL_POSITION, start + 600)
    fastest = 0
    for _ in range(120):
        rig.wait(0.01)
        fastest = max(fastest, get(rig, 1, t.PRESENT_VELOCITY))
    assert 36 <= fastest <= 44
    assert abs(get(rig, 1, t.PRESENT_POSITION) - start - 600) < 5


def test_indirect_data_show_the_mapped_registers(rig: Any) -> None:
    pointers = b"".join((t.PRESENT_POSITION.address + k).to_bytes(2, "little") for k in range(4))
    assert rig.bus.write(1, 168, pointers).error == 0
    assert rig.bus.read(1, 224, 4).data == rig.bus.read(1, t.PRESENT_POSITION.address, 4).data
    assert rig.bus.write(1, 168, (10).to_bytes(2, "little")).error == 4  # EEPROM cannot be mapped


def test_status_level_1_answers_reads_only(rig: Any) -> None:
    write(rig, 1, t.STATUS_LEVEL, 1)
    assert rig.bus.write(1, t.GOAL_PWM.address, b"\0\0").code is Code.TIMEOUT
    assert get(rig, 1, t.STATUS_LEVEL) == 1


def test_heat_switches_off_until_a_reboot(rig: Any) -> None:
    write(rig, 4, t.TORQUE_ENABLE, 1)
    rig.event("heat", id=4, celsius=81.0)
    rig.wait(0.05)
    answer = rig.bus.read(4, t.HARDWARE_ERROR.address, 1)
    assert (answer.error, answer.data) == (0x80, b"\x04")
    assert get(rig, 4, t.TORQUE_ENABLE) == 0
    assert write(rig, 4, t.TORQUE_ENABLE, 1) & 0x7F == 7
    rig.event("heat", id=4, celsius=40.0)
    assert rig.bus.reboot(4).code is Code.OK
    assert rig.bus.ping(4).code is Code.TIMEOUT  # it boots
    rig.wait(0.3)
    assert write(rig, 4, t.TORQUE_ENABLE, 1) == 0


def test_pushing_against_a_wall_is_an_overload(rig: Any) -> None:
    """The arm pushes against a wall, with its goal far behind it."""
    rig.armed()
    rig.event("place", body="wall", at_m=[0.32, 0.0, 0.1])
    for _ in range(250):
        rig.tick(np.array([0.0, 1.2, 1.0, 0.9, 0.0]))
    assert any(servo.get(t.HARDWARE_ERROR) & 0x20 for servo in rig.line.servos)


def test_every_packet_feeds_a_watchdog(rig: Any) -> None:
    write(rig, 1, t.TORQUE_ENABLE, 1)
    write(rig, 1, t.BUS_WATCHDOG, 2)
    for _ in range(20):
        rig.wait(0.02)
        rig.bus.ping(3)
    assert get(rig, 1, t.BUS_WATCHDOG) == 2
    rig.wait(0.05)
    assert get(rig, 1, t.BUS_WATCHDOG) == t.WATCHDOG_TRIPPED
    assert write(rig, 1, t.GOAL_POSITION, 2048) == 4
    assert write(rig, 1, t.BUS_WATCHDOG, 0) == 0
    assert write(rig, 1, t.GOAL_POSITION, 2048) == 0


def test_a_servo_that_misses_a_request_keeps_its_goal(rig: Any) -> None:
    q = rig.armed().q
    rig.faults(lose=1.0)
    before = len(rig.of("goals"))
    rig.tick(q + 0.1)
    assert len(rig.of("goals")) == before


def test_writes_delay_the_next_answer(rig: Any) -> None:
    """A pseudo-terminal sends bytes immediately, but a line sends one byte after another."""
    bus = rig.bus

    def read_ms() -> float:
        start = rig.port.now_ns()
        bus.sync_read((1,), t.PRESENT_POSITION.address, 4)
        return (rig.port.now_ns() - start) * 1e-6

    alone = read_ms()
    bus.sync_write((1, 2, 3, 4, 5), t.GOAL_POSITION.address, [b"\0\x08\0\0"] * 5)
    assert read_ms() - alone == pytest.approx((14 + 5 * 5) * 0.01, abs=0.001)


def test_a_fault_that_does_not_exist_is_an_error() -> None:
    assert Faults.from_json({"missing": [2], "wrap": {"3": 4096}}).wrap == {3: 4096}
    with pytest.raises(TypeError):
        Faults.from_json({"mising": [2]})


# on the wall clock


@pytest.fixture(scope="module")
def hardware() -> Iterator[SimulatedHardware]:
    with SimulatedHardware("desk") as hardware:
        yield hardware


@pytest.fixture
def sdk(hardware: SimulatedHardware) -> Iterator[tuple[Any, Any, Any]]:
    """Return the vendor's module, port and packet handler."""
    dxl = pytest.importorskip("dynamixel_sdk", reason="needs dynamixel-sdk, the vendor's")
    port = dxl.PortHandler(hardware.port)
    assert port.openPort()
    assert port.setBaudRate(1_000_000)
    yield dxl, port, dxl.PacketHandler(2.0)
    hardware.faults()
    port.closePort()


@pytest.mark.slow
def test_the_vendors_sdk_reads_writes_and_is_refused(sdk: tuple[Any, Any, Any]) -> None:
    dxl, port, handler = sdk
    for id_ in (1, 2, 3, 4, 5):
        assert handler.ping(port, id_) == (1020, dxl.COMM_SUCCESS, 0)
    assert sorted(handler.broadcastPing(port)[0]) == [1, 2, 3, 4, 5]
    assert handler.write1ByteTxRx(port, 1, 64, 1) == (dxl.COMM_SUCCESS, 0)
    value, result, error = handler.read1ByteTxRx(port, 1, 64)
    assert (value, result, error) == (1, dxl.COMM_SUCCESS, 0)
    assert handler.write1ByteTxRx(port, 1, 11, 4) == (dxl.COMM_SUCCESS, 7)  # EEPROM
    assert handler.write2ByteTxRx(port, 1, 132, 4) == (dxl.COMM_SUCCESS, 7)  # read only
    assert handler.write4ByteTxRx(port, 1, 116, 9999) == (dxl.COMM_SUCCESS, 6)
    assert handler.write1ByteTxRx(port, 1, 64, 0) == (dxl.COMM_SUCCESS, 0)


@pytest.mark.slow
def test_the_vendors_sdk_moves_the_arm(
    sdk: tuple[Any, Any, Any], hardware: SimulatedHardware
) -> None:
    dxl, port, handler = sdk
    reads, writes = (
        dxl.GroupSyncRead(port, handler, 132, 4),
        dxl.GroupSyncWrite(port, handler, 116, 4),
    )
    ids = (1, 2, 3, 4, 5)
    for id_ in ids:
        reads.addParam(id_)
        assert handler.write1ByteTxRx(port, id_, 64, 1)[0] == dxl.COMM_SUCCESS
    assert reads.txRxPacket() == dxl.COMM_SUCCESS
    start = {id_: reads.getData(id_, 132, 4) for id_ in ids}
    for id_ in ids:
        goal = start[id_] + 200 if id_ == 1 else start[id_]
        writes.addParam(id_, list(goal.to_bytes(4, "little")))
    assert writes.txPacket() == dxl.COMM_SUCCESS
    time.sleep(0.6)
    assert reads.txRxPacket() == dxl.COMM_SUCCESS
    assert abs(reads.getData(1, 132, 4) - start[1] - 200) < 8
    assert hardware.truth()["q"][0] == pytest.approx(200 * 2 * np.pi / 4096, abs=0.02)
    for id_ in ids:
        handler.write1ByteTxRx(port, id_, 64, 0)


@pytest.mark.slow
def test_the_vendors_sdk_reports_the_faults(
    sdk: tuple[Any, Any, Any], hardware: SimulatedHardware
) -> None:
    dxl, port, handler = sdk
    hardware.faults(missing=[3])
    time.sleep(0.1)
    assert handler.ping(port, 3)[1] == dxl.COMM_RX_TIMEOUT
    assert handler.ping(port, 2)[1] == dxl.COMM_SUCCESS
    hardware.faults(corrupt=1.0)
    time.sleep(0.1)
    assert handler.read4ByteTxRx(port, 2, 132)[1] != dxl.COMM_SUCCESS


@pytest.mark.slow
def test_the_robot_runs_on_the_terminal_and_the_hardware_keeps_a_record() -> None:
    with SimulatedHardware("desk") as hardware:
        robot = make("desk", **hardware.robot_options)
        robot.connect()
        reading = robot.arm()
        goal = reading.q.copy()
        for k in range(100):
            goal[0] = 0.2 * np.sin(k / 20)
            robot.command(Command(k, time.monotonic_ns(), goal))
            reading = robot.read()
            time.sleep(0.005)
        assert reading.channels["puck"].shape == (2,)
        rows = hardware.events("goals")
        assert len(rows) >= 100
        assert all(a["t_ns"] <= b["t_ns"] for a, b in zip(rows, rows[1:], strict=False))
        goal_rad = (rows[-1]["1"] - 2048) * 2 * np.pi / 4096
        assert goal_rad == pytest.approx(goal[0], abs=0.002)
        hardware.faults(unplugged=True)
        time.sleep(0.1)
        assert robot.read().code is Code.LOST
        robot.close()
        with pytest.raises(UserError, match="No such file"):
            robot.connect()
        hardware.faults()
        time.sleep(0.1)
        robot.connect()
        robot.close()


@pytest.mark.slow
def test_a_failed_start_of_the_hardware_reports_the_reason() -> None:
    with pytest.raises(UserError, match="unknown robot 'dusk'; did you mean desk"):
        SimulatedHardware("dusk")

"""Bus client: bounded waits, partial answers, and answers that match their requests."""

import os
import pty
import subprocess
import sys
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_rl.utils.errors import UserError
from real_robot.robot import Code
from real_robot.robots.dynamixel import table
from real_robot.robots.dynamixel.bus import Bus, PortLost, SerialPort
from real_robot.robots.dynamixel.packets import status

IDS = (1, 2, 3, 4, 5)
POSITION = (table.PRESENT_POSITION.address, 4)


def codes(answers: list[Any]) -> list[Code]:
    return [answer.code for answer in answers]


def took_ms(rig: Any, call: Any) -> float:
    start = rig.port.now_ns()
    call()
    return (rig.port.now_ns() - start) * 1e-6


def test_reading_all_servos_takes_the_time_of_the_bytes(rig: Any) -> None:
    """14 + 5 bytes sent and 5 * 15 received, 10 us each, and 1 ms of the adapter."""
    assert took_ms(rig, lambda: rig.bus.sync_read(IDS, *POSITION)) == pytest.approx(1.94, abs=0.02)


def test_a_missing_servo_does_not_affect_other_values(rig: Any) -> None:
    for missing in IDS:
        rig.faults(missing=(missing,))
        answers = rig.bus.sync_read(IDS, *POSITION)
        assert [a.code for a in answers] == [
            Code.TIMEOUT if id_ == missing else Code.OK for id_ in IDS
        ]


def test_silence_is_detected_within_five_milliseconds(rig: Any) -> None:
    rig.faults(missing=IDS)
    assert took_ms(rig, lambda: rig.bus.sync_read(IDS, *POSITION)) < 6


def test_no_corrupt_value_is_used(rig: Any) -> None:
    """Every answer has one wrong byte. No position of that byte may pass."""
    rig.faults(corrupt=1.0)
    bus = rig.bus
    for _ in range(100):
        assert not set(codes(bus.sync_read(IDS, *POSITION))) & {Code.OK, Code.REFUSED}
    assert bus.counters.corrupt > 100


def test_a_refusal_differs_from_silence(rig: Any) -> None:
    bus = rig.bus
    answer = bus.write(1, table.PRESENT_POSITION.address, b"\0\0\0\0")
    assert (answer.code, answer.error) == (Code.REFUSED, 7)
    assert bus.write(1, table.GOAL_PWM.address, b"\xff\x7f").error == 4
    assert bus.write(1, table.GOAL_POSITION.address, b"\0").error == 5
    assert bus.read(1, 660, 40).error == 4


def test_a_late_answer_is_not_used_for_the_next_request(rig: Any) -> None:
    """Read a register that counts time. After a late answer, each further answer must be from after
    its own request."""
    bus = rig.bus
    tick = table.REALTIME_TICK

    def fresh(_id: int, data: bytes) -> bool:
        return tick.unpack(data) >= asked_ms

    for late_s in (0.006, 0.012, 0.02, 0.05):
        rig.event("late_once", seconds=late_s)
        for _ in range(20):
            asked_ms = rig.port.now_ns() // 1_000_000 % table.TICK_PERIOD
            for answer in bus.sync_read((2,), tick.address, tick.size, fresh):
                if not answer.code:
                    assert tick.unpack(answer.data) >= asked_ms
            rig.wait(0.002)
        assert not answer.code
    assert bus.counters.timeouts == 4
    assert bus.counters.strays + bus.counters.dropped > 0


def test_after_a_timeout_the_line_is_silent_before_the_next_request(rig: Any) -> None:
    """A late answer has the id and size of the next request, but another register."""
    bus, velocity = rig.bus, table.PRESENT_VELOCITY.address
    rig.line.physics.pose(np.array([0.5, 0.0, 0.0, 0.0, 0.0]))
    for late_s in np.arange(0.0016, 0.0024, 0.0001):
        rig.event("late_once", seconds=late_s)
        first = bus.read(1, *POSITION, patience_s=0.0)
        answer = bus.read(1, velocity, 4)
        assert answer.code is Code.OK
        assert abs(table.PRESENT_VELOCITY.unpack(answer.data)) < 10, late_s
        rig.wait(0.05)
    assert first.code is Code.TIMEOUT


def test_a_stalled_adapter_leaves_no_old_answers(rig: Any) -> None:
    """The adapter holds all requests for 250 ms. No later answer may be an older one."""
    bus, tick = rig.bus, table.REALTIME_TICK
    rig.event("stall", seconds=0.25)
    lag_ms = []
    for _ in range(400):
        rig.wait(0.002)
        asked_ms = rig.port.now_ns() // 1_000_000 % table.TICK_PERIOD
        (answer,) = bus.sync_read((2,), tick.address, tick.size)
        lag_ms.append(None if answer.code else asked_ms - tick.unpack(answer.data))
    assert lag_ms[:10] == [None] * 10
    assert max(lag for lag in lag_ms[-200:] if lag is not None) <= 1
    assert None not in lag_ms[-200:]


def test_a_lost_port_is_a_code(rig: Any) -> None:
    bus = rig.bus
    rig.faults(unplugged=True)
    assert set(codes(bus.sync_read(IDS, *POSITION))) == {Code.LOST}
    assert bus.sync_write(IDS, table.GOAL_POSITION.address, [b"\0" * 4] * 5) is Code.LOST
    assert bus.ping(1).code is Code.LOST


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    """Yield the master of a pseudo-terminal and the path of its slave."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    yield master, os.ttyname(slave)
    for handle in (master, slave):
        try:
            os.close(handle)
        except OSError:  # closed by a test
            continue


def test_a_serial_port_reads_available_bytes_after_the_deadline(terminal: tuple[int, str]) -> None:
    master, path = terminal
    port = SerialPort(path, 1_000_000)
    os.write(master, status(3, 0, b"\x2a"))
    assert port.read(time.monotonic_ns() - 10**9) == status(3, 0, b"\x2a")
    os.write(master, b"old")
    assert port.drain() == 3
    start = time.monotonic_ns()
    assert port.read(start + 3_000_000) == b""
    assert time.monotonic_ns() - start >= 3_000_000
    port.write(b"\x01\x02")
    assert os.read(master, 10) == b"\x01\x02"
    port.close()
    port.close()


def test_a_hang_up_is_detected(terminal: tuple[int, str]) -> None:
    master, path = terminal
    port = SerialPort(path, 1_000_000)
    os.close(master)
    with pytest.raises(PortLost):
        port.read(time.monotonic_ns() + 10**9)
    assert Bus(port, 1_000_000).ping(1).code is Code.LOST


def test_other_processes_see_that_a_port_is_claimed(terminal: tuple[int, str]) -> None:
    _, path = terminal
    port = SerialPort(path, 1_000_000)
    assert port.owner() is None
    assert port.claim()
    code = (
        "import sys; from real_robot.robots.dynamixel.bus import SerialPort; "
        "port = SerialPort(sys.argv[1], 1000000); print(port.owner(), port.claim())"
    )
    run = [sys.executable, "-c", code, path]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(os.getpid()), "False"]


@pytest.mark.parametrize(
    ("path", "baud", "says"),
    [
        ("/dev/no-such-port", 1_000_000, "No such file"),
        ("/dev/null", 1_000_000, "not a serial port"),
        ("/dev/null", 123, "do not support this rate"),
    ],
)
def test_an_invalid_port_is_refused_with_a_message(path: str, baud: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        SerialPort(path, baud)
    assert not Path("/dev/no-such-port").exists()

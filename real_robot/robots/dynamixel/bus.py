"""One half-duplex line of servos: requests out, answers in, every wait bounded by counted bytes.

The protocol has no sequence numbers, so a late answer may be taken for the next request's. Three
things stand against it: what waits in the input is dropped before each request; after a time-out
the line must have been silent before the next one; and where the caller can date an answer
(`fresh`), one from before the request is dropped and the right one awaited. A time-out is a
returned code, and so is a port that is gone.
"""

import contextlib
import fcntl
import os
import select
import struct
import termios
import time
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from offline_rl.utils.errors import UserError
from real_robot.robot import Code
from real_robot.robots.dynamixel.packets import (
    ALERT,
    BROADCAST,
    OVERHEAD,
    Decoder,
    Instruction,
    Packet,
    encode,
)

LATENCY_S = 1e-3  # of a USB adapter with its timer set to 1 ms
SLACK_S = 2e-3  # that the host may be late by, beyond what is counted
PATIENCE_S = 0.03  # more, where nothing hurries: for all but sync reads, unless told otherwise
SETTLE_S = 5e-3  # of silence, before the first request of all


class PortLost(Exception):
    """The port is no more."""


class Port(Protocol):
    """Bytes and a clock; `SerialPort`, or a simulated line with a clock of its own."""

    def now_ns(self) -> int: ...

    def write(self, data: bytes) -> None:
        """Raises PortLost."""

    def read(self, until_ns: int) -> bytes:
        """What has come; waits for the first byte until then. Looks at least once. Raises PortLost."""

    def drain(self) -> int:
        """Drops what has come; how many bytes. Raises PortLost."""

    def owner(self) -> int | None:
        """The process that has claimed the port, if another one has."""

    def claim(self) -> bool:
        """Marks the port as this process's until it closes it or ends; False if another has."""

    def close(self) -> None: ...


class SerialPort:
    """A serial device, raw, 8N1. Raises UserError where it cannot be opened."""

    def __init__(self, path: str, baud: int) -> None:
        self.path = path
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise UserError(f"baud={baud}: this system's serial ports have no such speed.")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise UserError(
                f"port {path}: {error.strerror}; is the robot plugged in and switched on, and may "
                "you use the port (on Linux: group dialout)?"
            ) from None
        try:
            tty.setraw(self._fd)
            flags = termios.tcgetattr(self._fd)
            flags[2] |= termios.CLOCAL | termios.CREAD
            flags[4] = flags[5] = speed
            termios.tcsetattr(self._fd, termios.TCSANOW, flags)
        except termios.error as error:
            os.close(self._fd)
            raise UserError(f"port {path} is no serial port ({error.args[-1]}).") from None

    def owner(self) -> int | None:
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack("hhqqi", fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else pid

    def claim(self) -> bool:
        """An advisory lock: a watchdog still gets at the port."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                if not select.select([], [self._fd], [], SLACK_S)[1]:
                    raise PortLost("the port takes no bytes") from None
            except OSError as error:
                raise PortLost(error.strerror) from None

    def read(self, until_ns: int) -> bytes:
        wait_s = max(until_ns - time.monotonic_ns(), 0) * 1e-9
        try:
            if not select.select([self._fd], [], [], wait_s)[0]:
                return b""
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return b""
        except (OSError, ValueError) as error:
            raise PortLost(getattr(error, "strerror", None) or "closed") from None
        if not data:  # readable and empty: hung up
            raise PortLost("hung up")
        return data

    def drain(self) -> int:
        dropped = 0
        while data := self.read(0):
            dropped += len(data)
        return dropped

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


def adapter_latency_s(path: str) -> float:
    """Of a USB adapter with a latency timer (FTDI): how long it may keep what it has received."""
    name = os.path.basename(os.path.realpath(path))
    try:
        with open(f"/sys/bus/usb-serial/devices/{name}/latency_timer") as file:
            return max(int(file.read()) * 1e-3, LATENCY_S)
    except (OSError, ValueError):
        return LATENCY_S


class Answer(NamedTuple):
    """What one servo said. `error`: its error byte, ALERT included."""

    code: Code
    error: int = 0
    data: bytes = b""


@dataclass
class Counters:
    requests: int = 0
    timeouts: int = 0  # requests that not every servo answered
    corrupt: int = 0  # packets without a valid checksum
    strays: int = 0  # whole packets that were no answer to the request
    dropped: int = 0  # bytes that came when nobody had asked


class Bus:
    """return_delay_s: the servos' own before an answer; latency_s: of the adapter."""

    def __init__(
        self,
        port: Port,
        baud: int,
        *,
        return_delay_s: float = 0.0,
        latency_s: float = LATENCY_S,
        slack_s: float = SLACK_S,
    ) -> None:
        self.port = port
        self.counters = Counters()
        self._byte_ns = 10 * 1e9 / baud
        self._delay_ns = return_delay_s * 1e9
        self._slack_ns = (latency_s + slack_s) * 1e9
        self._line_free_ns = 0  # when what was written has left
        self._decoder = Decoder()

    def duration_s(self, request_bytes: int, answer_bytes: int, answers: int) -> float:
        """The longest that a request may take before it counts as timed out."""
        return (
            (request_bytes + answer_bytes) * self._byte_ns
            + answers * self._delay_ns
            + self._slack_ns
        ) * 1e-9

    def ping(self, id_: int) -> Answer:
        """data: model number, 2, and firmware version, 1."""
        return self._single(encode(id_, Instruction.PING), id_, 3)

    def read(self, id_: int, address: int, size: int, patience_s: float = PATIENCE_S) -> Answer:
        where = address.to_bytes(2, "little") + size.to_bytes(2, "little")
        return self._single(encode(id_, Instruction.READ, where), id_, size, patience_s)

    def write(self, id_: int, address: int, data: bytes, patience_s: float = PATIENCE_S) -> Answer:
        where = address.to_bytes(2, "little")
        return self._single(encode(id_, Instruction.WRITE, where + data), id_, 0, patience_s)

    def reboot(self, id_: int) -> Answer:
        return self._single(encode(id_, Instruction.REBOOT), id_, 0)

    def sync_read(
        self,
        ids: Sequence[int],
        address: int,
        size: int,
        fresh: Callable[[int, bytes], bool] | None = None,
        until_ns: int = 0,
    ) -> list[Answer]:
        """One answer for each id; those that came are kept where others did not.

        fresh(id, data): whether an answer may be to this request. until_ns: where not one has come
        in time, it is not the line but the host that is late: they are waited for until then.
        """
        where = address.to_bytes(2, "little") + size.to_bytes(2, "little")
        request = encode(BROADCAST, Instruction.SYNC_READ, where + bytes(ids))
        return self._ask(request, ids, size, self._slack_ns, fresh, until_ns)

    def sync_write(self, ids: Sequence[int], address: int, values: Sequence[bytes]) -> Code:
        """Nobody answers: OK says that it has left the host."""
        where = address.to_bytes(2, "little") + len(values[0]).to_bytes(2, "little")
        rows = b"".join(bytes([id_]) + value for id_, value in zip(ids, values, strict=True))
        try:
            self._send(encode(BROADCAST, Instruction.SYNC_WRITE, where + rows))
        except PortLost:
            return Code.LOST
        return Code.OK

    def settle(self, silence_s: float) -> None:
        """Waits until the line has been silent for so long, at most twice as long. Raises PortLost."""
        port = self.port
        end = port.now_ns() + int(2 * silence_s * 1e9)
        while (now := port.now_ns()) < end:
            data = port.read(min(now + int(silence_s * 1e9), end))
            if not data:
                return
            self.counters.dropped += len(data)

    def _send(self, request: bytes) -> None:
        self.counters.dropped += self.port.drain()
        self._decoder.clear()
        self.port.write(request)
        self.counters.requests += 1
        start = max(self.port.now_ns(), self._line_free_ns)
        self._line_free_ns = start + int(len(request) * self._byte_ns)

    def _single(
        self, request: bytes, id_: int, size: int, patience_s: float = PATIENCE_S
    ) -> Answer:
        return self._ask(request, (id_,), size, self._slack_ns + patience_s * 1e9)[0]

    def _ask(
        self,
        request: bytes,
        ids: Sequence[int],
        size: int,
        slack_ns: float,
        fresh: Callable[[int, bytes], bool] | None = None,
        until_ns: int = 0,
    ) -> list[Answer]:
        """Servos answer in the order of `ids`: once one has, those before it will not."""
        answers = [Answer(Code.TIMEOUT)] * len(ids)
        counters, decoder = self.counters, self._decoder
        rejected, next_ = decoder.rejected, 0
        packet_ns = (OVERHEAD + 1 + size) * self._byte_ns + self._delay_ns
        try:
            self._send(request)
            deadline = self._line_free_ns + int(len(ids) * packet_ns + slack_ns)
            while next_ < len(ids):
                data = self.port.read(deadline)
                if not data and next_ == 0 and deadline < until_ns:
                    deadline = until_ns
                    continue
                if not data:
                    break
                for packet in decoder.feed(data):
                    answer = _answer(packet, size)
                    rest = ids[next_:]
                    if (
                        answer is None
                        or packet.id not in rest
                        or (answer.data and fresh is not None and not fresh(packet.id, answer.data))
                    ):
                        counters.strays += 1
                    else:
                        next_ += rest.index(packet.id)
                        answers[next_] = answer
                        next_ += 1
            if any(answer.code is Code.TIMEOUT for answer in answers):
                counters.timeouts += 1
                if next_ < len(ids):  # an answer may still be under way
                    self.settle(2 * packet_ns * 1e-9)
        except PortLost:
            return [Answer(Code.LOST)] * len(ids)
        if (bad := decoder.rejected - rejected) > 0:
            counters.corrupt += bad
            answers = [
                Answer(Code.CORRUPT) if answer.code is Code.TIMEOUT else answer
                for answer in answers
            ]
        return answers


def _answer(packet: Packet, size: int) -> Answer | None:
    """A status packet with `size` bytes of data, or with an error and none."""
    if packet.instruction != Instruction.STATUS or not packet.parameters:
        return None
    error, data = packet.parameters[0], packet.parameters[1:]
    failed = error & ~ALERT
    if len(data) != (0 if failed else size):
        return None
    return Answer(Code.REFUSED if failed else Code.OK, error, data)

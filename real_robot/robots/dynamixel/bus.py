"""Half-duplex bus of servos: requests and answers. Timeouts follow from the number of bytes.

The protocol has no sequence numbers, so a late answer may look like the answer to the next request.
Three measures prevent this:

- Received bytes are dropped before each request.
- After a timeout, the bus must be silent before the next request.
- The caller may pass a function `fresh` that dates an answer. An answer from before the request is
  then dropped, and the bus waits for the right one.

A timeout and a lost port are returned as codes.
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

LATENCY_S = 1e-3  # latency of a USB adapter whose latency timer is set to 1 ms
SLACK_S = 2e-3  # part of each timeout that allows for delays of the host
PATIENCE_S = 0.03  # added to the timeout of all requests except sync reads: they are not urgent
SILENCE_S = 5e-3  # required silence before the first request


class PortLost(Exception):
    """Raised if the port is gone."""


class Port(Protocol):
    """Port that sends and receives bytes and has a clock: `SerialPort`, or a simulated bus."""

    def now_ns(self) -> int: ...

    def write(self, data: bytes) -> None:
        """Send `data`. Raises PortLost."""

    def read(self, until_ns: int) -> bytes:
        """Return the received bytes; wait for the first one until `until_ns`. Raises PortLost."""

    def drain(self) -> int:
        """Drop the received bytes. Return their number. Raises PortLost."""

    def owner(self) -> int | None:
        """Return the id of another process that has claimed the port; None: there is none."""

    def claim(self) -> bool:
        """Claim the port until this process closes it or ends.

        Return False if another process has claimed it.
        """

    def close(self) -> None: ...


class SerialPort:
    """Serial port in raw mode, 8N1."""

    def __init__(self, path: str, baud: int) -> None:
        """Open the port. Raises UserError if this fails."""
        self.path = path
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise UserError(
                f"baud={baud}: this system's serial ports do not support this rate. Use another "
                "rate, such as 1000000"
            )
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise UserError(
                f"port {path}: {error.strerror}. Check that the robot is plugged in and switched "
                "on, and that you may use the port (on Linux: group dialout)"
            ) from None
        try:
            tty.setraw(self._fd)
            flags = termios.tcgetattr(self._fd)
            flags[2] |= termios.CLOCAL | termios.CREAD
            flags[4] = flags[5] = speed
            termios.tcsetattr(self._fd, termios.TCSANOW, flags)
        except termios.error as error:
            os.close(self._fd)
            raise UserError(
                f"port {path} is not a serial port ({error.args[-1]}). Use the port of the servos"
            ) from None

    def owner(self) -> int | None:
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack("hhqqi", fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else pid

    def claim(self) -> bool:
        """Lock the port. The lock is advisory, so the watchdog can still write to the port."""
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
                    raise PortLost("the port accepts no bytes") from None
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
        if not data:  # a port that is readable but has no bytes was disconnected
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
    """Return the latency of a USB adapter in s, as set in its latency timer (FTDI)."""
    name = os.path.basename(os.path.realpath(path))
    try:
        with open(f"/sys/bus/usb-serial/devices/{name}/latency_timer") as file:
            return max(int(file.read()) * 1e-3, LATENCY_S)
    except (OSError, ValueError):
        return LATENCY_S


class Answer(NamedTuple):
    """Answer of one servo."""

    code: Code
    error: int = 0  # error byte of the status packet, including ALERT
    data: bytes = b""


@dataclass
class Counters:
    """Counters of a bus, for diagnosis."""

    requests: int = 0
    timeouts: int = 0  # requests that not all servos answered in time
    corrupt: int = 0  # packets without a valid checksum
    strays: int = 0  # valid packets that did not answer the request
    dropped: int = 0  # bytes received without a request


class Bus:
    """Bus of servos on a port.

    Args:
        return_delay_s: time that a servo waits before it answers.
        latency_s: latency of the USB adapter.
        slack_s: part of each timeout that allows for delays of the host.
    """

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
        self._sent_ns = 0  # time at which the last byte of the request has been sent
        self._decoder = Decoder()

    def duration_s(self, request_bytes: int, answer_bytes: int, answers: int) -> float:
        """Return the timeout of a request in s. answers: number of servos that answer."""
        return (
            (request_bytes + answer_bytes) * self._byte_ns
            + answers * self._delay_ns
            + self._slack_ns
        ) * 1e-9

    def ping(self, id_: int) -> Answer:
        """Ping a servo. The answer's data are its model (2 bytes) and firmware version (1 byte)."""
        return self._transact_one(encode(id_, Instruction.PING), id_, 3)

    def read(self, id_: int, address: int, size: int, patience_s: float = PATIENCE_S) -> Answer:
        where = address.to_bytes(2, "little") + size.to_bytes(2, "little")
        return self._transact_one(encode(id_, Instruction.READ, where), id_, size, patience_s)

    def write(self, id_: int, address: int, data: bytes, patience_s: float = PATIENCE_S) -> Answer:
        where = address.to_bytes(2, "little")
        return self._transact_one(encode(id_, Instruction.WRITE, where + data), id_, 0, patience_s)

    def reboot(self, id_: int) -> Answer:
        return self._transact_one(encode(id_, Instruction.REBOOT), id_, 0)

    def sync_read(
        self,
        ids: Sequence[int],
        address: int,
        size: int,
        fresh: Callable[[int, bytes], bool] | None = None,
        until_ns: int = 0,
    ) -> list[Answer]:
        """Read from several servos with one request. Return an answer or timeout for each id.

        Args:
            fresh: fresh(id, data) returns True if an answer may belong to this request.
            until_ns: later end of the wait, used if no servo at all has answered in time. The cause
                is then probably a delay of the host, and not the servos.
        """
        where = address.to_bytes(2, "little") + size.to_bytes(2, "little")
        request = encode(BROADCAST, Instruction.SYNC_READ, where + bytes(ids))
        return self._transact(request, ids, size, self._slack_ns, fresh, until_ns)

    def sync_write(self, ids: Sequence[int], address: int, values: Sequence[bytes]) -> Code:
        """Write to several servos with one request.

        Servos do not answer this request. OK means only that it was sent.
        """
        where = address.to_bytes(2, "little") + len(values[0]).to_bytes(2, "little")
        rows = b"".join(bytes([id_]) + value for id_, value in zip(ids, values, strict=True))
        try:
            self._send(encode(BROADCAST, Instruction.SYNC_WRITE, where + rows))
        except PortLost:
            return Code.LOST
        return Code.OK

    def wait_for_silence(self, silence_s: float) -> None:
        """Wait until no byte came for `silence_s`, at most twice this time. Raises PortLost."""
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
        start = max(self.port.now_ns(), self._sent_ns)
        self._sent_ns = start + int(len(request) * self._byte_ns)

    def _transact_one(
        self, request: bytes, id_: int, size: int, patience_s: float = PATIENCE_S
    ) -> Answer:
        return self._transact(request, (id_,), size, self._slack_ns + patience_s * 1e9)[0]

    def _transact(
        self,
        request: bytes,
        ids: Sequence[int],
        size: int,
        slack_ns: float,
        fresh: Callable[[int, bytes], bool] | None = None,
        until_ns: int = 0,
    ) -> list[Answer]:
        """Send a request and collect the answers.

        Servos answer in the order of `ids`. Once a servo has answered, those before it no longer
        can.
        """
        answers = [Answer(Code.TIMEOUT)] * len(ids)
        counters, decoder = self.counters, self._decoder
        rejected, next_ = decoder.rejected, 0
        packet_ns = (OVERHEAD + 1 + size) * self._byte_ns + self._delay_ns
        try:
            self._send(request)
            deadline = self._sent_ns + int(len(ids) * packet_ns + slack_ns)
            while next_ < len(ids):
                data = self.port.read(deadline)
                if not data and next_ == 0 and deadline < until_ns:
                    deadline = until_ns
                    continue
                if not data:
                    break
                for packet in decoder.feed(data):
                    answer = _answer(packet, size)
                    remaining = ids[next_:]
                    if (
                        answer is None
                        or packet.id not in remaining
                        or (answer.data and fresh is not None and not fresh(packet.id, answer.data))
                    ):
                        counters.strays += 1
                    else:
                        next_ += remaining.index(packet.id)
                        answers[next_] = answer
                        next_ += 1
            if any(answer.code is Code.TIMEOUT for answer in answers):
                counters.timeouts += 1
                if next_ < len(ids):  # an answer may still arrive
                    self.wait_for_silence(2 * packet_ns * 1e-9)
        except PortLost:
            return [Answer(Code.LOST)] * len(ids)
        if (num_rejected := decoder.rejected - rejected) > 0:
            counters.corrupt += num_rejected
            answers = [
                Answer(Code.CORRUPT) if answer.code is Code.TIMEOUT else answer
                for answer in answers
            ]
        return answers


def _answer(packet: Packet, size: int) -> Answer | None:
    """Return the answer in a packet; None: it is no status packet with `size` bytes or an error."""
    if packet.instruction != Instruction.STATUS or not packet.parameters:
        return None
    error, data = packet.parameters[0], packet.parameters[1:]
    failed = error & ~ALERT
    if len(data) != (0 if failed else size):
        return None
    return Answer(Code.REFUSED if failed else Code.OK, error, data)

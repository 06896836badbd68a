"""Packets of Dynamixel protocol 2: encoding, decoding, checksum and byte stuffing.

    FF FF FD 00 | id | length, 2 bytes | instruction | parameters | CRC-16, 2 bytes

Numbers are little endian. The length counts the bytes after the length field. A status packet has
the instruction 0x55 and an error byte before its parameters. Between length and CRC, FF FF FD is
sent as FF FF FD FD (byte stuffing), so that no header appears inside a packet.

Format: emanual.robotis.com/docs/en/dxl/protocol2.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

HEADER = b"\xff\xff\xfd\x00"
MARK, STUFFED = b"\xff\xff\xfd", b"\xff\xff\xfd\xfd"
BROADCAST = 0xFE
MAX_ID = 252
OVERHEAD = 10  # bytes of an instruction packet without parameters; a status packet has one more
ALERT = 0x80  # bit of a status packet's error byte: the hardware error register is not 0


class Instruction(IntEnum):
    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    REG_WRITE = 0x04
    ACTION = 0x05
    FACTORY_RESET = 0x06
    REBOOT = 0x08
    STATUS = 0x55
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83


class Error(IntEnum):
    """Error codes of a status packet, without ALERT."""

    NONE = 0
    FAILED = 1
    INSTRUCTION = 2
    CRC = 3
    RANGE = 4
    LENGTH = 5
    LIMIT = 6
    ACCESS = 7


class Packet(NamedTuple):
    id: int
    instruction: int
    parameters: bytes  # without byte stuffing; in a status packet: the error byte, then the data


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x8005 if crc & 0x8000 else 0)) & 0xFFFF
        table.append(crc)
    return tuple(table)


_CRC = _crc_table()


def crc16(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-16: polynomial 0x8005, initial value 0, no reflection, no inversion."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFF00) ^ _CRC[crc >> 8 ^ byte]
    return crc


def encode(id_: int, instruction: int, parameters: bytes = b"") -> bytes:
    """Return the bytes of a packet."""
    body = (bytes([instruction]) + parameters).replace(MARK, STUFFED)
    head = HEADER + bytes([id_]) + (len(body) + 2).to_bytes(2, "little") + body
    return head + crc16(head).to_bytes(2, "little")


def status(id_: int, error: int, data: bytes = b"") -> bytes:
    """Return the bytes of a status packet. Servos answer with it."""
    return encode(id_, Instruction.STATUS, bytes([error]) + data)


class Decoder:
    """Decoder from bytes to packets. It skips noise and packets with a wrong checksum.

    max_length: maximum value of the length field. A larger value counts as noise, because the
    decoder would otherwise wait for bytes that never come.
    """

    def __init__(self, max_length: int = 1024) -> None:
        self.max_length = max_length
        self.rejected = 0  # number of headers without a valid packet
        self._buffer = bytearray()

    def clear(self) -> None:
        """Drop an incomplete packet."""
        self._buffer.clear()

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Add received bytes. Yield each packet that is now complete."""
        buffer = self._buffer
        buffer += data
        while True:
            start = buffer.find(HEADER)
            if start < 0:  # the last three bytes may begin a header
                del buffer[: max(len(buffer) - 3, 0)]
                return
            del buffer[:start]
            if len(buffer) < 7:
                return
            length = buffer[5] | buffer[6] << 8
            if not 3 <= length <= self.max_length:
                self._reject()
                continue
            size = 7 + length
            if len(buffer) < size:
                return
            if crc16(memoryview(buffer)[: size - 2]) != buffer[size - 2] | buffer[size - 1] << 8:
                self._reject()
                continue
            body = bytes(buffer[7 : size - 2]).replace(STUFFED, MARK)
            packet = Packet(buffer[4], body[0], body[1:])
            del buffer[:size]
            yield packet

    def _reject(self) -> None:
        self.rejected += 1
        del self._buffer[0]  # the next header may be inside the rejected packet

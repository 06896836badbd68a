"""Packets of protocol 2, compared with the vendor's published examples."""

import random

import pytest

from real_robot.robots.dynamixel import table
from real_robot.robots.dynamixel.packets import (
    Decoder,
    Instruction,
    Packet,
    crc16,
    encode,
    status,
)

# emanual.robotis.com/docs/en/dxl/protocol2: (id, instruction, parameters), bytes
PUBLISHED = {
    "ping": ((1, 0x01, ""), "FF FF FD 00 01 03 00 01 19 4E"),
    "read": ((1, 0x02, "84 00 04 00"), "FF FF FD 00 01 07 00 02 84 00 04 00 1D 15"),
    "write": ((1, 0x03, "74 00 00 02 00 00"), "FF FF FD 00 01 09 00 03 74 00 00 02 00 00 CA 89"),
    "reboot": ((1, 0x08, ""), "FF FF FD 00 01 03 00 08 2F 4E"),
    "sync read": (
        (0xFE, 0x82, "84 00 04 00 01 02"),
        "FF FF FD 00 FE 09 00 82 84 00 04 00 01 02 CE FA",
    ),
    "sync write": (
        (0xFE, 0x83, "74 00 04 00 01 96 00 00 00 02 AA 00 00 00"),
        "FF FF FD 00 FE 11 00 83 74 00 04 00 01 96 00 00 00 02 AA 00 00 00 82 87",
    ),
    "status of a ping": ((1, 0x55, "00 06 04 26"), "FF FF FD 00 01 07 00 55 00 06 04 26 65 5D"),
    "status of a read": (
        (1, 0x55, "00 A6 00 00 00"),
        "FF FF FD 00 01 08 00 55 00 A6 00 00 00 8C C0",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_packets_equal_the_vendors_examples(name: str) -> None:
    (id_, instruction, parameters), wire = PUBLISHED[name]
    content, wire_bytes = bytes.fromhex(parameters), bytes.fromhex(wire)
    assert encode(id_, instruction, content) == wire_bytes
    assert list(Decoder().feed(wire_bytes)) == [Packet(id_, instruction, content)]


def test_the_checksum_is_the_remainder_of_the_polynomial() -> None:
    """The reference is a long division over bits, without the table."""
    data = bytes(random.Random(1).randrange(256) for _ in range(40))
    remainder = 0
    for bit in range(8 * len(data) + 16):
        byte, place = divmod(bit, 8)
        following = data[byte] >> 7 - place & 1 if byte < len(data) else 0
        remainder = remainder << 1 | following
        if remainder & 0x10000:
            remainder ^= 0x18005
    assert crc16(data) == remainder


def test_a_header_in_the_data_is_stuffed_and_restored() -> None:
    for content in (b"\xff\xff\xfd", b"\xff\xff\xfd\xfd\x00", b"\x01\xff\xff\xff\xfd\xff\xff\xfd"):
        wire = status(7, 0, content)
        assert wire[7:].count(b"\xff\xff\xfd") == wire[7:].count(b"\xff\xff\xfd\xfd")
        assert int.from_bytes(wire[5:7], "little") == len(wire) - 7
        assert list(Decoder().feed(wire)) == [Packet(7, Instruction.STATUS, b"\0" + content)]


def test_packets_are_found_in_noise_for_any_split_of_the_bytes() -> None:
    chance = random.Random(2)
    for _ in range(200):
        packets = [
            Packet(chance.randrange(253), 0x55, bytes(chance.choices([0, 0xFD, 0xFF, 7], k=9)))
            for _ in range(3)
        ]
        noise = [bytes(chance.choices([0xFF, 0xFD, 0, 9], k=chance.randrange(6))) for _ in "abc"]
        pairs = zip(noise, packets, strict=True)
        wire = b"".join(junk + encode(*packet) for junk, packet in pairs)
        decoder, found, at = Decoder(max_length=64), [], 0
        while at < len(wire):
            size = chance.randrange(1, 9)
            found += list(decoder.feed(wire[at : at + size]))
            at += size
        assert found == packets


def test_one_wrong_byte_loses_only_its_packet() -> None:
    wire = [status(id_, 0, b"\x10\x20\x30\x40") for id_ in (1, 2, 3)]
    for where in range(4, len(wire[1])):  # after the header, including the length
        broken = bytearray(wire[1])
        broken[where] ^= 0x04
        decoder = Decoder(max_length=64)
        found = [p.id for p in decoder.feed(wire[0] + bytes(broken) + wire[2] + bytes(80))]
        assert found == [1, 3], where
        assert decoder.rejected >= 1


def test_units_equal_the_manual() -> None:
    assert pytest.approx(2 * 3.14159265 / 4096, rel=1e-6) == table.RAD
    assert pytest.approx(0.02398, abs=1e-5) == table.RAD_S  # 0.229 revolutions a minute
    assert table.GOAL_POSITION.pack(-2) == b"\xfe\xff\xff\xff"
    assert table.PRESENT_CURRENT.unpack(b"\x00\x80") == -32768

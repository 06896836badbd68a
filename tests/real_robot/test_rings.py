"""Rings in shared memory: complete records, from any process; the writer never waits."""

import os
import signal

import numpy as np
import pytest

from real_robot.control.rings import Reader, Ring, RingError, SharedValues

RECORD = np.dtype([("n", "<i8"), ("q", "<f8", (40,)), ("flag", "u1")])


def push(ring: Ring, n: int) -> None:
    """Push a record whose numbers are all its own number."""
    ring.record["n"], ring.record["q"][:], ring.record["flag"] = n, n, n % 251
    ring.push()


def is_complete(record: np.ndarray) -> bool:
    n = int(record["n"])
    return bool((record["q"] == n).all() and record["flag"] == n % 251)


def test_records_are_read_in_order_and_unchanged(tmp_path):
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    reader = Reader(Ring.open(tmp_path / "r"))
    numbers = []
    for n in range(30):
        push(ring, n)
        while reader.following():
            assert is_complete(reader.record)
            numbers.append(int(reader.record["n"]))
    assert numbers == list(range(30))
    assert reader.lost == 0


def test_overwritten_records_count_as_lost(tmp_path):
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    reader = Reader(ring, from_start=True)
    for n in range(100):
        push(ring, n)
    numbers = []
    while reader.following():
        numbers.append(int(reader.record["n"]))
    assert numbers[-1] == 99
    assert len(numbers) + reader.lost == 100
    assert len(numbers) >= 7


def test_the_newest_record_is_returned_once(tmp_path):
    ring = Ring.create(tmp_path / "r", RECORD, 4)
    reader = Reader(ring)
    assert not reader.newest()
    for n in range(9):
        push(ring, n)
    assert reader.newest()
    assert int(reader.record["n"]) == 8
    assert not reader.newest()


def test_a_ring_outlives_the_process_that_wrote_it(tmp_path):
    child = os.fork()
    if child == 0:
        ring = Ring.create(tmp_path / "r", RECORD, 8)
        for n in range(20):
            push(ring, n)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    reader = Reader(Ring.open(tmp_path / "r"), from_start=True)
    assert reader.newest()
    assert int(reader.record["n"]) == 19
    assert is_complete(reader.record)


def test_a_reader_in_another_process_never_gets_a_partial_record(tmp_path):
    """Nearly every copy is at risk: there are four slots, and the writer never stops."""
    ring = Ring.create(tmp_path / "r", RECORD, 4)
    push(ring, 0)
    child = os.fork()
    if child == 0:
        for n in range(1, 100_000_000):
            push(ring, n)
    try:
        reader, numbers = Reader(Ring.open(tmp_path / "r"), from_start=True), 0
        while numbers < 100:
            if reader.newest():
                assert is_complete(reader.record)
                numbers += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_record_that_changes_during_the_copy_is_not_returned(tmp_path):
    """A processor may make the number visible before the bytes."""
    ring = Ring.create(tmp_path / "r", RECORD, 4)
    push(ring, 1)
    ring._bytes[ring._at + 16 + 8] ^= 1
    into = np.zeros((), RECORD)
    assert not ring.copy(0, memoryview(into.reshape(1).view(np.uint8)))


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 100)
    with pytest.raises(RingError, match="not a ring"):
        Ring.open(tmp_path / "x")


def test_words_are_shared(tmp_path):
    mine = SharedValues(tmp_path / "w", create=True)
    mine["control_beat"] = 7
    assert SharedValues(tmp_path / "w")["control_beat"] == 7
    with pytest.raises(KeyError):
        mine["no such word"] = 1


def test_a_damaged_record_is_counted_and_skipped(tmp_path):
    """A reader that waited for it would hang; the control loop is such a reader."""
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    newest, all_of_them = Reader(ring), Reader(ring, from_start=True)
    for n in range(3):
        push(ring, n)
    ring._sums[2] += 1
    assert not newest.newest()
    assert newest.lost == 1
    assert not newest.newest()
    numbers = []
    while all_of_them.following():
        numbers.append(int(all_of_them.record["n"]))
    assert numbers == [0, 1]
    assert all_of_them.lost == 1
    assert int(all_of_them.record["n"]) == 1  # not the damaged one
    push(ring, 3)
    assert newest.newest()
    assert all_of_them.following()
    assert int(newest.record["n"]) == int(all_of_them.record["n"]) == 3

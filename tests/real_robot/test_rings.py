"""Shared-memory rings: whole records only, from any process, and the writer never waits."""

import os
import signal

import numpy as np
import pytest

from real_robot.control.rings import Reader, Ring, RingError, Words

RECORD = np.dtype([("n", "<i8"), ("q", "<f8", (40,)), ("flag", "u1")])


def push(ring: Ring, n: int) -> None:
    """A record whose every number says which one it is."""
    ring.record["n"], ring.record["q"][:], ring.record["flag"] = n, n, n % 251
    ring.push()


def whole(record: np.ndarray) -> bool:
    n = int(record["n"])
    return bool((record["q"] == n).all() and record["flag"] == n % 251)


def test_records_come_back_in_order_as_they_were_written(tmp_path):
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    reader = Reader(Ring.open(tmp_path / "r"))
    seen = []
    for n in range(30):
        push(ring, n)
        while reader.following():
            assert whole(reader.record)
            seen.append(int(reader.record["n"]))
    assert seen == list(range(30))
    assert reader.lost == 0


def test_what_was_overwritten_is_counted_as_lost(tmp_path):
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    reader = Reader(ring, from_start=True)
    for n in range(100):
        push(ring, n)
    seen = []
    while reader.following():
        seen.append(int(reader.record["n"]))
    assert seen[-1] == 99
    assert len(seen) + reader.lost == 100
    assert len(seen) >= 7


def test_the_newest_record_is_given_once(tmp_path):
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
    assert whole(reader.record)


def test_a_reader_in_another_process_never_sees_half_a_record(tmp_path):
    """A ring of four slots and a writer that never stops: nearly every copy is at risk."""
    ring = Ring.create(tmp_path / "r", RECORD, 4)
    push(ring, 0)
    child = os.fork()
    if child == 0:
        for n in range(1, 100_000_000):
            push(ring, n)
    try:
        reader, seen = Reader(Ring.open(tmp_path / "r"), from_start=True), 0
        while seen < 100:
            if reader.newest():
                assert whole(reader.record)
                seen += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_record_that_changes_under_way_is_not_given(tmp_path):
    """As a processor does that shows the number before the bytes."""
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
    mine = Words(tmp_path / "w", create=True)
    mine["control_beat"] = 7
    assert Words(tmp_path / "w")["control_beat"] == 7
    with pytest.raises(KeyError):
        mine["no such word"] = 1


def test_a_damaged_record_is_given_up_counted_and_read_past(tmp_path):
    """A reader that waited for it would stand still, and the control loop is one."""
    ring = Ring.create(tmp_path / "r", RECORD, 8)
    newest, all_of_them = Reader(ring), Reader(ring, from_start=True)
    for n in range(3):
        push(ring, n)
    ring._sums[2] += 1
    assert not newest.newest()
    assert newest.lost == 1
    assert not newest.newest()
    seen = []
    while all_of_them.following():
        seen.append(int(all_of_them.record["n"]))
    assert seen == [0, 1]
    assert all_of_them.lost == 1
    assert int(all_of_them.record["n"]) == 1  # not the damaged one
    push(ring, 3)
    assert newest.newest()
    assert all_of_them.following()
    assert int(newest.record["n"]) == int(all_of_them.record["n"]) == 3

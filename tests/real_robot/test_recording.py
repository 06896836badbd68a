"""Recordings: complete up to the last flush, whatever is killed; gaps are reported."""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from robots_in_memory import Bench, spec

from offline_rl.utils.errors import UserError
from real_robot.control.rings import Ring, SharedValues
from real_robot.control.session import Session
from real_robot.recording.files import RecordingWriter, read
from real_robot.recording.writer import Writer, main
from real_robot.rows import row_type

ABOUT = {"robot": "two links", "rate_hz": 200.0}


def push(ring: Ring, count: int) -> None:
    for _ in range(count):
        ring.record["tick"] += 1
        ring.record["q"] = ring.record["tick"]
        ring.push()


def test_every_tick_of_a_run_can_be_read_from_disk(tmp_path):
    bench = Bench(tmp_path)
    writer = Writer(bench.ring, tmp_path / "a.rec", ABOUT)
    rows = []
    for _ in range(10):
        rows += bench.run(50)
        writer.take()
        writer.flush()
    writer.close()
    recording = read(tmp_path / "a.rec")
    assert recording.about == ABOUT
    assert (recording.lost, recording.cut_at) == (0, None)
    assert recording.rows.tobytes() == np.array(rows).tobytes()
    assert (np.diff(recording.rows["tick"].astype(int)) == 1).all()
    times = [recording.rows[name] for name in ("wake_ns", "read_ns", "read_done_ns", "sent_ns")]
    assert all((a <= b).all() for a, b in zip(times, times[1:], strict=False))


def pieces(tmp_path) -> tuple[bytes, list[int]]:
    """Write four pieces of 5 rows. Return the offsets of the pieces and of the end."""
    dtype, path = row_type(spec()), tmp_path / "b.rec"
    rows, ends = np.zeros(20, dtype), []
    rows["tick"] = np.arange(20)
    with RecordingWriter(path, dtype, ABOUT) as file:
        ends.append(path.stat().st_size)
        for k in range(4):
            file.append(rows[5 * k : 5 * k + 5].tobytes(), 5, 5 * k, 0)
            ends.append(path.stat().st_size)
    return path.read_bytes(), ends


def test_a_truncated_file_is_read_up_to_its_last_complete_piece(tmp_path):
    data, ends = pieces(tmp_path)
    for size in [*range(ends[0], len(data) + 1, 97), *ends]:
        (tmp_path / "cut.rec").write_bytes(data[:size])
        recording = read(tmp_path / "cut.rec")
        whole = sum(end <= size for end in ends) - 1
        assert recording.rows["tick"].tolist() == list(range(5 * whole))
        assert recording.cut_at == (None if size in ends else ends[whole])


def test_a_flipped_bit_ends_the_reading_before_its_piece(tmp_path):
    data, ends = pieces(tmp_path)
    rng = np.random.default_rng(0)
    for at in [*rng.integers(ends[1], ends[2], 20).tolist(), ends[1] + 8, ends[1] + 20]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "c.rec").write_bytes(damaged)
        recording = read(tmp_path / "c.rec")
        assert recording.rows["tick"].tolist() == list(range(5))
        assert recording.cut_at == ends[1]


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Limit the size of files: one write is partial, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_partial_write_is_an_error_and_keeps_earlier_pieces(tmp_path):
    rows = np.zeros(10, row_type(spec()))
    path = tmp_path / "f.rec"
    with RecordingWriter(path, rows.dtype, ABOUT) as file:
        file.append(rows.tobytes(), 10, 0, 0)
        size = path.stat().st_size
        with disk_of(size + 100), pytest.raises(OSError, match="large"):
            file.append(rows.tobytes(), 10, 10, 0)
        assert path.stat().st_size == size
        file.append(rows.tobytes(), 10, 10, 0)
    recording = read(path)
    assert (len(recording.rows), recording.cut_at) == (20, None)
    with disk_of(100), pytest.raises(OSError, match="large"):
        RecordingWriter(tmp_path / "g.rec", rows.dtype, ABOUT)
    assert not (tmp_path / "g.rec").exists()


@pytest.mark.parametrize("needed", [True, False])
def test_the_end_of_a_recording_during_a_run_is_reported(tmp_path, capfd, needed: bool):
    lost = tmp_path / "gone" / "a.rec"
    session = Session(
        str(tmp_path), "desk", 100.0, "simulated", recording=str(lost), recorder_needed=needed
    )
    session.save()
    Ring.create(tmp_path / "ticks", row_type(session.make_robot().spec), 64)
    SharedValues(tmp_path / "shared_values", create=True)["control_beat"] = 1
    with pytest.raises(SystemExit):
        main(["writer", session.folder])
    said = capfd.readouterr().err
    assert ("the run continues without recording" in said) == (not needed)
    assert "could not be written" in (tmp_path / "writer.error").read_text()


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"RRTICKS\n" + b"\0" * 40])
def test_a_file_that_is_not_a_recording_is_refused(tmp_path, content: bytes):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match="recording"):
        read(tmp_path / "x")


def test_a_writer_that_falls_behind_reports_the_number_of_lost_rows(tmp_path):
    ring = Ring.create(tmp_path / "ring", row_type(spec()), 64)
    writer = Writer(ring, tmp_path / "d.rec", ABOUT)
    push(ring, 10)
    writer.take()
    writer.flush()
    push(ring, 500)  # the loop does not wait
    writer.close()
    recording = read(tmp_path / "d.rec")
    assert len(recording.rows) + recording.lost == 510
    assert len(recording.rows) >= 70
    assert recording.rows["tick"][-1] == 510


def test_a_killed_writer_leaves_the_flushed_rows(tmp_path):
    """The ring outlives the writer and still has the later rows."""
    ring = Ring.create(tmp_path / "ring", row_type(spec()), 4096)
    child = os.fork()
    if child == 0:
        writer = Writer(Ring.open(tmp_path / "ring"), tmp_path / "e.rec", ABOUT)
        while True:
            writer.take()
            writer.flush()
            (tmp_path / "flushed").write_text("")
    push(ring, 100)
    while not (tmp_path / "flushed").exists() or (tmp_path / "e.rec").stat().st_size < 20_000:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    recording = read(tmp_path / "e.rec")
    assert recording.rows["tick"].tolist() == list(range(1, len(recording.rows) + 1))
    assert len(recording.rows) > 50

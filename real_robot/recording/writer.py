"""The writer: takes rows from the loop's ring to the disk, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real_robot.control.rings import Reader, Ring, Words
from real_robot.recording.files import RecordingWriter

FLUSH_S = 0.5  # a killed machine loses no more than this
POLL_S = 0.02


class Writer:
    """Gathers rows and appends them as pieces."""

    def __init__(self, ring: Ring, path: Path, about: dict[str, Any]) -> None:
        self._reader = Reader(ring, from_start=True)
        self._file = RecordingWriter(path, ring.dtype, about)
        self._rows = bytearray()
        self._count, self._first, self._lost = 0, 0, 0

    def take(self) -> int:
        """Takes what is in the ring; returns how many rows wait to be written."""
        while self._reader.following():
            if self._count == 0:
                self._first = self._reader.next - 1
            self._rows += self._reader.record.tobytes()
            self._count += 1
        return self._count

    def flush(self) -> None:
        """Raises OSError where the disk is full."""
        if self._count == 0:
            return
        lost = self._reader.lost - self._lost
        self._file.append(bytes(self._rows), self._count, self._first, lost)
        self._lost, self._count = self._reader.lost, 0
        self._rows.clear()

    def close(self) -> None:
        self.take()
        self.flush()
        self._file.close()


def write_until_stopped(
    ticks: Path,
    words: Path,
    path: Path,
    about: dict[str, Any],
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """The writer process: until everyone is told to end. Raises OSError where the disk is full."""
    shared = Words(words)
    writer = Writer(Ring.open(ticks), path, about)
    flushed = now_s()
    while not shared["stop"]:
        waiting = writer.take()
        if waiting and now_s() - flushed >= FLUSH_S:
            writer.flush()
            flushed = now_s()
        shared["writer_beat"] += 1
        sleep(POLL_S)
    writer.close()

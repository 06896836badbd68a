"""Ring buffers in shared memory: one writer, any number of readers, no process waits.

A ring is a file on a tmpfs: a header, then slots of (number, CRC-32, record). The writer makes the
slot's number odd, copies the record, and makes the number even again. A reader copies the record
and checks that the number has not changed. So a reader never blocks the writer and never gets a
partial record. If the processor reorders stores, the checksum does not match. The file remains when
the processes end.

    0   magic, 8 bytes
    8   format, number of slots, record size: 3 uint32, and 4 bytes of padding
    24  number of records written so far: uint64
    32  name and type of every field as JSON, up to the first slot
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

MAGIC, FORMAT = b"RRRING\r\n", 1
HEAD_AT, SCHEMA_AT = 24, 32
TRIES = 16  # number of attempts to read a record before a reader counts it as lost
PREFIX = 16  # bytes before a record: number, checksum, padding


class RingError(ValueError):
    """Raised for a file that is not a ring, or whose header is inconsistent."""


class Ring:
    """Ring buffer of records. The writer calls `create`, readers call `open`."""

    def __init__(self, path: Path, memory: mmap.mmap, dtype: np.dtype, slots: int, at: int) -> None:
        self.path, self.dtype, self.slots = path, dtype, slots
        self._memory, self._bytes, self._at = memory, memoryview(memory), at
        self._stride = PREFIX + -(-dtype.itemsize // 8) * 8
        self._head = np.frombuffer(memory, np.uint64, 1, HEAD_AT)
        self._numbers, self._sums = (
            np.ndarray((slots,), kind, memory, at + offset, (self._stride,))
            for kind, offset in ((np.uint64, 0), (np.uint32, 8))
        )
        self.record = np.zeros((), dtype)  # the writer fills it, then calls `push`
        self._source = self.record.reshape(1).view(np.uint8).data

    @classmethod
    def create(cls, path: Path, dtype: np.dtype, slots: int) -> Ring:
        """Create an empty ring at `path`. An existing file is replaced."""
        schema = json.dumps(describe(dtype)).encode()
        at = -(-(SCHEMA_AT + len(schema) + 1) // 64) * 64
        size = at + slots * (PREFIX + -(-dtype.itemsize // 8) * 8)
        numbers = np.array([FORMAT, slots, dtype.itemsize, 0], np.uint32).tobytes()
        header = (MAGIC + numbers[:12]).ljust(HEAD_AT, b"\0") + bytes(8) + schema
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # A full tmpfs then raises OSError here. Without this, a later write would be a SIGBUS.
            os.posix_fallocate(handle, 0, size)
            os.pwrite(handle, header, 0)
            memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        return cls(path, memory, dtype, slots, at)

    @classmethod
    def open(cls, path: Path) -> Ring:
        """Open the ring of another process. Raises RingError, or OSError if there is none."""
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        if memory[:8] != MAGIC or len(memory) < SCHEMA_AT:
            raise RingError(f"{path} is not a ring of records")
        form, slots, size = np.frombuffer(memory, np.uint32, 3, 8).tolist()
        if form != FORMAT:
            raise RingError(f"{path}: ring format {form}, this version reads format {FORMAT}")
        end = memory.find(b"\0", SCHEMA_AT)
        dtype = dtype_of(json.loads(memory[SCHEMA_AT:end]))
        at = -(-(end + 1) // 64) * 64
        if dtype.itemsize != size:
            raise RingError(f"{path}: records have {size} bytes, their fields {dtype.itemsize}")
        return cls(path, memory, dtype, slots, at)

    @property
    def written(self) -> int:
        """Number of records written so far. The newest one has number `written` - 1."""
        return int(self._head[0])

    def push(self) -> None:
        """Publish a copy of `record`."""
        number = int(self._head[0])
        slot = number % self.slots
        start = self._at + slot * self._stride + PREFIX
        self._numbers[slot] = 2 * number + 1
        self._bytes[start : start + self.dtype.itemsize] = self._source
        self._sums[slot] = crc32(self._source)
        self._numbers[slot] = 2 * number + 2
        self._head[0] = number + 1

    def copy(self, number: int, into: memoryview) -> bool:
        """Copy record `number` to `into`.

        Return False and leave `into` unchanged if the record was overwritten before or during the
        copy, or if its checksum is wrong.
        """
        slot = number % self.slots
        if int(self._numbers[slot]) != 2 * number + 2:
            return False
        start = self._at + slot * self._stride + PREFIX
        total = int(self._sums[slot])
        record = bytes(self._bytes[start : start + self.dtype.itemsize])
        if int(self._numbers[slot]) != 2 * number + 2 or crc32(record) != total:
            return False
        into[:] = record
        return True

    def close(self) -> None:
        """Release the memory. The file remains."""
        del self._head, self._numbers, self._sums
        self._bytes.release()
        self._memory.close()


class Reader:
    """Position of one reader in a ring."""

    def __init__(self, ring: Ring, *, from_start: bool = False) -> None:
        self.ring = ring
        self.record = np.zeros((), ring.dtype)  # the record of the last successful call
        self._into = self.record.reshape(1).view(np.uint8).data
        self.next = 0 if from_start else ring.written
        self.lost = (
            0  # number of records that were overwritten before they were read, or are damaged
        )

    def newest(self) -> bool:
        """Load the newest record into `record`. Return True if it was not read before.

        A damaged record is skipped, so that no reader waits for it: return False, count it in
        `lost`, and leave `record` unchanged.
        """
        for _ in range(TRIES):
            if (written := self.ring.written) <= self.next:
                return False
            if self.ring.copy(written - 1, self._into):
                self.next = written
                return True
        self.next, self.lost = written, self.lost + 1
        return False

    def following(self) -> bool:
        """Load the next record into `record`. Return False if there is none.

        Records that were overwritten count in `lost`.
        """
        tries = 0
        while (written := self.ring.written) > self.next:
            oldest = max(0, written - self.ring.slots + 1)
            if self.next < oldest:
                self.lost += oldest - self.next
                self.next = oldest
            if self.ring.copy(self.next, self._into):
                self.next += 1
                return True
            tries += 1
            if tries == TRIES:
                self.next, self.lost, tries = self.next + 1, self.lost + 1, 0
        return False


def describe(dtype: np.dtype) -> list[list[Any]]:
    """Return [name, type, shape] of every field. The inverse is `dtype_of`."""
    assert dtype.fields is not None
    return [
        [name, dtype.fields[name][0].base.str, list(dtype.fields[name][0].shape)]
        for name in dtype.names or ()
    ]


def dtype_of(fields: list[list[Any]]) -> np.dtype:
    """Return the packed type of these fields. The inverse is `describe`."""
    return np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields])


class SharedValues:
    """Named 64-bit integers in shared memory. Each has one writer, which writes it atomically.

    A heartbeat (`…_beat`) is a counter that changes as long as its process works.
    """

    NAMES = (
        "owner_pid",  # id of the process that may write to the bus
        "control_beat",  # heartbeat of control
        "control_ns",  # monotonic time of the last tick
        "period_ns",  # control period
        "end_ns",  # maximum duration of bringing the robot to rest at the end of a run
        "armed",  # 1 while the robot is armed
        "watchdog_beat",  # heartbeat of the watchdog, and its monotonic time
        "watchdog_ns",
        "watchdog_fired",  # 1 once the watchdog has taken over the bus
        "starting",  # 1: start was typed, and motion begins with the policy's first plan
        "inference_beat",  # heartbeat of inference
        "call_started_ns",  # monotonic time of a pending call of the policy; 0: none is pending
        "call_took_ns",  # duration of the last call
        "time_limit_ns",  # maximum time from an observation until its chunk must arrive
        "writer_beat",  # heartbeat of the writer of the recording
        "estop",  # number of times that the emergency stop was pressed
        "estop_seen",  # number of these presses that control has processed
        "estop_released",  # number of these presses that the operator has cleared by re-arm
        "console_beat",  # heartbeat of the console, which reads the keys
        "stop",  # 1: all processes must end
    )

    def __init__(self, path: Path, *, create: bool = False) -> None:
        size = 8 * len(self.NAMES)
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        handle = os.open(path, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(handle, 0, size)
            self._memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        self._shared = np.frombuffer(self._memory, np.int64)

    def __getitem__(self, name: str) -> int:
        return int(self._shared[_INDEX[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._shared[_INDEX[name]] = value

    @property
    def pressed(self) -> bool:
        """True if the emergency stop was pressed and not yet cleared by re-arm."""
        return self["estop"] != self["estop_released"]


_INDEX = {name: place for place, name in enumerate(SharedValues.NAMES)}

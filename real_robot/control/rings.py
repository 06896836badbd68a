"""Shared memory between processes: one writer, any readers, fixed types, and nobody waits.

A ring is a file on a tmpfs: a header, then slots of (number, CRC-32, record). The writer makes the
slot's number odd, copies the record and makes the number even again; a reader copies and looks
whether the number stood still. So a reader never stops the writer and never gets half a record:
where the processor reorders stores, the checksum tells. The file outlives its processes.

    0   magic, 8 bytes
    8   format, slots, record's size: 3 uint32, one of padding
    24  records written so far: uint64
    32  name and type of every field: JSON, to the first slot
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
TRIES = 16  # of a record that does not verify, before a reader gives it up
PREFIX = 16  # bytes before a record: number, checksum, padding


class RingError(ValueError):
    """A file that is no ring, or one of other records."""


class Ring:
    """Made by its writer with `create`, joined by readers with `open`."""

    def __init__(self, path: Path, memory: mmap.mmap, dtype: np.dtype, slots: int, at: int) -> None:
        self.path, self.dtype, self.slots = path, dtype, slots
        self._memory, self._bytes, self._at = memory, memoryview(memory), at
        self._stride = PREFIX + -(-dtype.itemsize // 8) * 8
        self._head = np.frombuffer(memory, np.uint64, 1, HEAD_AT)
        self._numbers, self._sums = (
            np.ndarray((slots,), kind, memory, at + offset, (self._stride,))
            for kind, offset in ((np.uint64, 0), (np.uint32, 8))
        )
        self.record = np.zeros((), dtype)  # what the writer fills in and `push` copies
        self._source = self.record.reshape(1).view(np.uint8).data

    @classmethod
    def create(cls, path: Path, dtype: np.dtype, slots: int) -> Ring:
        """A new, empty ring in place of whatever `path` was."""
        schema = json.dumps(describe(dtype)).encode()
        at = -(-(SCHEMA_AT + len(schema) + 1) // 64) * 64
        size = at + slots * (PREFIX + -(-dtype.itemsize // 8) * 8)
        numbers = np.array([FORMAT, slots, dtype.itemsize, 0], np.uint32).tobytes()
        header = (MAGIC + numbers[:12]).ljust(HEAD_AT, b"\0") + bytes(8) + schema
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)  # a full tmpfs is an error here, not a bus error
            os.pwrite(handle, header, 0)
            memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        return cls(path, memory, dtype, slots, at)

    @classmethod
    def open(cls, path: Path) -> Ring:
        """The ring of another process. Raises RingError, or OSError where there is none."""
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
            raise RingError(f"{path}: records of {size} bytes, their fields have {dtype.itemsize}")
        return cls(path, memory, dtype, slots, at)

    @property
    def written(self) -> int:
        """Records since the beginning; the newest is number `written` - 1."""
        return int(self._head[0])

    def push(self) -> None:
        """Publishes `record`."""
        number = int(self._head[0])
        slot = number % self.slots
        start = self._at + slot * self._stride + PREFIX
        self._numbers[slot] = 2 * number + 1
        self._bytes[start : start + self.dtype.itemsize] = self._source
        self._sums[slot] = crc32(self._source)
        self._numbers[slot] = 2 * number + 2
        self._head[0] = number + 1

    def copy(self, number: int, into: memoryview) -> bool:
        """Copies record `number`; False where it is overwritten by now, or was while copied, or
        its checksum is wrong: `into` is then as before."""
        slot = number % self.slots
        if int(self._numbers[slot]) != 2 * number + 2:
            return False
        start = self._at + slot * self._stride + PREFIX
        total = int(self._sums[slot])
        found = bytes(self._bytes[start : start + self.dtype.itemsize])
        if int(self._numbers[slot]) != 2 * number + 2 or crc32(found) != total:
            return False
        into[:] = found
        return True

    def close(self) -> None:
        """Lets go of the memory; the file stays."""
        del self._head, self._numbers, self._sums
        self._bytes.release()
        self._memory.close()


class Reader:
    """One reader's place in a ring."""

    def __init__(self, ring: Ring, *, from_start: bool = False) -> None:
        self.ring = ring
        self.record = np.zeros((), ring.dtype)  # what the last successful call found
        self._into = self.record.reshape(1).view(np.uint8).data
        self.next = 0 if from_start else ring.written
        self.lost = 0  # records that were overwritten before they were read, or are damaged

    def newest(self) -> bool:
        """Whether `record` is now a record not seen before: the newest one.

        False also if it does not verify, so that no reader waits for a damaged one; it then counts
        in `lost`, and `record` is what it was.
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
        """Whether `record` is now the one after the last; those overwritten count in `lost`."""
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
    """[name, type, shape] of every field; `dtype_of` undoes it."""
    assert dtype.fields is not None
    return [
        [name, dtype.fields[name][0].base.str, list(dtype.fields[name][0].shape)]
        for name in dtype.names or ()
    ]


def dtype_of(fields: list[list[Any]]) -> np.dtype:
    """The packed type of these fields."""
    return np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields])


class Words:
    """Named 64-bit integers in shared memory: each is written by one process, whole at once."""

    NAMES = (
        "owner_pid",  # the process that may write to the bus
        "control_beat",  # counts the control loop's ticks
        "control_ns",  # when that was, monotonic
        "period_ns",
        "end_ns",  # in which control brings the robot to rest once all are told to end
        "armed",  # 1 from arm to disarm
        "watchdog_beat",
        "watchdog_ns",
        "watchdog_fired",  # 1 once it has taken the bus
        "starting",  # 1: a policy is wanted, and begins with its first plan
        "inference_beat",
        "asked_ns",  # since when inference waits for its policy, monotonic; 0: it does not
        "took_ns",  # that its last answer took
        "leaves_ns",  # that a plan leaves the next answer
        "writer_beat",
        "estop",  # presses of the emergency stop
        "estop_seen",  # of these, by the control loop
        "estop_released",  # of those, by the person who typed re-arm
        "console_beat",  # who hears the keys
        "stop",  # 1: everyone ends
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
        self._words = np.frombuffer(self._memory, np.int64)

    def __getitem__(self, name: str) -> int:
        return int(self._words[_WORD[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[_WORD[name]] = value

    @property
    def pressed(self) -> bool:
        """Whether an emergency stop is in force: one that nobody saw is not released, either."""
        return self["estop"] != self["estop_released"]


_WORD = {name: place for place, name in enumerate(Words.NAMES)}

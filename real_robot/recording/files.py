"""A recording on disk: rows in pieces of at most a second, each with its checksum.

    8 bytes RRTICKS\\n, uint32 length, uint32 CRC-32 of what follows; JSON: format, fields, about
    then pieces: 8 bytes PIECE\\r\\n\\0, uint32 CRC-32 of all that follows of the piece,
    uint32 rows, uint64 first, uint64 lost; the rows

All little endian. `first` counts rows of the ring from 0; `lost` are those before it that were
overwritten there before they could be written here. A file that was cut anywhere is read up to its
last whole piece.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.rings import describe, dtype_of

MAGIC, PIECE = b"RRTICKS\n", b"PIECE\r\n\0"
FORMAT = 1
HEAD = struct.Struct("<8sII")
FRAME = struct.Struct("<8sIIQQ")
SUMMED_FROM = 12  # bytes of a piece before what its checksum is of


class RecordingWriter:
    """Appends pieces; each is on the disk when `append` returns."""

    def __init__(self, path: Path, dtype: np.dtype, about: dict[str, Any]) -> None:
        """Raises OSError. about: what a reader should know, such as robot, joints, units, rate."""
        text = json.dumps({"format": FORMAT, "fields": describe(dtype), "about": about}).encode()
        self._file = path.open("xb", buffering=0)
        try:
            self._write(HEAD.pack(MAGIC, len(text), crc32(text)) + text)
        except OSError:
            self._file.close()
            path.unlink()
            raise

    def append(self, rows: bytes, count: int, first: int, lost: int) -> None:
        """Raises OSError where the disk is full: what was written before stays readable."""
        frame = FRAME.pack(PIECE, 0, count, first, lost)[SUMMED_FROM:]
        total = crc32(rows, crc32(frame))
        self._write(PIECE + struct.pack("<I", total) + frame + rows)

    def _write(self, data: bytes) -> None:
        """All of it, or, with an OSError, nothing."""
        start, rest = self._file.tell(), memoryview(data)
        try:
            while rest:  # a disk that is nearly full takes a part
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Recording:
    """What is whole of a recording."""

    about: dict[str, Any]
    rows: np.ndarray  # [N], `rows.row_type`
    lost: int  # rows that were never written, the loop being faster than the disk
    cut_at: int | None  # byte from which on the file is damaged or unfinished; None: nowhere


def read(path: str | Path) -> Recording:
    """Reads up to the last whole piece. Raises UserError where not even the beginning is whole."""
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) < HEAD.size or bytes(data[:8]) != MAGIC:
        raise UserError(f"{path} is not a recording of a robot")
    _, size, total = HEAD.unpack_from(data)
    text = data[HEAD.size : HEAD.size + size]
    if not text or len(text) != size or crc32(text) != total:
        raise UserError(f"{path}: the recording is damaged at its very beginning")
    header = json.loads(bytes(text))
    if header["format"] != FORMAT:
        raise UserError(f"{path}: recording format {header['format']}, this version reads {FORMAT}")
    dtype = dtype_of(header["fields"])
    at, pieces, lost = HEAD.size + size, list[np.ndarray](), 0
    while at < len(data):
        frame = data[at : at + FRAME.size]
        if len(frame) < FRAME.size or bytes(frame[:8]) != PIECE:
            break
        _, total, count, _, before = FRAME.unpack(frame)
        rows = data[at + FRAME.size : at + FRAME.size + count * dtype.itemsize]
        whole = len(rows) == count * dtype.itemsize
        if not whole or crc32(rows, crc32(frame[SUMMED_FROM:])) != total:
            break
        pieces.append(np.frombuffer(rows, dtype))
        lost += before
        at += FRAME.size + len(rows)
    rows_read = np.concatenate(pieces) if pieces else np.zeros(0, dtype)
    return Recording(header["about"], rows_read, lost, None if at == len(data) else at)

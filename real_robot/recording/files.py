"""File format of a recording: a header, then pieces of rows. Each piece has a checksum.

    header: 8 bytes RRTICKS\\n, uint32 length and uint32 CRC-32 of the JSON, JSON (format, fields,
            about)
    piece:  8 bytes PIECE\\r\\n\\0, uint32 CRC-32 of the rest of the piece, uint32 number of rows,
            uint64 first, uint64 lost, rows

All numbers are little endian. `first` is the number of the piece's first row, counted from 0 at the
start of the run. `lost` is the number of rows since the previous piece that were overwritten in the
ring before they could be written to the file. A truncated file is read up to its last complete
piece.
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
SUMMED_FROM = 12  # the checksum covers a piece from this offset on


class RecordingWriter:
    """Writer of a recording file. When `append` returns, the piece is on disk."""

    def __init__(self, path: Path, dtype: np.dtype, about: dict[str, Any]) -> None:
        """Create the file. about: metadata, such as robot, joints, units, rate. Raises OSError."""
        text = json.dumps({"format": FORMAT, "fields": describe(dtype), "about": about}).encode()
        self._file = path.open("xb", buffering=0)
        try:
            self._write(HEAD.pack(MAGIC, len(text), crc32(text)) + text)
        except OSError:
            self._file.close()
            path.unlink()
            raise

    def append(self, rows: bytes, count: int, first: int, lost: int) -> None:
        """Append a piece. Raises OSError if the disk is full. Earlier pieces stay readable."""
        frame = FRAME.pack(PIECE, 0, count, first, lost)[SUMMED_FROM:]
        total = crc32(rows, crc32(frame))
        self._write(PIECE + struct.pack("<I", total) + frame + rows)

    def _write(self, data: bytes) -> None:
        """Write all of `data`. If this raises OSError, the file is as it was before."""
        start, remaining = self._file.tell(), memoryview(data)
        try:
            while remaining:  # a write may be partial if the disk is nearly full
                remaining = remaining[self._file.write(remaining) :]
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
    """Contents of a recording, up to its last complete piece."""

    about: dict[str, Any]  # metadata
    rows: np.ndarray  # [N], of type `rows.row_type`
    lost: int  # number of rows that were not written because the disk was too slow
    cut_at: int | None  # byte at which the file is damaged or truncated; None: it is complete


def read(path: str | Path) -> Recording:
    """Read a recording up to its last complete piece. Raises UserError if the header is damaged."""
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) < HEAD.size or bytes(data[:8]) != MAGIC:
        raise UserError(f"{path} is not a robot recording")
    _, size, total = HEAD.unpack_from(data)
    text = data[HEAD.size : HEAD.size + size]
    if not text or len(text) != size or crc32(text) != total:
        raise UserError(f"{path}: the recording's header is damaged, so it cannot be read")
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
        complete = len(rows) == count * dtype.itemsize
        if not complete or crc32(rows, crc32(frame[SUMMED_FROM:])) != total:
            break
        pieces.append(np.frombuffer(rows, dtype))
        lost += before
        at += FRAME.size + len(rows)
    rows_read = np.concatenate(pieces) if pieces else np.zeros(0, dtype)
    return Recording(header["about"], rows_read, lost, None if at == len(data) else at)

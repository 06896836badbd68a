"""Frames: the messages between a learner and its actors. Nothing is pickled.

    start    magic, format, kind, header length, body length, checksum of header and body,
             checksum of the start up to here
    header   JSON: {"fields": {…}, "arrays": {name: [dtype, shape]}}
    body     the bytes of the arrays, in the order of the header, little-endian

Both checksums are CRC-32. The checksum of the start protects the lengths: a damaged length is
detected before that many bytes are read.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from offline_rl.utils.errors import UserError

MAGIC, FORMAT = b"ORLF", 1
START = struct.Struct("<4sHHIQI")  # everything before the checksum of the start
CHECK = struct.Struct("<I")
START_BYTES = START.size + CHECK.size
MAX_HEADER, MAX_BODY = 1 << 20, 1 << 31  # bytes
DTYPES = {
    *("float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
# errors of a header of another form
SCHEMA_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class Kind(IntEnum):
    """Kinds of frames. L: sent by the learner, A: sent by an actor."""

    CHALLENGE = 1  # L: nonce for the proof of the token
    HELLO = 2  # A: task, versions and proof
    WELCOME = 3  # L: algorithm, transform and first policy
    REQUEST = 4  # A: requests an episode
    GRANT = 5  # L: number of an episode, version of the policy, and the policy if it is new
    ALIVE = 6  # A: the environment makes progress
    EPISODE = 7  # A: a complete episode
    STORED = 8  # L: these episodes are in a checkpoint; the actor deletes them
    STOP = 9  # L: the run has ended
    ERROR = 10  # L or A: reason for the end of the connection


class Frame(NamedTuple):
    """A message: its kind, JSON values by name, and arrays by name."""

    kind: Kind
    fields: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


class FrameError(UserError):
    """Frame that is damaged, incomplete or of another format."""


def encode(kind: Kind, fields: Mapping[str, Any] | None = None, **arrays: np.ndarray) -> bytes:
    """Return the bytes of a frame. Raises ValueError for a dtype that frames cannot hold."""
    return encode_frame(Frame(kind, fields or {}, arrays))


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame; see `encode`."""
    schema, parts = dict[str, Any](), list[bytes]()
    for name, array in frame.arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name}: a frame cannot hold {array.dtype}. Use a plain number type.")
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        schema[name] = [array.dtype.name, list(array.shape)]
        parts.append(little.tobytes())
    about = {"fields": dict(frame.fields), "arrays": schema}
    header, body = json.dumps(about, allow_nan=False).encode(), b"".join(parts)
    if len(header) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(
            f"a frame of {len(header):,} + {len(body):,} bytes is larger than the limit of "
            f"{MAX_HEADER:,} + {MAX_BODY:,}. Send less at a time."
        )
    checksum = zlib.crc32(body, zlib.crc32(header))
    start = START.pack(MAGIC, FORMAT, frame.kind, len(header), len(body), checksum)
    return start + CHECK.pack(zlib.crc32(start)) + header + body


def read_frame(read: Callable[[int], bytes], max_body: int = MAX_BODY) -> Frame | None:
    """Read one frame; None if the connection was closed before it.

    read(n) returns the next bytes, at least one and at most n, or b"" at the end. Raises FrameError
    if the frame is damaged, incomplete, too large or of another format.
    """
    start = _read_exactly(read, START_BYTES, optional=True)
    if not start:
        return None
    magic, version, number, header_size, body_size, checksum = START.unpack(start[: START.size])
    if magic != MAGIC:
        raise FrameError(f"it starts with {magic!r}, not with {MAGIC!r}")
    if CHECK.unpack(start[START.size :])[0] != zlib.crc32(start[: START.size]):
        raise FrameError("its start does not match its checksum")
    if version != FORMAT:
        raise FrameError(f"its format is {version}, but this version reads format {FORMAT}")
    if number not in {*Kind}:
        raise FrameError(f"its kind {number} is unknown")
    if header_size > MAX_HEADER or body_size > max_body:
        raise FrameError(
            f"it has {header_size:,} + {body_size:,} bytes, more than {MAX_HEADER:,} + {max_body:,}"
        )
    header = _read_exactly(read, header_size)
    body = _read_exactly(read, body_size)
    if zlib.crc32(body, zlib.crc32(header)) != checksum:
        raise FrameError("its content does not match its checksum")
    return Frame(Kind(number), *_decode(header, body))


def _read_exactly(read: Callable[[int], bytes], size: int, *, optional: bool = False) -> bytes:
    """Return the next `size` bytes. optional: return b"" if there are none."""
    parts, missing = list[bytes](), size
    while missing:
        part = read(min(missing, 1 << 20))
        if not part:
            if optional and missing == size:
                return b""
            raise FrameError(f"it ends {missing:,} bytes early")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _decode(header: bytes, body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the fields and the arrays. Raises FrameError if they contradict the schema."""
    try:
        about = json.loads(header)
        fields, schema = about["fields"], about["arrays"]
        arrays, position = dict[str, np.ndarray](), 0
        if not isinstance(fields, dict):
            raise TypeError("fields is not an object")
        for name, (dtype, shape) in schema.items():
            if dtype not in DTYPES or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"array {name} has an invalid dtype or shape ({dtype}, {shape})")
            kind, count = np.dtype(dtype).newbyteorder("<"), prod(shape)
            values = np.frombuffer(body, kind, count, position).reshape(shape)
            arrays[name] = values.astype(dtype)
            position += values.nbytes
    except SCHEMA_ERRORS as error:
        raise FrameError(f"its schema is wrong ({error})") from None
    if position != len(body):
        raise FrameError(f"its arrays need {position:,} bytes, but its body has {len(body):,}")
    return fields, arrays

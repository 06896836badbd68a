"""Frames: they arrive unchanged, and no damaged frame is accepted."""

import json
import math
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rl.online.actors.frames import (
    DTYPES,
    START_BYTES,
    Frame,
    FrameError,
    Kind,
    encode,
    encode_frame,
    read_frame,
)

NAMES = st.text(max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Return an array of random bits: NaN, infinity and subnormal numbers included."""
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    high = 2 if dtype.kind == "b" else 256
    bits = random.integers(0, high, dtype.itemsize * math.prod(shape), np.uint8)
    return bits.view(dtype).reshape(shape)


FRAMES = st.builds(
    Frame, st.sampled_from(Kind), st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, arrays())
)


def reader(content: bytes, most: int = 1 << 20) -> Callable[[int], bytes]:
    """Return a function that reads `content` in pieces of at most `most` bytes, like a socket."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        part = content[position : position + min(size, most)]
        position += len(part)
        return part

    return read


def frame_with(header: object, body: bytes, **changes: int) -> bytes:
    """Return a frame with valid checksums around any header and body, written independently."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    values = {"format": 1, "kind": 7, "header": len(text), "size": len(body)} | changes
    start = b"ORLF" + struct.pack("<HHIQ", *values.values())
    start += struct.pack("<I", zlib.crc32(text + body))
    return start + struct.pack("<I", zlib.crc32(start)) + text + body


@settings(max_examples=25, deadline=None)
@given(st.lists(FRAMES, max_size=3), st.integers(1, 50))
def test_frames_arrive_unchanged_in_pieces_of_any_size(frames: list[Frame], most: int) -> None:
    read = reader(b"".join(map(encode_frame, frames)), most)
    for frame in frames:
        received = read_frame(read)
        assert received is not None
        assert (received.kind, received.fields) == (frame.kind, frame.fields)
        assert received.arrays.keys() == frame.arrays.keys()
        for name, array in frame.arrays.items():
            assert received.arrays[name].dtype == array.dtype
            assert received.arrays[name].shape == array.shape
            assert received.arrays[name].tobytes() == array.tobytes()  # NaN included
    assert read_frame(read) is None


@settings(max_examples=25, deadline=None)
@given(FRAMES, st.data())
def test_a_frame_with_any_changed_byte_or_any_missing_end_is_refused(
    frame: Frame, data: st.DataObject
) -> None:
    content = encode_frame(frame)
    position = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        read_frame(reader(bytes(changed)))
    length = data.draw(st.integers(1, len(content) - 1))
    with pytest.raises(FrameError, match="early"):
        read_frame(reader(content[:length]))


def test_a_damaged_length_is_noticed_before_anything_of_this_length_is_read() -> None:
    content = bytearray(encode(Kind.EPISODE, rewards=np.zeros(3, np.float32)))
    content[17] ^= 0xFF  # a high byte of the body's length
    requested = list[int]()
    inner = reader(bytes(content))

    def read(size: int) -> bytes:
        requested.append(size)
        return inner(size)

    with pytest.raises(FrameError, match="checksum"):
        read_frame(read)
    assert sum(requested) == START_BYTES


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (frame_with({"fields": {}, "arrays": {}}, b"", format=2), "format is 2"),
        (frame_with({"fields": {}, "arrays": {}}, b"", kind=99), "kind 99"),
        (frame_with({"fields": {}, "arrays": {}}, b"", size=1 << 40), "more than"),
        (frame_with({"fields": {}}, b""), "schema"),
        (frame_with([], b""), "schema"),
        (frame_with(b"{", b""), "schema"),
        (frame_with({"fields": 3, "arrays": {}}, b""), "schema"),
        (frame_with({"fields": {}, "arrays": {"x": ["object", [1]]}}, b"12345678"), "schema"),
        (frame_with({"fields": {}, "arrays": {"x": ["float32", [-1]]}}, b"1234"), "schema"),
        (frame_with({"fields": {}, "arrays": {"x": ["float32", [2]]}}, b"1234"), "schema"),
        (frame_with({"fields": {}, "arrays": {"x": ["int8", [2**70]]}}, b"1234"), "schema"),
        (frame_with({"fields": {}, "arrays": {"x": ["float32", [1]]}}, b"12345678"), "8"),
        (frame_with(b"[" * 100_000, b""), "schema"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "starts with"),
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        read_frame(reader(content))


def test_the_layout_is_the_documented_one() -> None:
    values = np.array([[1.5, -2]], np.float32)
    header = {"fields": {"a": 1}, "arrays": {"x": ["float32", [1, 2]]}}
    written = frame_with(header, struct.pack("<2f", 1.5, -2), kind=Kind.EPISODE)
    assert encode(Kind.EPISODE, {"a": 1}, x=values) == written


def test_python_objects_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="cannot hold object"):
        encode(Kind.EPISODE, x=np.array([{}], object))

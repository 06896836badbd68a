"""Output streams that discard text after their reader, such as `| head`, has closed the pipe.

The command then runs to its end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Display:
    """Output stream that discards text after its reader has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._call(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._call(self._stream.flush)

    def _call(self, method: Callable[..., object], *arguments: str) -> None:
        try:
            method(*arguments)
        except BrokenPipeError:  # send buffered and later text to the null device
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Ignore closed readers of stdout and stderr in the block and in the flush at its end."""
    originals = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(Display, originals)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = originals

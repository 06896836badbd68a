"""What is shown may lose its reader, as `| head` leaves: the work goes on unseen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Display:
    """A stream that takes what nobody reads any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._heard(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._heard(self._stream.flush)

    def _heard(self, what: Callable[..., object], *given: str) -> None:
        try:
            what(*given)
        except BrokenPipeError:  # what is still in its buffer goes the same way
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unread_allowed() -> Iterator[None]:
    """In the block, and at its end, neither output minds that its reader has gone."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(Display, before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before

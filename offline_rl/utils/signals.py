"""Ctrl-C and the end that a scheduler asks for: at once, or when what is under way is safe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)  # to stop


@contextmanager
def handled(
    numbers: Sequence[signal.Signals], note: Callable[[int, Any], object]
) -> Iterator[None]:
    """Calls `note(number, frame)` for each of `numbers` that comes in the block.

    One that is ignored, as shells arrange it for what runs in the background, stays ignored; in
    another thread than the main one all stay as they are.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if main}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block in KeyboardInterrupt, whatever a library makes of it on the way."""
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    try:
        with handled([signal.SIGINT], note):
            yield
    except BaseException as error:
        if came:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def postponed(say: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """The block goes on, and what it is given tells whether it is to end; a second time ends it.

    say: is told what is going to happen.
    """
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        say("interrupted: a checkpoint is written first; once more to leave without it")

    with handled(ASKING, note):
        yield lambda: came

"""Errors that the user can correct."""

from contextlib import suppress
from typing import Any


class UserError(Exception):
    """An error that the user can correct: what happened, where, and the remedy.

    The command line prints it without a traceback and exits with status 2. Line breaks, as in a
    library's message that is part of it, are replaced by spaces.
    """

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(line.strip() for line in str(sentence).splitlines()))


class MissingData(UserError):
    """A data set that is not on this machine."""


def close_quietly(opened: Any) -> None:
    """Close environments; ignore errors, which would hide why a run ended."""
    with suppress(Exception):
        opened.close()

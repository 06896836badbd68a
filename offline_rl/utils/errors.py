"""Errors that the user can correct."""

from contextlib import suppress
from typing import Any


class UserError(Exception):
    """An error that the user can correct: what happened, where, and the remedy.

    The command line prints the message without a traceback and exits with status 2. Line breaks in
    the message, for example in a quoted message of a library, become spaces.
    """

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(line.strip() for line in str(sentence).splitlines()))


class SharedError(UserError):
    """Error that every process of a torchrun command raises; only rank 0 prints it."""


class MissingData(UserError):
    """Error for a data set that is not on this machine."""


def close_quietly(opened: Any) -> None:
    """Close environments; ignore errors, which would hide the error that ended the run."""
    with suppress(Exception):
        opened.close()

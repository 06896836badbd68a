"""The errors a user can mend."""

from contextlib import suppress
from typing import Any


class UserError(Exception):
    """The user's mistake: one sentence with what, where, found, expected and the remedy.

    The command line prints it without a traceback and exits with 2. What a library said in several
    lines, and is part of it, is said in one.
    """

    def __init__(self, sentence: object) -> None:
        super().__init__(" ".join(line.strip() for line in str(sentence).splitlines()))


class MissingData(UserError):
    """The data set is not there, yet."""


def close_quietly(opened: Any) -> None:
    """Close environments. One that fails to close must not hide why a run ended."""
    with suppress(Exception):
        opened.close()

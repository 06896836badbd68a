"""What a user's environment raised, in words and with the line of it."""

import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parents[1]
_PATHS = sysconfig.get_paths()
LIBRARIES = (  # whose lines tell a user nothing
    *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(f"{_HERE / name}/" for name in ("envs", "offline_rl", "policies")),
    "<",
)


USER_ERRORS = (Exception, SystemExit)  # what a user's code may raise: SDKs call sys.exit() too


class Broken(ValueError):
    """An environment raised, or answered what is no observation or reward."""


def check_finite(what: str, observations: Any, rewards: np.ndarray | None = None) -> None:
    """Raises Broken where `what` answers what is no number, of which no policy can make anything.

    observations: an array, or one of each channel.
    """
    parts = observations.values() if isinstance(observations, Mapping) else (observations,)
    if not all(np.isfinite(part).all() for part in parts):
        raise Broken(f"{what} answers an observation that is no number")
    if rewards is not None and not np.isfinite(rewards).all():
        raise Broken(f"{what} answers a reward that is no number")


def user_line(error: BaseException) -> str | None:
    """The innermost line of the user's that led to it; None where a library alone raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(LIBRARIES)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None


def describe_briefly(error: BaseException) -> str:
    """Return the kind and the text of what the user's code raised, on one line, without a place."""
    error = error.__cause__ or error
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def describe_error(error: BaseException) -> str:
    """In one line: where, which kind, what."""
    where, words = user_line(error), " ".join(str(error).split())
    return f"{f'{where}: ' if where else ''}{type(error).__name__}: {words}".rstrip(": ")

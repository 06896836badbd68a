"""Errors of user environments, described in one line with file and line number."""

import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parents[1]
_PATHS = sysconfig.get_paths()
LIBRARIES = (  # path prefixes of code that is not the user's
    *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(f"{_HERE / name}/" for name in ("envs", "offline_rl", "policies")),
    "<",
)


USER_ERRORS = (Exception, SystemExit)  # user code may raise any of them: SDKs call sys.exit()


class Broken(ValueError):
    """Raised if an environment raises, or returns an invalid observation or reward."""


def check_finite(what: str, observations: Any, rewards: np.ndarray | None = None) -> None:
    """Raise Broken if an observation or a reward is NaN or infinite.

    what: the caller's name in the message. observations: an array, or one per channel.
    """
    parts = observations.values() if isinstance(observations, Mapping) else (observations,)
    if not all(np.isfinite(part).all() for part in parts):
        raise Broken(f"{what} returned an observation with NaN or infinite values")
    if rewards is not None and not np.isfinite(rewards).all():
        raise Broken(f"{what} returned a reward that is NaN or infinite")


def user_line(error: BaseException) -> str | None:
    """Return file and number of the innermost line of user code in the traceback.

    None if the traceback has library code only.
    """
    traced = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in traced if not frame.filename.startswith(LIBRARIES)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def describe_briefly(error: BaseException) -> str:
    """Return the type and the text of an error on one line, without the line number."""
    error = error.__cause__ or error
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def describe_error(error: BaseException) -> str:
    """Return file and line of the user's code, type and text of an error, all on one line."""
    where, words = user_line(error), " ".join(str(error).split())
    return f"{f'{where}: ' if where else ''}{type(error).__name__}: {words}".rstrip(": ")

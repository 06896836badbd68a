"""Algorithms by name, and their settings: command line over table over task's card over default."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.options import build, unknown
from offline_rl.utils.paths import PACKAGE, share

if TYPE_CHECKING:
    from offline_rl.algorithms.common.base import Algorithm


@cache
def algorithm_names() -> tuple[str, ...]:
    """Every file in offline_rl/algorithms."""
    files = (PACKAGE / "algorithms").glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of `offline_rl/algorithms/<name>.py`. Raises UserError with near matches."""
    from offline_rl.algorithms.common.base import Algorithm

    if name not in algorithm_names():
        raise UserError(unknown("algorithm", name, algorithm_names()))
    module = importlib.import_module(f"offline_rl.algorithms.{name}")
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
    ]
    return own[-1]


def algorithm_yaml(name: str) -> dict[str, Any]:
    """configs/algorithm/<name>.yaml; empty where an algorithm has none. Raises UserError."""
    path = table(name)
    found = read_yaml(path) if path.is_file() else {}
    for key, value in found.items():
        if key not in ("tuned", "parity"):
            raise UserError(f"{path}: {unknown('key', key, ('tuned', 'parity'))}")
        if not isinstance(value, dict | None):
            raise UserError(f"{path}: {key} is {value!r}, names and their values are expected")
    for pattern, row in (found.get("tuned") or {}).items():
        if not isinstance(pattern, str) or not isinstance(row, dict):
            raise UserError(f"{path}: {pattern}: {row!r} is no row of names and their values")
    return found


def table(name: str) -> Path:
    """Where the algorithm's per-task table is, if it has one."""
    return share("configs") / "algorithm" / f"{name}.yaml"


def tuned(name: str, task: str) -> tuple[str | None, dict[str, Any]]:
    """The first pattern of the algorithm's per-task table that fits `task`, and its values.

    Our own data of D4RL's kind, gym/<set>, takes what D4RL's <set>-v2 takes; its point mazes are
    those of maze2d-<maze>-v1. d4rl:<id> takes what <id> takes.
    """
    task = task.removeprefix("d4rl:")
    names = [task]
    if task.startswith("gym/pointmaze-"):
        names.append(f"{task.replace('gym/pointmaze', 'maze2d')}-v1")
    elif task.startswith("gym/"):
        names.append(f"{task[4:]}-v2")
    for pattern, values in (algorithm_yaml(name).get("tuned") or {}).items():
        if any(fnmatchcase(each, p) for each in names for p in alternatives(pattern)):
            return pattern, dict(values)
    return None, {}


def alternatives(pattern: str) -> list[str]:
    """`{a,b}-*` -> `a-*`, `b-*`."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [p for part in match[1].split(",") for p in alternatives(head + part + tail)]


def prepared(name: str, task: str) -> dict[str, Any]:
    """What the task's card says of its data's preprocessing, where the algorithm follows it."""
    from envs.cards import cards

    card = cards().get(task.removeprefix("d4rl:"))
    if card is None or not algorithm_class(name).follows_card:
        return {}
    return dict(card.preprocessing)


def algorithm_config(name: str, task: str, given: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The algorithm's config for `task`, and the pattern of its table that was used."""
    config, card = algorithm_class(name).Config, prepared(name, task)
    pattern, values = tuned(name, task)
    for where, own in ((f"the card of {task}", card), (f"{table(name)}: {pattern}", values)):
        build(config, own, f"{where}: ")  # whose mistake it is, if it is one
    return build(config, {**card, **values, **given}, "algorithm."), pattern

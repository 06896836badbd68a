"""Options from the command line (Hydra's override syntax) and from Python, checked and completed.

Command line over the algorithm's per-task table over the dataclass's default. A key that does not
exist or a value of the wrong type is one error that names the nearest key or the expected type.
"""

from __future__ import annotations

import difflib
import importlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from offline_rl.errors import UserError
from offline_rl.paths import PACKAGE, share

if TYPE_CHECKING:
    from offline_rl.algorithm import Algorithm

T = TypeVar("T")


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` arguments to a flat dict, by Hydra's grammar. Raises UserError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, values = OverridesParser.create(), dict[str, Any]()
    for argument in arguments:
        try:
            override = parser.parse_override(argument)
        except HydraException:
            raise UserError(
                f"{argument!r} is not of the form key=value; put a value with special characters "
                f"in quotes: \"key='a b'\""
            ) from None
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{argument!r}: one value for each key; a list is key=[a,b]")
        if override.key_or_group in values:
            raise UserError(f"{override.key_or_group} is given twice")
        values[override.key_or_group] = _plain(override.value())
    return values


def _plain(value: Any) -> Any:
    """Hydra's quoted strings to str, recursively."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | type(None)) else str(value)


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """`cls(**values)` with every key known, every type right, nothing required missing."""
    hints = get_type_hints(cls)
    options = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    checked = {}
    for key, value in values.items():
        if key not in options:
            raise UserError(unknown("option", f"{prefix}{key}", [f"{prefix}{k}" for k in options]))
        checked[key] = coerce(value, hints[key], f"{prefix}{key}")
    for key, f in options.items():
        if key not in checked and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{prefix}{key}=… is missing")
    try:
        return cls(**checked)
    except ValueError as error:  # a config's own check
        raise UserError(f"{prefix.rstrip('.') or cls.__name__}: {error}") from None


def coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as type `hint`, without surprises: no bool from a string, no int from 1.5."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return coerce(value, option, name)
            except UserError:
                continue
    elif origin is Literal:
        if value in args or str(value) in args:
            return value if value in args else str(value)
    elif origin in (tuple, list):
        if isinstance(value, list | tuple):
            return origin(coerce(v, args[0], name) for v in value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif hint is str:
        if isinstance(value, str | int | float | Path) and not isinstance(value, bool):
            return str(value)
    elif hint is type(None):
        if value is None:
            return None
    elif type(value) is hint:
        return value
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    raise UserError(f"{name}={value!r}: expected {_spell(hint)}")


def _spell(hint: Any) -> str:
    """A type in words."""
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, args))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_spell, args))
    if get_origin(hint) in (tuple, list):
        return f"a list [{_spell(args[0])}, …]"
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "null")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"unknown {kind} {name!r}; {hint}"


@cache
def algorithm_names() -> tuple[str, ...]:
    """Every file in offline_rl/algorithms."""
    files = (PACKAGE / "algorithms").glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of `offline_rl/algorithms/<name>.py`. Raises UserError with near matches."""
    from offline_rl.algorithm import Algorithm

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
    """configs/algorithm/<name>.yaml; empty where an algorithm has none."""
    from omegaconf import OmegaConf

    path = share("configs") / "algorithm" / f"{name}.yaml"
    loaded: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else None
    return loaded or {}


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


def algorithm_config(name: str, task: str, given: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The algorithm's config for `task`, and the pattern of its table that was used."""
    pattern, values = tuned(name, task)
    return build(algorithm_class(name).Config, {**values, **given}, "algorithm."), pattern

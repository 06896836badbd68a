"""Options from the command line (Hydra's override syntax) and from Python, checked and completed.

A key that does not exist or a value of the wrong type is one error that names the nearest key or
the expected type.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from offline_rl.utils.errors import UserError

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
        raise UserError(f"{prefix.rstrip('.: ') or cls.__name__}: {error}") from None


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

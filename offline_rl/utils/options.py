"""Parsing and checking of options from the command line (Hydra's override syntax) and from Python.

An unknown key, a wrong type or a value out of range raises an error that names similar keys, the
expected type or the range. The range of a field is part of its type: `Annotated[float, Range(0)]`,
or an alias such as `NonNegative`. The comment next to a field is the help text of the option.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
import textwrap
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from sys import float_info
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from offline_rl.utils.errors import UserError
from offline_rl.utils.words import unknown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

T = TypeVar("T")
MAX_FLOAT = float_info.max
FORMULAS = ("stl", "eval_stl")  # options whose values are formulas, which need no inner quotes


@dataclass(frozen=True)
class Range:
    """The numbers that an option accepts: never NaN, and infinity only if `low` or `high` is."""

    low: float = -MAX_FLOAT  # inclusive
    high: float = MAX_FLOAT  # inclusive
    above: float | None = None  # exclusive
    below: float | None = None  # exclusive

    def __contains__(self, x: float) -> bool:
        above = self.above is None or x > self.above
        return self.low <= x <= self.high and above and (self.below is None or x < self.below)

    def __str__(self) -> str:
        if self.low > -MAX_FLOAT and self.high < MAX_FLOAT:
            return f"between {self.low:g} and {self.high:g}"
        ends = {
            "at least": self.low if abs(self.low) < MAX_FLOAT else None,
            "above": self.above,
            "at most": self.high if abs(self.high) < MAX_FLOAT else None,
            "below": self.below,
        }
        text = " and ".join(f"{words} {end:g}" for words, end in ends.items() if end is not None)
        return text or ("finite" if self.high == MAX_FLOAT else "a number")


Number = Annotated[float, Range()]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Amount = Annotated[int, Range(0)]
ActionRange = list[float] | list[list[float]] | Literal["data"]  # [low, high]
FileFormat = Literal[  # the first five are arrays at the root of an HDF5 or NPZ file
    "d4rl",
    "kitchen",
    "maze",
    "neorl2",
    "plain",
    "ogbench",
    "minari",
    "robomimic",
    "d3rlpy",
    "diffusion_policy",
    "lerobot",
    "recording",
]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make a class a dataclass that cannot change and takes keyword arguments only."""
    return dataclass(frozen=True, kw_only=True)(cls)


class Checked:
    """Base of dataclasses that check the ranges of their fields."""

    def __post_init__(self) -> None:
        """Check the ranges. Raises ValueError; values that are not numbers are not checked."""
        cls: Any = type(self)
        for name, allowed in field_ranges(cls).items():
            value = getattr(self, name)
            for x in value if isinstance(value, tuple | list) else (value,):
                number = isinstance(x, int | float) and not isinstance(x, bool)
                if number and x not in allowed:
                    raise ValueError(f"{name}={value} is not {allowed}")


def type_metadata(hint: Any) -> Iterator[Any]:
    """Yield the metadata of all `Annotated` in a type, at any depth."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for part in get_args(hint):
        yield from type_metadata(part)


@cache
def field_ranges(cls: type) -> dict[str, Range]:
    """Return the ranges of the fields that have one."""
    hints = get_type_hints(cls, include_extras=True)
    pairs = ((f.name, note) for f in fields(cls) for note in type_metadata(hints[f.name]))
    return {name: note for name, note in pairs if isinstance(note, Range)}


class Option(NamedTuple):
    """The description of a field of an options dataclass, for help pages."""

    name: str
    type: str
    default: Any  # MISSING if the option is required
    range: Range | None
    meaning: str  # the comment next to the field


def describe_options(cls: type) -> list[Option]:
    """Return the options of a dataclass; inherited ones come last.

    The meaning of an option is the comment next to the field. If the class has none, the comment
    of the nearest base class is used.
    """
    hints, by_name = get_type_hints(cls), {f.name: f for f in fields(cls)}
    layers = [layer for layer in cls.__mro__ if is_dataclass(layer)]
    comments = [field_comments(layer) for layer in layers]
    order = [name for layer in layers for name in vars(layer).get("__annotations__", {})]
    options = []
    for name in (name for name in dict.fromkeys(order) if name in by_name):
        field, meaning = by_name[name], next((c[name] for c in comments if name in c), "")
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        allowed = field_ranges(cls).get(name)
        options.append(Option(name, _describe_type(hints[name]), default, allowed, meaning))
    return options


def options_signature(function: Callable[..., Any], *classes: type) -> inspect.Signature:
    """Return the signature of `function` with the options of `classes` in place of `**keys`.

    Python's `help` and completion show this signature.
    """
    parameters = list(inspect.signature(function).parameters.values())
    rest = [p for p in parameters if p.kind == inspect.Parameter.VAR_KEYWORD]
    by_name = {p.name: p for p in parameters if p not in rest}
    for cls in classes:
        hints = get_type_hints(cls)
        for option in describe_options(cls):
            default = {} if option.default is MISSING else {"default": option.default}
            kind, hint = inspect.Parameter.KEYWORD_ONLY, hints[option.name]
            parameter = inspect.Parameter(option.name, kind, annotation=hint, **default)
            by_name.setdefault(option.name, parameter)
    return inspect.Signature([*by_name.values(), *rest])


@cache
def field_comments(cls: type) -> dict[str, str]:
    """Return the comments next to the fields that a class itself defines, from its source code."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # defined in an interactive interpreter
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    comments = {k: re.sub(r"^# type: ignore\S* +#", "", x).lstrip("# ") for k, x in texts.items()}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        node.target.id: comments[line]
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in comments
    }


def takes_options(options: str, flags: Sequence[str] = (), **groups: str) -> Callable[[T], T]:
    """Decorate a command with the dataclasses of its options, for the --help page.

    options: "module:Class".  flags: arguments that are not key=value.  groups: prefix ->
    "module:Class", for options with a prefix such as `wandb.project`.
    """

    def mark(command: T) -> T:
        command.options = {"": options} | {f"{k}.": v for k, v in groups.items()}  # type: ignore[attr-defined]
        command.flags = flags  # type: ignore[attr-defined]
        return command

    return mark


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` arguments by Hydra's grammar to a flat dict. Raises UserError."""
    overrides = parse_overrides(arguments)
    for override in overrides:
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line!r} has several values. Give one; a list is key=[a,b]."
            )
    return override_values(overrides)


def parse_overrides(arguments: Sequence[str], groups: Any = None) -> list[Override]:
    """Parse `key=value` arguments to Hydra's overrides, one per key.

    groups: Hydra's ConfigLoader, for the config groups that glob(…) selects from. Raises UserError.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(groups)
    by_key: dict[str, Override] = {}
    for argument in arguments:
        try:
            (override,) = parser.parse_overrides([quote_formula(argument)])
        except HydraException:
            raise UserError(
                f"{argument!r} is not of the form key=value. Put a value with special characters "
                f"in quotes: \"key='a b'\""
            ) from None
        if override.is_delete():
            raise UserError(f"{argument!r}: a key cannot be removed. Set it to another value.")
        if override.is_add() or override.is_force_add() or override.package is not None:
            raise UserError(f"{argument!r}: keys cannot be added or moved. Write key=value.")
        if override.key_or_group in by_key:
            raise UserError(f"{override.key_or_group} is given twice. Give it once.")
        by_key[override.key_or_group] = override
    return list(by_key.values())


def quote_formula(argument: str) -> str:
    """Return `key=value` with the value in quotes if the key is one of FORMULAS.

    The quotes keep a formula's commas and parentheses from being parsed.
    """
    key, _, text = argument.partition("=")
    if key not in FORMULAS or text == "null":
        return argument
    if text[:1] in ("'", '"') and text[-1:] == text[0] and text.count(text[0]) == 2:
        text = text[1:-1]
    escaped = text.replace("'", "\\'")
    return f"{key}='{escaped}'"


def override_values(overrides: Iterable[Override]) -> dict[str, Any]:
    """Return the value of each key as a Python value."""
    return {o.key_or_group: _to_value(o.value(), o.input_line) for o in overrides}


class _TypedNumber:
    """A number with its text on the command line, which is used if the option is a name or path."""

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class _TypedInt(_TypedNumber, int):
    """An integer whose text is not its usual spelling, such as 2026_11_22."""


class _TypedFloat(_TypedNumber, float):
    """A number whose text is not its usual spelling, such as 1.10."""


def _to_value(value: Any, line: str | None = None) -> Any:
    """Convert a value of Hydra to a Python value, recursively. line: the argument, key=value."""
    text = line.partition("=")[2] if line else ""
    if type(value) in (int, float) and text and text != str(value):
        number = (_TypedInt if isinstance(value, int) else _TypedFloat)(value)
        number.text = text
        return number
    if isinstance(value, list):
        return [_to_value(v) for v in value]
    return value if isinstance(value, bool | int | float | type(None)) else str(value)


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Build `cls(**values)`; check that keys exist, types fit and no required key is missing.

    prefix: text before the keys in error messages; if it ends with a space, it names a file.
    Raises UserError.
    """
    hints = get_type_hints(cls)
    options = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    checked = {}
    for key, value in values.items():
        if key not in options and prefix.endswith(" "):
            raise UserError(f"{prefix}{unknown('option', str(key), options)}")
        if key not in options:
            raise UserError(unknown("option", f"{prefix}{key}", [f"{prefix}{k}" for k in options]))
        checked[key] = coerce(value, hints[key], f"{prefix}{key}")
    for key, f in options.items():
        if key not in checked and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{prefix}{key}=… is missing. Add it.")
    try:
        return cls(**checked)
    except ValueError as error:  # a check of the dataclass
        raise UserError(f"{prefix}{error}") from None


def coerce(value: Any, hint: Any, name: str) -> Any:
    """Convert `value` to type `hint`. Raises UserError if it has another type, as 1.5 for int."""
    value = to_python(value)
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
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
    elif hint is type(None):
        if value is None:
            return None
    elif hint is int:
        integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if integral and not isinstance(value, bool):
            return int(value)
    elif type(value) is hint:
        return value
    raise UserError(f"{name}={value!r}: expected {_describe_type(hint)}")


def to_python(value: Any) -> Any:
    """Convert NumPy and torch numbers and arrays, and ranges, to Python numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, range) else value


def _describe_type(hint: Any) -> str:
    """Describe a type in words."""
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " * (len(args) > 1) + ", ".join(map(str, args))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_describe_type, args))
    if get_origin(hint) in (tuple, list):
        return f"a list [{_describe_type(args[0])}, …]"
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "null")


def format_value(value: Any) -> str:
    """Format a value as on the command line; an empty string for None and MISSING."""
    if value is None or value is MISSING:
        return ""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value}"

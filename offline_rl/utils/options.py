"""Options from the command line (Hydra's override syntax) and from Python, checked and completed.

A key that does not exist, a value of the wrong type or out of its range is one error that names the
nearest key, the expected type or the range. A field's range stands in its type, as
`Annotated[float, Range(0)]` or a name for that; its meaning in the comment beside it, where
`documented` finds it.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
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
    get_args,
    get_origin,
    get_type_hints,
)

from offline_rl.utils.errors import UserError
from offline_rl.utils.words import unknown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

T = TypeVar("T")
MOST = float_info.max


@dataclass(frozen=True)
class Range:
    """Which numbers an option takes, finite ones unless an end is infinite; never NaN."""

    low: float = -MOST
    high: float = MOST
    above: float | None = None
    below: float | None = None

    def __contains__(self, x: float) -> bool:
        beyond = self.above is None or x > self.above
        return self.low <= x <= self.high and beyond and (self.below is None or x < self.below)

    def __str__(self) -> str:
        if self.low > -MOST and self.high < MOST:
            return f"between {self.low:g} and {self.high:g}"
        ends = {
            "at least": self.low if abs(self.low) < MOST else None,
            "above": self.above,
            "at most": self.high if abs(self.high) < MOST else None,
            "below": self.below,
        }
        said = " and ".join(f"{words} {end:g}" for words, end in ends.items() if end is not None)
        return said or ("finite" if self.high == MOST else "a number")


Number = Annotated[float, Range()]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Amount = Annotated[int, Range(0)]
ActionRange = list[float] | list[list[float]] | Literal["data"]  # [low, high]
FileFormat = Literal[  # the first five: arrays at the root of an HDF5 or NPZ file
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


class Checked:
    """Base of dataclasses whose values lie in the ranges that stand beside their fields."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field; passes over what is no number, such as a tensor."""
        cls: Any = type(self)
        for name, allowed in ranges(cls).items():
            value = getattr(self, name)
            for x in value if isinstance(value, tuple | list) else (value,):
                number = isinstance(x, int | float) and not isinstance(x, bool)
                if number and x not in allowed:
                    raise ValueError(f"{name}={value} is not {allowed}")


def notes(hint: Any) -> Iterator[Any]:
    """What is annotated in a type, at any depth."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for part in get_args(hint):
        yield from notes(part)


@cache
def ranges(cls: type) -> dict[str, Range]:
    """The fields that have a range."""
    hints = get_type_hints(cls, include_extras=True)
    found = ((f.name, note) for f in fields(cls) for note in notes(hints[f.name]))
    return {name: note for name, note in found if isinstance(note, Range)}


class Option(NamedTuple):
    """A field of an options dataclass, in words."""

    name: str
    type: str
    default: Any  # MISSING where it has to be given
    range: Range | None
    meaning: str


def documented(cls: type) -> list[Option]:
    """The options of a dataclass, its own before those it inherits.

    A meaning is the comment beside the field, in the class itself or else in the nearest base that
    has one.
    """
    hints, found = get_type_hints(cls), {f.name: f for f in fields(cls)}
    layers = [layer for layer in cls.__mro__ if is_dataclass(layer)]
    said = [comments(layer) for layer in layers]
    order = [name for layer in layers for name in vars(layer).get("__annotations__", {})]
    made = []
    for name in (name for name in dict.fromkeys(order) if name in found):
        field, meaning = found[name], next((s[name] for s in said if name in s), "")
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        made.append(Option(name, _spell(hints[name]), default, ranges(cls).get(name), meaning))
    return made


def signature(function: Callable[..., Any], *classes: type) -> inspect.Signature:
    """That of `function`, whose `**keys` are the options of `classes`: for help and completion."""
    own = list(inspect.signature(function).parameters.values())
    rest = [p for p in own if p.kind == inspect.Parameter.VAR_KEYWORD]
    known = {p.name: p for p in own if p not in rest}
    for cls in classes:
        hints = get_type_hints(cls)
        for option in documented(cls):
            given = {} if option.default is MISSING else {"default": option.default}
            kind = inspect.Parameter.KEYWORD_ONLY
            parameter = inspect.Parameter(option.name, kind, annotation=hints[option.name], **given)
            known.setdefault(option.name, parameter)
    return inspect.Signature([*known.values(), *rest])


@cache
def comments(cls: type) -> dict[str, str]:
    """The comments beside the fields that a class itself defines, read from its source."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # typed into an interpreter
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        node.target.id: said[line]
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in said
    }


def takes(options: str, flags: Sequence[str] = (), **groups: str) -> Callable[[T], T]:
    """Marks a verb with its keys' dataclasses, "module:Class", which its page of --help shows.

    flags: words that it takes beside keys. groups: those of keys with a prefix, as `wandb.project`.
    """

    def mark(command: T) -> T:
        command.options = {"": options} | {f"{k}.": v for k, v in groups.items()}  # type: ignore[attr-defined]
        command.flags = flags  # type: ignore[attr-defined]
        return command

    return mark


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` arguments to a flat dict, by Hydra's grammar. Raises UserError."""
    given = overrides(arguments)
    for override in given:
        if override.is_sweep_override():
            raise UserError(f"{override.input_line!r}: one value for each key; a list is key=[a,b]")
    return plain_values(given)


def overrides(arguments: Sequence[str], groups: Any = None) -> list[Override]:
    """Hydra's, one for each key. groups: a ConfigLoader, which tells what glob(…) chooses from."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(groups)
    made: dict[str, Override] = {}
    for argument in arguments:
        try:
            (override,) = parser.parse_overrides([argument])
        except HydraException:
            raise UserError(
                f"{argument!r} is not of the form key=value; put a value with special characters "
                f"in quotes: \"key='a b'\""
            ) from None
        if override.is_delete():
            raise UserError(f"{argument!r}: no key can be taken away; give it another value")
        if override.is_add() or override.is_force_add() or override.package is not None:
            raise UserError(f"{argument!r}: every key is there already, in its place: key=value")
        if override.key_or_group in made:
            raise UserError(f"{override.key_or_group} is given twice")
        made[override.key_or_group] = override
    return list(made.values())


def plain_values(given: Iterable[Override]) -> dict[str, Any]:
    """Each key's value."""
    return {o.key_or_group: _plain(o.value(), o.input_line) for o in given}


class _Typed:
    """A number that is also the text it was typed as, which is a name's or a folder's value."""

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class _Integer(_Typed, int):
    """Such as 2026_11_22."""


class _Real(_Typed, float):
    """Such as 1.10."""


def _plain(value: Any, line: str | None = None) -> Any:
    """Hydra's quoted strings to str, recursively. line: as it was typed, key=value."""
    typed = line.partition("=")[2] if line else ""
    if type(value) in (int, float) and typed and typed != str(value):
        number = (_Integer if isinstance(value, int) else _Real)(value)
        number.text = typed
        return number
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | type(None)) else str(value)


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """`cls(**values)` with every key known, every type right, nothing required missing."""
    hints = get_type_hints(cls)
    options = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    checked = {}
    for key, value in values.items():
        if key not in options and prefix.endswith(" "):  # of a file
            raise UserError(f"{prefix}{unknown('option', key, options)}")
        if key not in options:
            raise UserError(unknown("option", f"{prefix}{key}", [f"{prefix}{k}" for k in options]))
        checked[key] = coerce(value, hints[key], f"{prefix}{key}")
    for key, f in options.items():
        if key not in checked and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{prefix}{key}=… is missing")
    try:
        return cls(**checked)
    except ValueError as error:  # a config's own check
        raise UserError(f"{prefix}{error}") from None


def coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as type `hint`, without surprises: no bool from a string, no int from 1.5."""
    value = plain_python(value)
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
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if whole and not isinstance(value, bool):
            return int(value)
    elif type(value) is hint:
        return value
    raise UserError(f"{name}={value!r}: expected {_spell(hint)}")


def plain_python(value: Any) -> Any:
    """Return a NumPy or torch number or array, or a range, as Python's own numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, range) else value


def _spell(hint: Any) -> str:
    """A type in words."""
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " * (len(args) > 1) + ", ".join(map(str, args))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_spell, args))
    if get_origin(hint) in (tuple, list):
        return f"a list [{_spell(args[0])}, …]"
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "null")


def spelled(value: Any) -> str:
    """A value as it is given on the command line; nothing for what has none."""
    if value is None or value is MISSING:
        return ""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spelled, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value}"

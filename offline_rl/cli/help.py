"""Pages of `offline-rl <verb> --help`: a verb's docstring, then its keys from their dataclasses.

What a key means, which values it takes and its default stand beside its field and nowhere else.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from offline_rl.utils.options import Option, describe_options, format_value

WIDTH, KEYS = 100, 30  # columns: of a page, of its keys with their defaults


def page(command: Callable[..., Any], arguments: Sequence[str]) -> str:
    """The page of a verb; with `algorithm=` among the arguments also that method's keys."""
    parts = [inspect.cleandoc(command.__doc__ or "")]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    for prefix, name in getattr(command, "options", {}).items():
        module, _, cls = name.partition(":")
        options = describe_options(getattr(import_module(module), cls))
        parts.append(keys(options, prefix))
        if "algorithm" in given and "algorithm" in (option.name for option in options):
            parts.append(method(given["algorithm"], given.get("task", "")))
    return "\n\n".join(parts)


def method(algorithm: str, task: str) -> str:
    """A method's hyper-parameters; the values are those for `task`. Raises UserError."""
    from offline_rl.algorithms.common.registry import (
        algorithm_class,
        prepared,
        table_of,
        tuned,
    )
    from offline_rl.algorithms.common.schedule import OnPolicy

    cls = algorithm_class(algorithm)
    pattern, values = tuned(algorithm, task)
    owner = table_of(algorithm)
    whose = "its table" if owner == algorithm else f"{owner}'s table"
    table = f", by the row {pattern} of {whose} for task={task}" if pattern else ""
    parts = [f"hyper-parameters of {algorithm}{table}:"]
    parts.append(
        keys(describe_options(cls.Config), "algorithm.", {**prepared(algorithm, task), **values})
    )
    if cls.online and not issubclass(cls.Online, OnPolicy):  # of which it reads nothing
        values = {**cls.Online.config_changes, **tuned(algorithm, task, "online")[1]}
        own = [option for option in describe_options(cls.Config) if option.name in values]
        parts.append("in an environment, where online.<hyper-parameter>= holds there alone:")
        parts.append(keys([*describe_options(cls.Online), *own], "online.", values))
    return "\n\n".join(parts)


def keys(
    options: Sequence[Option], prefix: str = "", values: Mapping[str, Any] | None = None
) -> str:
    """Lines for each: key and value, meaning, what may be given; `values` over defaults."""
    lines = []
    for option in options:
        value, more = option.default, [kind(option)]
        if values and option.name in values:
            value = values[option.name]
            more.append(f"default {format_value(option.default) or 'null'}")
        key = f"  {prefix}{option.name}={format_value(value)}"
        told = f"{option.meaning} ({'; '.join(filter(None, more))})".replace(" ()", "").strip()
        text = textwrap.wrap(told, WIDTH - KEYS, break_long_words=False, break_on_hyphens=False)
        first = f"{key:{KEYS}s}{text[0]}" if text and len(key) < KEYS else key
        rest = text[1:] if len(key) < KEYS else text
        lines += [first.rstrip(), *(" " * KEYS + line for line in rest)]
    return "\n".join(lines)


def kind(option: Option) -> str:
    """What may be given, in words: its type and range; nothing for a mere text."""
    words = option.type.removesuffix(" or null").removeprefix("one of ").split(" [")[0]
    allowed = str(option.range or "").replace("finite", "")
    return ", ".join(filter(None, ["" if words == "text" else words, allowed]))

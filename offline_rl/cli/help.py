"""Pages of `offline-rl <verb> --help`: the verb's docstring and options.

Meaning, type, range and default of an option come from its dataclass field and the comment there.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from offline_rl.utils.options import Option, describe_options, format_value

WIDTH, KEYS = 100, 30  # characters: line length, and width of the column `key=default`


def page(command: Callable[..., Any], arguments: Sequence[str]) -> str:
    """Return the help page of a verb. With `algorithm=` it includes that algorithm's options."""
    parts = [inspect.cleandoc(command.__doc__ or "")]
    passed = dict(a.split("=", 1) for a in arguments if "=" in a)
    for prefix, name in getattr(command, "options", {}).items():
        module, _, cls = name.partition(":")
        options = describe_options(getattr(import_module(module), cls))
        parts.append(option_lines(options, prefix))
        if "algorithm" in passed and "algorithm" in (option.name for option in options):
            parts.append(algorithm_section(passed["algorithm"], passed.get("task", "")))
    return "\n\n".join(parts)


def algorithm_section(algorithm: str, task: str) -> str:
    """Return the hyper-parameters of an algorithm with their values for `task`.

    Raises UserError for an unknown algorithm.
    """
    from offline_rl.algorithms.common.registry import (
        algorithm_class,
        card_preprocessing,
        table_of,
        tuned,
    )

    cls = algorithm_class(algorithm)
    pattern, values = tuned(algorithm, task)
    owner = table_of(algorithm)
    table = ""
    if pattern:
        table = f" with task={task} (row {pattern} of configs/algorithm/{owner}.yaml)"
    parts = [f"hyper-parameters of {algorithm}{table}:"]
    parts.append(
        option_lines(
            describe_options(cls.Config),
            "algorithm.",
            {**card_preprocessing(algorithm, task), **values},
        )
    )
    values = {**cls.Online.config_changes, **tuned(algorithm, task, "online")[1]}
    if online := online_options(cls, values):
        parts.append(
            "options of online training; online.<hyper-parameter>= sets a hyper-parameter for "
            "online training only:"
        )
        parts.append(option_lines(online, "online.", values))
    return "\n\n".join(parts)


def online_options(cls: Any, values: Mapping[str, Any]) -> list[Option]:
    """Return the options of an algorithm's online training, then the hyper-parameters in `values`.

    The list is empty if the algorithm does not train online, or if it is on-policy.
    """
    from offline_rl.algorithms.common.schedule import OnPolicy

    if not cls.mode.online or issubclass(cls.Online, OnPolicy):
        return []
    changed = [option for option in describe_options(cls.Config) if option.name in values]
    return [*describe_options(cls.Online), *changed]


def option_lines(
    options: Sequence[Option], prefix: str = "", values: Mapping[str, Any] | None = None
) -> str:
    """Return the help lines of options: key, default, meaning, type and range.

    values: shown instead of the defaults.
    """
    lines = []
    for option in options:
        value, more = option.default, [allowed_values(option)]
        if values and option.name in values:
            value = values[option.name]
            more.append(f"default {format_value(option.default) or 'null'}")
        key = f"  {prefix}{option.name}={format_value(value)}"
        meaning = f"{option.meaning} ({'; '.join(filter(None, more))})".replace(" ()", "").strip()
        text = textwrap.wrap(meaning, WIDTH - KEYS, break_long_words=False, break_on_hyphens=False)
        first = f"{key:{KEYS}s}{text[0]}" if text and len(key) < KEYS else key
        rest = text[1:] if len(key) < KEYS else text
        lines += [first.rstrip(), *(" " * KEYS + line for line in rest)]
    return "\n".join(lines)


def allowed_values(option: Option) -> str:
    """Return the type and range of an option; empty if the option accepts any text."""
    words = option.type.removesuffix(" or null").removeprefix("one of ").split(" [")[0]
    allowed = str(option.range or "").replace("finite", "")
    parts = ["" if words == "text" else words, "" if allowed == words else allowed]
    return ", ".join(filter(None, parts))

"""Which layout a container is in, and what that layout makes of it."""

import pkgutil
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from offline_rl.data.containers.raw import JOIN, Raw
from offline_rl.data.dataset import convert_to_float32
from offline_rl.data.formats import flat
from offline_rl.data.formats.common import NoArraysToChoose, ParsedFile, ReadOptions, below
from offline_rl.utils.errors import UserError

OPTIONAL = ("observation_keys", "subset", "d4rl_compatible", "terminate_on_end", "infos")


def layouts() -> tuple[ModuleType, ...]:
    """The modules of this folder that are one. The first that fits is taken: plain arrays last."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    found = [
        import_module(f"{__package__}.{name}") for name in names if name != Path(__file__).stem
    ]
    return *(m for m in found if hasattr(m, "missed") and m is not flat), flat


FORMATS = layouts()


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """What the layout of `raw` makes of it. Raises UserError where there is none that fits."""
    layout = recognize(raw, options.format)
    for name in OPTIONAL:
        if getattr(options, name) and name not in layout.TAKES:
            alone = name == "observation_keys" and not below(raw, "observations")
            raise (NoArraysToChoose if alone else UserError)(
                f"{raw.where}: {name} means nothing in the layout of {layout.NAME}. Leave it out."
            )
    found: ParsedFile = layout.parse(raw, options, complain)
    columns, lost = convert_to_float32(found.columns, found.keys, found.observation_names)
    return replace(found, columns=columns, notes=(*raw.notes, *found.notes, *lost))


def formats(layout: ModuleType) -> tuple[str, ...]:
    """Return the values of `format=` that select a layout."""
    return getattr(layout, "FORMAT_NAMES", (layout.__name__.rpartition(".")[2],))


def unmarked(layout: ModuleType, raw: Raw) -> str | None:
    """Return which of the arrays that tell a layout from all others `raw` lacks, if any."""
    lacking = [key for key in getattr(layout, "MARKS", ()) if key not in raw.keys]
    return f"no array {' nor '.join(map(repr, lacking))}" if lacking else None


def foreign(raw: Raw) -> str | None:
    """Return what a file is that holds one episode, or groups of them, in no layout known here.

    ACT's files are those of `tonyzhaozh/act:record_sim_episodes.py`.
    """
    present = set(raw.keys)
    if {"action", "observations/qpos"} <= present and not {"rewards", "terminals"} & present:
        return (
            "the file is an episode in ACT's layout (action, observations/qpos), which is not read."
        )
    groups = {match[1] for key in raw.keys if (match := re.match(r"(\w*?_?\d+)/", key))}
    if not groups or any(not re.match(r"\w*?_?\d+/", key) for key in raw.keys):
        return None
    if any(layout.missed(raw) is None for layout in FORMATS if layout is not flat):
        return None
    first = min(groups, key=lambda name: (len(name), name))
    return (
        f"the file has groups {first}, … with {', '.join(below(raw, first))}; this layout is not "
        f"read. (Minari's groups hold observations, actions, rewards, terminations, truncations.)"
    )


def recognize(raw: Raw, format: str | None = None) -> ModuleType:
    """The first layout that fits, or that of `format`.

    Raises UserError that says what each one missed, or what the one of `format` misses.
    """
    if format is not None:
        chosen: ModuleType = next(layout for layout in FORMATS if format in formats(layout))
        if reason := chosen.missed(raw):
            raise UserError(
                f"{raw.where}: format={format} does not fit: {reason}. Leave format out, and the "
                f"layout is recognized by what the file holds."
            )
        return chosen
    if sentence := foreign(raw):
        raise UserError(f"{raw.where}: {sentence} To read it, {JOIN}")
    reasons = []
    for layout in FORMATS:
        reason = layout.missed(raw) or unmarked(layout, raw)
        if reason is None:
            return layout
        reasons.append(f"{layout.NAME} ({reason})")
    shown = ", ".join(raw.keys[:12]) + (", ..." if len(raw.keys) > 12 else "")
    raise UserError(
        f"{raw.where}: a {raw.kind} container that holds {shown or 'nothing'}, in no layout known "
        f"here. Tried: {'; '.join(reasons)}."
    )

"""Recognition of the layout of a container, and parsing."""

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
from offline_rl.data.formats.common import NoArraysToChoose, ParsedFile, ReadOptions, keys_below
from offline_rl.utils.errors import UserError

OPTIONAL = ("observation_keys", "subset", "d4rl_compatible", "terminate_on_end", "infos")


def load_layouts() -> tuple[ModuleType, ...]:
    """Return the layout modules of this folder in the order of recognition, plain arrays last."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [
        import_module(f"{__package__}.{name}") for name in names if name != Path(__file__).stem
    ]
    return *(m for m in modules if hasattr(m, "mismatch") and m is not flat), flat


FORMATS = load_layouts()


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Parse `raw` by its layout; `report` is called for each array that cannot be read.

    Raises UserError if no layout matches.
    """
    layout = recognize(raw, options.format)
    for name in OPTIONAL:
        if getattr(options, name) and name not in layout.SUPPORTED_OPTIONS:
            single = name == "observation_keys" and not keys_below(raw, "observations")
            raise (NoArraysToChoose if single else UserError)(
                f"{raw.where}: {name} has no meaning in the layout of {layout.NAME}. Leave it out."
            )
    parsed: ParsedFile = layout.parse(raw, options, report)
    columns, notes = convert_to_float32(parsed.columns, parsed.keys, parsed.observation_names)
    return replace(parsed, columns=columns, notes=(*raw.notes, *parsed.notes, *notes))


def format_names(layout: ModuleType) -> tuple[str, ...]:
    """Return the values of `format=` that select a layout."""
    return getattr(layout, "FORMAT_NAMES", (layout.__name__.rpartition(".")[2],))


def missing_markers(layout: ModuleType, raw: Raw) -> str | None:
    """Return a phrase that names missing `MARKER_ARRAYS`; None if none is missing."""
    missing = [key for key in getattr(layout, "MARKER_ARRAYS", ()) if key not in raw.keys]
    return f"no array {' nor '.join(map(repr, missing))}" if missing else None


def describe_unsupported(raw: Raw) -> str | None:
    """Return a sentence if the file's layout is recognized but not supported, else None.

    These are ACT's files of single episodes (`tonyzhaozh/act:record_sim_episodes.py`), and files
    with a group per episode in no supported layout.
    """
    present = set(raw.keys)
    if {"action", "observations/qpos"} <= present and not {"rewards", "terminals"} & present:
        return (
            "the file is an episode in ACT's layout (action, observations/qpos), which is not "
            "supported."
        )
    groups = {match[1] for key in raw.keys if (match := re.match(r"(\w*?_?\d+)/", key))}
    if not groups or any(not re.match(r"\w*?_?\d+/", key) for key in raw.keys):
        return None
    if any(layout.mismatch(raw) is None for layout in FORMATS if layout is not flat):
        return None
    first = min(groups, key=lambda name: (len(name), name))
    return (
        f"the file has groups {first}, … with {', '.join(keys_below(raw, first))}. This layout is "
        "not supported. (Minari's groups hold observations, actions, rewards, terminations, "
        "truncations.)"
    )


def recognize(raw: Raw, format: str | None = None) -> ModuleType:
    """Return the first layout that matches, or the one that `format` selects.

    Raises UserError with the reason why each layout, or the selected one, does not match.
    """
    if format is not None:
        chosen: ModuleType = next(layout for layout in FORMATS if format in format_names(layout))
        if reason := chosen.mismatch(raw):
            raise UserError(
                f"{raw.where}: format={format} does not fit: {reason}. Without format=, the layout "
                f"is recognized by the content of the file."
            )
        return chosen
    if sentence := describe_unsupported(raw):
        raise UserError(f"{raw.where}: {sentence} To read it, {JOIN}")
    reasons = []
    for layout in FORMATS:
        reason = layout.mismatch(raw) or missing_markers(layout, raw)
        if reason is None:
            return layout
        reasons.append(f"{layout.NAME} ({reason})")
    shown = ", ".join(raw.keys[:12]) + (", ..." if len(raw.keys) > 12 else "")
    raise UserError(
        f"{raw.where}: the layout of this {raw.kind} container is unknown. It holds "
        f"{shown or 'nothing'}. Tried: {'; '.join(reasons)}."
    )

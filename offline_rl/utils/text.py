"""Tables and numbers for people."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np


def table(
    header: Sequence[str], body: Sequence[Sequence[str]], *, markdown: bool = False, left: int = 1
) -> str:
    """Aligned columns, the first `left` to the left, the others to the right; no empty ones."""
    columns = [c for c in zip(header, *body, strict=True) if any(c[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        [f"{cell:{'<' if k < left else '>'}{widths[k]}}" for k, cell in enumerate(cells)]
        for cells in zip(*columns, strict=True)
    ]
    if markdown:
        lines.insert(1, ["-" * (w - 1) + ("-" if k < left else ":") for k, w in enumerate(widths)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    lines.insert(1, ["─" * w for w in widths])
    return "\n".join("  ".join(line).rstrip() for line in lines)


def fitted(
    header: Sequence[str], body: Sequence[Sequence[str]], width: int, order: Sequence[str]
) -> str:
    """Return `table` without as many columns as it takes to be at most `width` characters wide.

    order: the columns that may go, the first one first. A last line names those that went.
    """
    gone = list[str]()
    shown, note = table(header, body), ""
    filled = {name for name, *cells in zip(header, *body, strict=True) if any(cells)}
    for name in (name for name in order if name in filled):
        if max(map(len, shown.splitlines())) <= width:
            break
        gone.append(name)
        kept = [k for k, head in enumerate(header) if head not in gone]
        shown = table([header[k] for k in kept], [[row[k] for k in kept] for row in body])
        note = textwrap.fill(
            f"Hidden to fit the terminal: {', '.join(gone)} (see report.md).", width
        )
    return f"{shown}\n{note}" if note else shown


def terminal_width() -> int:
    """Return the width of the terminal that is written to; unlimited for a file or a pipe.

    The environment variable COLUMNS overrides both.
    """
    return shutil.get_terminal_size((sys.maxsize, 24)).columns


def wrapped(note: str, width: int = 100) -> str:
    """Wrap a note, for a terminal; names of files stay whole."""
    return textwrap.fill(note, width, break_long_words=False, break_on_hyphens=False)


def mean_std(values: Iterable[float | None], decimals: int | None = None) -> str:
    """Mean ± standard deviation of the known values; the mean alone where it is one value."""
    known = [v for v in values if v is not None]
    if not known:
        return ""
    mean, std = np.mean(known), np.std(known)
    if decimals is None:
        decimals = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 1 else 3
    return f"{mean:,.{decimals}f}" + (f" ± {std:,.{decimals}f}" if len(known) > 1 else "")


def span(values: Iterable[int]) -> str:
    """The value that all share, or the least and the greatest."""
    found = sorted(set(values))
    return "–".join(f"{v:,}" for v in (found if len(found) == 1 else (found[0], found[-1])))


def at_a_time(count: int) -> str:
    """Return how many episodes run side by side, in words."""
    return "one episode at a time" if count == 1 else f"{count} episodes at a time"


def count_of(count: int, noun: str) -> str:
    """Return the count with its noun: no errors, 1 error, 2 errors."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """In the unit that suits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

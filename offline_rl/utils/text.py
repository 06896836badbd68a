"""Formatting of tables and numbers."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


def table(
    header: Sequence[str], body: Sequence[Sequence[str]], *, markdown: bool = False, left: int = 1
) -> str:
    """Return a table whose first `left` columns are left-aligned; empty columns are left out."""
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


def format_fitting_table(
    header: Sequence[str], body: Sequence[Sequence[str]], width: int, order: Sequence[str]
) -> str:
    """Return a table of at most `width` characters; columns are hidden until it fits.

    order: names of the columns that may be hidden, first to last. The last line names the hidden
    columns. If the table is still too wide, the cells of the first column are shortened.
    """
    hidden = list[str]()
    head, rows = list(header), [list(row) for row in body]
    text, note = table(head, rows), ""
    filled = shown_columns(header, body)
    for name in (name for name in order if name in filled):
        if max(map(len, text.splitlines())) <= width:
            break
        hidden.append(name)
        visible = [k for k, title in enumerate(header) if title not in hidden]
        head, rows = [header[k] for k in visible], [[row[k] for k in visible] for row in body]
        text = table(head, rows)
        note = textwrap.fill(
            f"Hidden to fit the terminal: {', '.join(hidden)} (see report.md).", width
        )
    excess = max(map(len, text.splitlines())) - width
    if excess > 0:
        longest = max(len(row[0]) for row in rows) - excess
        text = table(head, [[shorten(name, longest), *cells] for name, *cells in rows])
    return f"{text}\n{note}" if note else text


def shown_columns(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the columns that hold a value, which `table` shows."""
    return [name for name, *cells in zip(header, *body, strict=True) if any(cells)]


def format_legend(definitions: Mapping[str, str], columns: Iterable[str]) -> str:
    """Return the definitions of `columns` as a Markdown list without repetitions."""
    names = [name for name in dict.fromkeys(columns) if name in definitions]
    return "\n".join(f"- **{name}**: {definitions[name]}" for name in names)


def shorten(text: str, width: int) -> str:
    """Replace the middle of a text by an ellipsis if it has more than `width` characters."""
    if len(text) <= width or width < 3:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def terminal_width() -> int:
    """Return the width of the terminal, or no limit if standard output is a file or a pipe.

    The environment variable COLUMNS overrides this.
    """
    return shutil.get_terminal_size((sys.maxsize, 24)).columns


def wrap_text(note: str, width: int = 100) -> str:
    """Wrap a text at spaces only, so that file names are not broken."""
    return textwrap.fill(note, width, break_long_words=False, break_on_hyphens=False)


def format_mean_std(values: Iterable[float | None], decimals: int | None = None) -> str:
    """Format the mean ± standard deviation without None; for a single value, only the value."""
    numbers = [v for v in values if v is not None]
    if not numbers:
        return ""
    mean, std = np.mean(numbers), np.std(numbers)
    if decimals is None:
        decimals = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 1 else 3
    return f"{mean:,.{decimals}f}" + (f" ± {std:,.{decimals}f}" if len(numbers) > 1 else "")


def format_range(values: Iterable[int]) -> str:
    """Format the value if all are equal, or else the range from the minimum to the maximum."""
    ends = sorted({min(numbers := [*values]), max(numbers)})
    return "–".join(f"{v:,}" for v in ends)


def at_a_time(count: int) -> str:
    """Return a phrase for the number of episodes that run in parallel."""
    return "one episode at a time" if count == 1 else f"{count} episodes at a time"


def format_count(count: int, noun: str) -> str:
    """Return the count with its noun: no errors, 1 error, 2 errors."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

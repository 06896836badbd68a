"""Tables and numbers for people."""

from __future__ import annotations

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


def wrapped(note: str) -> str:
    """For a terminal; names of files stay whole."""
    return textwrap.fill(note, 100, break_long_words=False, break_on_hyphens=False)


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


def duration(seconds: float) -> str:
    """In the unit that suits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

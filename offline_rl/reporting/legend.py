"""Legends: definitions of the columns that a table shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def shown_columns(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the columns of a table that hold a value; tables leave out the others."""
    return [name for name, *cells in zip(header, *body, strict=True) if any(cells)]


def legend(definitions: Mapping[str, str], columns: Iterable[str]) -> str:
    """Return a Markdown list of the definitions of `columns`, each once."""
    names = [name for name in dict.fromkeys(columns) if name in definitions]
    return "\n".join(f"- **{name}**: {definitions[name]}" for name in names)

"""Extension of griffe that writes this project's docstrings as Markdown, for the site's API pages.

A line `name: text` becomes an item of a list, and a paragraph of Python code becomes a code block.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from griffe import Extension, Object


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    parts = text.split("\n\n")
    return "\n\n".join(f"```python\n{p}\n```" if is_code(p) else with_lists(p) for p in parts)


def is_code(paragraph: str) -> bool:
    """Return True if a paragraph is Python code with at least one call or assignment."""
    try:
        lines = ast.parse(paragraph).body
    except SyntaxError:
        return False
    return any(
        isinstance(line, ast.Assign)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Call))
        for line in lines
    )


def with_lists(paragraph: str) -> str:
    """Return a paragraph with its `name: text` lines and indented lines as a list."""
    lines, in_list = list[str](), False
    for line in paragraph.splitlines():
        item = re.match(r"  (\S.*)|([a-z]\w*(?:, [a-z]\w*)*): (.*)", line)
        if item:
            text = item[1] or f"`{item[2]}`: {item[3]}"
            lines += ([] if in_list else [""]) + [f"- {text}"]
            in_list = True
        elif in_list and re.match(r"Raises |Returns? ", line):
            lines += ["", line]
            in_list = False
        else:
            lines.append("    " * in_list + line.strip())
    parts = re.split(r"(`[^`]*`)", "\n".join(lines).strip())
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)


class Docstrings(Extension):
    """Extension that changes the docstring of each module, class, function and attribute."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Write the docstring of an object as Markdown. griffe calls this method."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

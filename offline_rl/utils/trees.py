"""Nested dicts: flatten them, and convert them to values that JSON supports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def flatten(tree: Any, separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """Return the leaves (values that are not dicts) of nested dicts, {"a/b/c": value}."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    start = prefix + separator if prefix else ""
    parts = (flatten(v, separator, f"{start}{k}") for k, v in tree.items())
    return {k: v for part in parts for k, v in part.items()}


def to_json_values(value: Any) -> Any:
    """Convert arrays, and nested lists and dicts of them, to JSON; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {k: to_json_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(v) for v in value]
    if hasattr(value, "tolist"):
        return to_json_values(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value

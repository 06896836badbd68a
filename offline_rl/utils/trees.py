"""Nested dicts: flat, and as JSON knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def flatten(tree: Any, separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """The leaves by path, `a/b/c` -> value; a leaf is what is no dict."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    start = prefix + separator if prefix else ""
    parts = (flatten(v, separator, f"{start}{k}") for k, v in tree.items())
    return {k: v for part in parts for k, v in part.items()}


def plain(value: Any) -> Any:
    """Numbers and lists that JSON knows; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What `offline-rl report` takes beside folders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What `offline-rl report` takes beside folders."""

    out: str | None = None  # the folder for both; default: the first one

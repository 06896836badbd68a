"""What `offline-rl report` takes beside folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What `offline-rl report` takes beside folders."""

    out: str | None = None  # the folder of report.md and the figures; default: the first one
    format: Literal["text", "csv", "latex"] = (
        "text"  # csv or latex: print this format and write report.csv or report.tex
    )

"""Options of `offline-rl report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `offline-rl report`, in addition to the folders."""

    out: str | None = None  # folder for report.md and the figures; default: the first folder
    format: Literal["text", "csv", "latex"] = (
        "text"  # csv or latex: print this format and also write report.csv or report.tex
    )

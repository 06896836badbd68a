"""The metrics that docs/reference/metrics.md explains."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"


def documented_metrics() -> set[str]:
    """Return the names in the first column of the page's tables, such as `train/policy_loss`."""
    cells = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`(\w+/\w+)`", "".join(cells)))

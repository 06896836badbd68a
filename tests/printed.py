"""The printed output of commands."""

from typing import Any

import offline_rl


def evaluate(**keys: Any) -> str:
    """Return the output of `offline-rl evaluate`."""
    return str(offline_rl.evaluate(**keys))


def report(folders: Any, **keys: Any) -> str:
    """Return the output of `offline-rl report`."""
    return str(offline_rl.report(folders, **keys))

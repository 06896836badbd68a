"""Loops inside an update."""

from offline_rl.algorithms.common.scan.loop import Loop
from offline_rl.algorithms.common.scan.scan import scan

__all__ = ["Loop", "scan"]

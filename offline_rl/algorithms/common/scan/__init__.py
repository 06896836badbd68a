"""Loops inside an update, each of which is one node of its graph."""

from offline_rl.algorithms.common.scan.loop import Loop
from offline_rl.algorithms.common.scan.scan import scan

__all__ = ["Loop", "scan"]

"""Runs from keys, prepared as `train` prepares them."""

from collections.abc import Mapping
from typing import Any

from offline_rl.runs.run import runs_of
from offline_rl.training.prepare import Prepared
from offline_rl.training.prepare import prepare as prepare_runs


def prepare(keys: Mapping[str, Any]) -> Prepared:
    """Return the prepared runs of the options of `train`."""
    return prepare_runs(runs_of(keys))

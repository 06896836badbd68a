"""What `offline-rl generate` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offline_rl.utils.options import Checked, Count


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Checked):
    """What `offline-rl generate` takes."""

    recipe: str  # a file of configs/recipe, or one of yours (.yaml)
    out: str | None = None  # default: <data folder>/<suite>, where task=<suite>/… finds the sets
    runs: str = "agents"  # folder for training runs of generated agents (kept apart from runs/)
    format: Literal["d4rl", "lerobot"] = "d4rl"  # lerobot: a LeRobotDataset v3, of a script's sets
    video: bool = False  # with format=lerobot: pictures as videos, of sets that have pictures
    qualities: list[str] | None = None  # default: all but full-replay; of a script: its sets
    rows: Count | None = None  # minimum steps in each of a script's sets, in whole episodes

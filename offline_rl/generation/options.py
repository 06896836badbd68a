"""Options of `offline-rl generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offline_rl.utils.options import Checked, Count


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Checked):
    """Options of `offline-rl generate`."""

    recipe: str  # name of a recipe in configs/recipe, or a YAML file
    out: str | None = None  # default: <data folder>/<suite>, where task=<suite>/… finds the sets
    runs: str = "agents"  # folder for the training runs of agents, separate from runs/
    format: Literal["d4rl", "lerobot"] = "d4rl"  # lerobot: LeRobotDataset v3, scripted sets only
    video: bool = False  # with format=lerobot: store images as videos
    qualities: list[str] | None = None  # sets to make; default: all but full-replay
    rows: Count | None = None  # of scripted sets: minimum number of steps, in complete episodes

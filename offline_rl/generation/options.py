"""Options of `offline-rl generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offline_rl.data.convert import Format, Options
from offline_rl.data.formats.common import Reading
from offline_rl.utils.options import Checked, Count, FileFormat, NonNegative, Share


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Checked):
    """Options of `offline-rl generate`."""

    recipe: str  # name of a recipe in configs/recipe, or a YAML file
    out: str | None = None  # folder of the sets; default: <data folder>/<suite>, which task= reads
    runs: str = "agents"  # folder of the agents' training runs, separate from runs/
    format: Literal["d4rl", "lerobot"] = "d4rl"  # lerobot: LeRobotDataset v3, scripted sets only
    video: bool = False  # with format=lerobot: store images as videos
    qualities: list[str] | None = None  # sets to generate; default: all but full-replay
    rows: Count | None = None  # steps of a scripted set (a minimum) or of an OGBench set (exactly)
    task: str | None = None  # demonstrations: task of the set; ogbench: for example cube-single
    type: str | None = None  # recipe=ogbench: play or noisy; in mazes navigate or stitch
    episodes: Count | None = None  # recipe=ogbench: training trajectories; default: as published
    val_episodes: Count | None = None  # recipe=ogbench: validation trajectories; default: a tenth
    processes: Count = 1  # recipe=ogbench: parallel processes; they do not change the files


@dataclass(frozen=True, kw_only=True)
class FilterOptions(Checked):
    """Options of `offline-rl data filter`."""

    format: Format | None = None  # layout to write
    window: Count | None = None  # filter: steps in which progress must not fall; default: horizon
    delta: NonNegative | None = None  # filter: largest fall of progress after a kept frame
    quantile: Share = 0.9  # filter: default of delta= is this quantile of the falls


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(Reading):
    """Options of `offline-rl data mirror`."""

    format: Format | None = None  # layout to write
    source_format: FileFormat | None = None  # layout of the file to read
    mirror: str | None = None  # mirror: YAML file of the mirror; default: the mirror of the card


@dataclass(frozen=True, kw_only=True)
class DataVerbOptions(Options, MirrorOptions, FilterOptions):
    """Options of all actions of `offline-rl data`."""

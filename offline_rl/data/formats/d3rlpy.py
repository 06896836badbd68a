"""d3rlpy's HDF5 files, written by `ReplayBuffer.dump`: one set of arrays per episode.

    observations_<n> actions_<n> rewards_<n>   N rows each        columns, num_episodes, version
    terminated_<n>                             one flag: 1 terminated, 0 truncated

`takuseno/d3rlpy:d3rlpy/dataset/io.py`, version 2.1. The observation after an episode's last row is
not stored, so the last row of a truncated episode is not a transition. Version 1 is D4RL's layout
with `episode_terminals`; `flat` reads it.
"""

import re
from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import as_columns
from offline_rl.data.formats.common import (
    ParsedFile,
    ReadOptions,
    check_count,
    check_lengths,
    concatenate_episodes,
)
from offline_rl.utils.errors import UserError

NAME = "d3rlpy"
SUPPORTED_OPTIONS = ()
COLUMNS = ("observations", "actions", "rewards")


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    if raw.kind != "HDF5":
        return f"{raw.kind}, not HDF5"
    if "observations_0" in raw.keys:  # sufficient, even if other arrays are missing
        return None
    return None if {"columns", "num_episodes"} <= {*raw.keys} else "no array 'num_episodes'"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read all episodes in sequence."""
    for name in ("columns", "num_episodes"):
        if name not in raw.keys:
            raise UserError(
                f"{raw.where}: a file of d3rlpy without the array `{name}`. Was it saved "
                f"completely?"
            )
    count = int(raw.get("num_episodes"))
    if count < 1:
        raise UserError(f"{raw.where}: num_episodes is {count}, so the file holds no data.")
    stored = sum(bool(re.fullmatch(r"actions_\d+", key)) for key in raw.keys)
    check_count(raw.where, "episodes", stored, count)
    if "observations_0_0" in raw.keys:
        raise UserError(
            f"{raw.where}: an observation consists of several arrays (observations_0_0, …). "
            f"Concatenate them to one array."
        )
    episodes = []
    for n in range(count):
        arrays = {column: raw.get(f"{column}_{n}") for column in COLUMNS}
        named = {f"{column}_{n}": array for column, array in arrays.items()}
        rows = arrays["rewards"].shape[0] if arrays["rewards"].ndim else 0
        check_lengths(raw.where, named, rows)
        ends = np.arange(rows) == rows - 1
        terminated = bool(np.asarray(raw.get(f"terminated_{n}")).all())
        flags = {"terminated": ends & terminated, "truncated": ends & (not terminated)}
        episodes.append(arrays | flags)
    notes = ["the observation after a truncated episode is not stored: its last row is not used"]
    columns = as_columns(concatenate_episodes(raw.where, episodes))
    return ParsedFile("d3rlpy", columns, {}, notes=notes)

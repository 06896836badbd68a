"""d3rlpy's HDF5 files, as `ReplayBuffer.dump` writes them: arrays numbered by episode.

    observations_<n> actions_<n> rewards_<n>   N rows each        columns, num_episodes, version
    terminated_<n>                             one flag: whether the task ended, or it was cut

`takuseno/d3rlpy:d3rlpy/dataset/io.py`, version 2.1. What followed an episode's last row is not
stored: of one that was cut that row is no transition. Version 1 is D4RL's layout with
`episode_terminals`, and read there.
"""

import re
from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import as_columns
from offline_rl.data.formats.common import ParsedFile, ReadOptions, counted, same_lengths, stacked
from offline_rl.utils.errors import UserError

NAME = "d3rlpy"
TAKES = ()
WORDS = ("observations", "actions", "rewards")


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    if raw.kind != "HDF5":
        return f"no HDF5 file, but {raw.kind}"
    if "observations_0" in raw.keys:  # whatever else is missing
        return None
    return None if {"columns", "num_episodes"} <= {*raw.keys} else "no array 'num_episodes'"


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """The episodes one after the other."""
    for name in ("columns", "num_episodes"):
        if name not in raw.keys:
            raise UserError(
                f"{raw.where}: d3rlpy's file, but its array `{name}` is missing. Was it saved "
                f"completely?"
            )
    count = int(raw.get("num_episodes"))
    if count < 1:
        raise UserError(f"{raw.where}: num_episodes is {count}; there is nothing to learn from.")
    stored = sum(bool(re.fullmatch(r"actions_\d+", key)) for key in raw.keys)
    counted(raw.where, "episodes", stored, count)
    if "observations_0_0" in raw.keys:
        raise UserError(
            f"{raw.where}: an observation is of several arrays (observations_0_0, …). Write it "
            f"with one, its parts side by side."
        )
    episodes = []
    for n in range(count):
        arrays = {word: raw.get(f"{word}_{n}") for word in WORDS}
        named = {f"{word}_{n}": array for word, array in arrays.items()}
        rows = arrays["rewards"].shape[0] if arrays["rewards"].ndim else 0
        same_lengths(raw.where, named, rows)
        ends = np.arange(rows) == rows - 1
        over = bool(np.asarray(raw.get(f"terminated_{n}")).all())
        episodes.append(arrays | {"terminated": ends & over, "truncated": ends & (not over)})
    notes = ["the observation after an episode that was cut is not stored: its last row is left"]
    return ParsedFile("d3rlpy", as_columns(stacked(raw.where, episodes)), {}, notes=notes)

"""diffusion_policy's Zarr stores: all steps in sequence, with the end of each episode.

    data/<key>          [N, ...] each: action, state, obs, img, ...
    meta/episode_ends   [E] index of the row after each episode's last row; the last entry is N

`real-stanford/diffusion_policy:diffusion_policy/common/replay_buffer.py`; Chi et al.,
arXiv:2303.04137. The files hold demonstrations without a success flag, so no row is terminated.
The last row of each episode is truncated, and its next observation is unknown.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    ParsedFile,
    ReadOptions,
    check_lengths,
    choose_observations,
    file_names,
    keys_below,
    observation_columns,
)
from offline_rl.utils.errors import UserError

NAME = "diffusion_policy"
SUPPORTED_OPTIONS = ("observation_keys",)
ENDS = "meta/episode_ends"
STATE = ("state", "obs")  # default observations: the first of these that is present
REWARD = "reward"


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    if raw.kind != "Zarr":
        return f"{raw.kind}, not Zarr"
    if missing := [key for key in (ENDS, "data/action") if key not in raw.keys]:
        return f"no array {' nor '.join(missing)}"
    return None


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read all episodes. Rewards are data/reward, or 0 if it is missing."""
    names = [key for key in keys_below(raw, "data") if key not in ("action", REWARD)]
    shapes = {key: raw.shape(f"data/{key}")[1:] for key in names}
    states = [key for key in STATE if key in shapes]
    keys, notes = choose_observations(raw.where, shapes, options, default=states[:1])
    has_reward = f"data/{REWARD}" in raw.keys
    arrays = {
        f"data/{key}": raw.get(f"data/{key}")
        for key in (*keys, "action", *([REWARD] if has_reward else []))
    }
    ends = raw.get(ENDS).reshape(-1)
    if ends.dtype.kind not in "iu" or not len(ends) or (np.diff(ends, prepend=0) <= 0).any():
        raise UserError(
            f"{raw.where}: {ENDS} must be positive and increase; found {ends[:4].tolist()}, …"
        )
    rows = int(ends[-1])
    check_lengths(f"{raw.where}: compared with {ENDS}", arrays, rows)
    truncated = np.zeros(rows, bool)
    truncated[ends - 1] = True
    if not has_reward:
        notes.append(NO_REWARDS)
    columns = observation_columns("observations", {key: arrays[f"data/{key}"] for key in keys}) | {
        "actions": arrays["data/action"],
        "rewards": arrays.get(f"data/{REWARD}", np.zeros(rows, np.float32)),
        "terminated": np.zeros(rows, bool),
        "truncated": truncated,
    }
    stored_names = file_names("observations", columns, {key: f"data/{key}" for key in keys})
    stored_names["actions"] = "data/action"
    return ParsedFile("diffusion_policy", as_columns(columns), stored_names, notes=notes)

"""A data file as a `Dataset`, its layout recognised by content and never by name.

    D4RL      HDF5 or NPZ: observations actions rewards terminals [timeouts] [next_observations]
              [infos/...]; github.com/Farama-Foundation/D4RL, all suites
    DSRL      the same and costs; github.com/liuzuxin/DSRL
    NeoRL-2   NPZ: obs action reward done truncated next_obs [index]; github.com/polixir/NeoRL2
    plain     any of these words, terminated and truncated for terminals and timeouts

Stored next observations are used, so that a time-out row stays a transition and bootstraps; D4RL's
own loader ignores them and drops the row (`d4rl_compatible=True` does the same). Two suites' flags
do not mean what they say, and are read for what they are:

    kitchen   has no timeouts; terminals mark the end of a demonstration, solved or not. It
              terminates where the last reward counts all four subtasks, and else is truncated.
    antmaze   terminals say "at the goal", whether or not the time-out is set in the same row; both
              together count as terminated.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offline_rl.data.dataset import Dataset, as_columns
from offline_rl.data.faults import faults
from offline_rl.data.raw import Raw, checksum, open_raw
from offline_rl.errors import UserError

WORDS = {  # ours -> what files call it, the first one found is meant
    "observations": ("observations", "obs"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminated": ("terminals", "terminated"),
    "truncated": ("timeouts", "truncated"),
    "next_observations": ("next_observations", "next_obs"),
    "final_observations": ("final_observations",),
    "costs": ("costs",),
}
REQUIRED = ("observations", "actions", "rewards", "terminated")
KITCHEN = (60, 9, 4)  # numbers in an observation and an action, subtasks
JUMP = 1e-6  # a next observation further than this from the next row's is another episode's


class Layout(NamedTuple):
    """What kind of file it is, and what it calls each of our words."""

    name: str
    keys: dict[str, str]
    missing: list[str]  # sentences, one for each required word the file does not have


def read(
    path: str | Path,
    *,
    max_episode_steps: int | None = None,
    d4rl_compatible: bool = False,
    action_scale: float | None = None,
    infos: bool = False,
    name: str | None = None,
) -> Dataset:
    """The data set in the file at `path`.

    max_episode_steps: where a file has no time-outs, an episode of this many steps timed out. Where
    neither is there, episodes are cut where a stored next observation is not the next row's.
    d4rl_compatible: exactly the transitions of D4RL's `qlearning_dataset`: time-out rows and the
    last row dropped, stored next observations ignored, a terminal row's next observation being the
    next row's. Returns then miss the dropped rows' rewards.
    action_scale: actions are divided by it; the size that 1 stands for.
    infos: keep the per-step arrays under infos/ in `extras` (costs are kept always).
    Raises UserError, one sentence, on the first thing wrong.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UserError(f"max_episode_steps={max_episode_steps}: 1 or more is expected.")
    if action_scale is not None and not action_scale > 0:
        raise UserError(f"action_scale={action_scale}: a number above 0 is expected.")
    path = Path(path)
    with open_raw(path) as raw:
        layout = recognise(raw)
        for sentence in layout.missing:
            raise UserError(sentence)
        columns = as_columns({word: raw.get(key) for word, key in layout.keys.items()})
        has_index = layout.name == "NeoRL-2" and "index" in raw.keys
        index = raw.get("index") if has_index else None
        extras = {key: raw.get(key) for key in raw.keys if infos and key.startswith("infos")}
    where = raw.where
    if action_scale is not None and columns["actions"].dtype == np.float32:
        columns["actions"] = columns["actions"] / np.float32(action_scale)
    timeouts = columns.get("truncated")
    if not (d4rl_compatible and layout.name == "kitchen"):
        columns = untangle(layout, columns)
    for sentence in faults(columns, where, layout.keys):
        raise UserError(sentence)
    if "costs" in columns:
        extras["costs"] = columns.pop("costs")

    if index is not None and not d4rl_compatible:
        columns["truncated"] = _cut_at_starts(columns, index, where)
    elif "truncated" not in columns and not d4rl_compatible:
        columns["truncated"] = _time_outs(columns, max_episode_steps)

    data = Dataset.from_arrays(
        **columns,
        extras=extras,
        name=name or path.stem,
        path=str(path),
        sha256=checksum(path),
        keys=layout.keys,
    )
    if not d4rl_compatible:
        return data
    kept = np.flatnonzero(qlearning_rows(columns["terminated"], timeouts, max_episode_steps))
    if not len(kept):
        raise UserError(f"{where}: d4rl_compatible leaves none of its {data.num_rows:,} rows.")
    return replace(data, next_index=np.arange(1, data.num_rows + 1)).take(kept)


def recognise(raw: Raw) -> Layout:
    """The file's layout, and what it lacks together with what comes near to it."""
    words = dict(WORDS)
    missing = []
    neorl2 = {"obs", "next_obs", "done"} <= set(raw.keys)
    if neorl2:
        words["terminated"] = ("done",)
    keys = {}
    for word, candidates in words.items():
        found = [key for key in candidates if key in raw.keys]
        if found:
            keys[word] = found[0]
        elif word in REQUIRED:
            missing.append(f"{raw.where}: {_missing(candidates, raw)}")
    name = "NeoRL-2" if neorl2 else "unknown" if missing else _suite(raw, keys)
    return Layout(name, keys, missing)


def untangle(layout: Layout, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The flags of kitchen's and the mazes' files as the module's docstring says they are meant."""
    ended = columns.get("terminated")
    other = columns.get({"maze": "truncated", "kitchen": "rewards"}.get(layout.name, ""))
    if ended is None or other is None or ended.shape != other.shape:
        return columns
    if layout.name == "maze":
        return columns | {"truncated": np.where(ended == 1, 0, other)}
    solved = other == KITCHEN[2]
    return columns | {
        "terminated": np.where(solved, ended, 0),
        "truncated": np.where(solved, 0, ended),
    }


def qlearning_rows(
    terminals: np.ndarray, timeouts: np.ndarray | None, max_episode_steps: int | None
) -> np.ndarray:
    """[N] bool: the rows that D4RL's `qlearning_dataset` keeps.

    Without time-outs it counts steps, and after a terminal starts at 1 instead of 0: kept as it is.
    """
    kept = np.ones(len(terminals), bool)
    kept[-1] = False
    if timeouts is not None:
        return kept & (timeouts == 0)
    if max_episode_steps is not None:
        step = 0
        for row, terminal in enumerate(terminals):
            kept[row] &= step != max_episode_steps - 1
            step = 0 if step == max_episode_steps - 1 else 1 if terminal else step + 1
    return kept


def _missing(candidates: tuple[str, ...], raw: Raw) -> str:
    if any(key.startswith("episode_0/") for key in raw.keys):
        return "this is Minari's layout (a group for every episode). Write it as D4RL HDF5 first."
    if any(key.startswith("data/demo_") for key in raw.keys):
        return "this is robomimic's layout (data/demo_0, ...). Write it as D4RL HDF5 first."
    wanted = " or ".join(repr(key) for key in candidates)
    near = [
        key
        for key in raw.keys
        if any(difflib.get_close_matches(key.split("/")[-1].lower(), candidates, cutoff=0.6))
    ]
    if "terminals" in candidates:
        near += [key for key in ("dones", "done") if key in raw.keys]
    if near:
        return (
            f"no array {wanted}, but {', '.join(map(repr, near))}. If that is meant, rename it "
            f"{candidates[0]!r}."
        )
    shown = ", ".join(raw.keys[:12]) + (", ..." if len(raw.keys) > 12 else "")
    return (
        f"no array {wanted} in this {raw.kind} file, which holds {shown or 'nothing'}. A data set "
        f"needs observations, actions, rewards and terminals."
    )


def _suite(raw: Raw, keys: Mapping[str, str]) -> str:
    if "infos/goal" in raw.keys and "truncated" in keys:
        return "maze"
    if "truncated" not in keys and "next_observations" not in keys:
        widths = tuple(raw.shape(keys[word])[-1:] for word in ("observations", "actions"))
        if widths == ((KITCHEN[0],), (KITCHEN[1],)):
            return "kitchen"
    if "costs" in keys:
        return "DSRL"
    return "D4RL" if keys["terminated"] == "terminals" else "plain"


def _cut_at_starts(columns: Mapping[str, np.ndarray], starts: np.ndarray, where: str) -> np.ndarray:
    """Time-outs, and with them the rows before the episode starts that `index` lists."""
    num_rows = len(columns["terminated"])
    rows = starts.astype(np.int64)
    if rows.ndim != 1 or (rows < 0).any() or (rows >= num_rows).any():
        raise UserError(
            f"{where}: index must list the first row of each episode, from 0 to {num_rows - 1:,}; "
            f"found {rows.reshape(-1)[:3].tolist()} and so on, shape {list(rows.shape)}."
        )
    truncated = columns["truncated"] != 0 if "truncated" in columns else np.zeros(num_rows, bool)
    truncated[rows[rows > 0] - 1] = True
    return truncated & (columns["terminated"] == 0)


def _time_outs(columns: Mapping[str, np.ndarray], max_episode_steps: int | None) -> np.ndarray:
    """Time-outs of a file that has none: by counting steps, or where the observations jump."""
    ended = columns["terminated"] != 0
    truncated = np.zeros_like(ended)
    if max_episode_steps is not None:
        start = 0
        for end in [*np.flatnonzero(ended), len(ended)]:
            truncated[start + max_episode_steps - 1 : end : max_episode_steps] = True
            start = end + 1
    elif "next_observations" in columns:
        truncated = jumps(columns["observations"], columns["next_observations"]) & ~ended
    return truncated


def jumps(observations: np.ndarray, next_observations: np.ndarray) -> np.ndarray:
    """[N] bool: the next observation is further than JUMP from the next row's; the last is not."""
    num_rows = len(observations)
    found = np.zeros(num_rows, bool)
    after = observations.reshape(num_rows, -1)[1:]
    stored = next_observations.reshape(num_rows, -1)[:-1]
    rows = np.flatnonzero((stored != after).any(axis=1))
    gap = stored[rows].astype(np.float64) - after[rows]
    size = np.maximum(np.linalg.norm(after[rows], axis=1), 1)  # float32 itself is only so exact
    found[rows] = np.linalg.norm(gap, axis=1) > JUMP * size
    return found

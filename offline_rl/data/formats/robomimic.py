"""robomimic's HDF5 files: one group per demonstration, one array per observation key.

    data/demo_<n>/{actions, rewards, dones, obs/<key>, next_obs/<key>}    N rows each
    mask/<subset>                                                        names of demonstrations

`ARISE-Initiative/robomimic:docs/datasets/overview.md`. Rewards and dones are written by
`robomimic/scripts/dataset_states_to_obs.py`, and describe the state after a step:

    dones     are set at success, at the demonstration's last row, or both (option done_mode). If
              rewards are 0 and 1, a last row with reward 0 is truncated: only the recording ended.
    success   lasts for some rows until the demonstration is stopped. The first of these rows
              terminates. The others would be episodes of one step and are left out.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    Columns,
    ParsedFile,
    ReadOptions,
    check_count,
    check_lengths,
    choose_observations,
    concatenate_episodes,
    file_names,
    keys_below,
    numbered_groups,
    observation_columns,
    to_flag,
)
from offline_rl.utils.errors import UserError

NAME = "robomimic"
SUPPORTED_OPTIONS = ("observation_keys", "subset")
ROBOT_KEYS = ("eef_pos", "eef_quat", "gripper_qpos")  # with `object`: robomimic's default


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    if raw.kind != "HDF5":
        return f"{raw.kind}, not HDF5"
    return None if numbered_groups(raw, "data/demo_") else "no group data/demo_<number>"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read all demonstrations by number, or those of `mask/<subset>`."""
    demos = list(numbered_groups(raw, "data/demo_").values())
    if options.subset is not None:
        demos = _select_subset(raw, options.subset, demos)
    obs = f"{demos[0]}/obs"
    shapes = {key: raw.shape(f"{obs}/{key}")[1:] for key in keys_below(raw, obs)}
    if not shapes:
        raise UserError(
            f"{raw.where}: {demos[0]} has no group obs, only simulator states. Extract the "
            f"observations with robomimic's dataset_states_to_obs.py."
        )
    keys, notes = choose_observations(
        raw.where, shapes, options, default=_default_keys(list(shapes))
    )
    present = set(raw.keys)
    groups = ["obs", *(["next_obs"] if f"{demos[0]}/next_obs/{keys[0]}" in present else [])]
    scalars = [key for key in ("rewards", "dones") if f"{demos[0]}/{key}" in present]
    columns = concatenate_episodes(
        raw.where, (_read_demo(raw, demo, keys, groups, scalars) for demo in demos)
    )
    total, rows = raw.attribute("data", "total"), len(columns["rewards"])
    if options.subset is None and total is not None and total != rows:
        notes.append(
            f"the attribute data.total states {total:,} steps, but the file has {rows:,}. Check "
            "that no demonstration is missing"
        )
    if "rewards" not in scalars:
        notes.append(NO_REWARDS)
    done = to_flag(raw.where, "dones", columns.pop("dones"))
    goal = _terminations(columns["rewards"], done, columns["truncated"])
    columns["terminated"] = goal
    columns["truncated"] &= ~goal
    repeated = goal & np.append(False, goal[:-1] & ~columns.pop("first")[1:])
    if repeated.any():
        notes.append(f"{repeated.sum():,} rows that follow a success are left out")
        columns = {column: array[~repeated] for column, array in columns.items()}
    names = {"terminated": "dones"}
    for column, group in (("observations", "obs"), ("next_observations", "next_obs")):
        names |= file_names(column, columns, {key: f"{group}/{key}" for key in keys})
    return ParsedFile(
        "robomimic", as_columns(columns), names, notes=[*notes, f"observed: {', '.join(keys)}"]
    )


def _read_demo(
    raw: Raw, demo: str, keys: list[str], groups: list[str], scalars: list[str]
) -> Columns:
    """Read one demonstration. `truncated` marks its last row, `first` its first row."""
    parts = {f"{group}/{key}": raw.get(f"{demo}/{group}/{key}") for group in groups for key in keys}
    arrays = parts | {key: raw.get(f"{demo}/{key}") for key in ("actions", *scalars)}
    rows = arrays["actions"].shape[0] if arrays["actions"].ndim else 0
    check_lengths(f"{raw.where}: {demo}", arrays, rows)
    check_count(f"{raw.where}: {demo}", "steps", rows, raw.attribute(demo, "num_samples"))
    index, none = np.arange(rows), np.zeros(rows, np.float32)
    columns = observation_columns("observations", {key: parts[f"obs/{key}"] for key in keys}) | {
        "actions": arrays["actions"],
        "rewards": arrays.get("rewards", none),
        "dones": arrays.get("dones", none),
        "truncated": index == rows - 1,
        "first": index == 0,
    }
    if "next_obs" in groups:
        columns |= observation_columns(
            "next_observations", {key: parts[f"next_obs/{key}"] for key in keys}
        )
    return columns


def _terminations(rewards: np.ndarray, done: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that terminate, [N] bool: done rows, except mere recording ends."""
    unrewarded = rewards.reshape(len(rewards), -1)[:, 0] == 0
    return done & ~(last & unrewarded) if np.isin(rewards, (0, 1)).all() else done


def _default_keys(keys: list[str]) -> list[str] | None:
    """Return robomimic's default observations (object, end effectors, grippers); None: all."""
    robots = [key for key in keys if key.startswith("robot") and key.endswith(ROBOT_KEYS)]
    return ["object", *robots] if "object" in keys and robots else None


def _select_subset(raw: Raw, subset: str, demos: list[str]) -> list[str]:
    masks = keys_below(raw, "mask")
    if subset not in masks:
        raise UserError(
            f"{raw.where}: no subset {subset!r}. Subsets: {', '.join(masks) or 'none'}."
        )
    names = {f"data/{bytes(name).decode()}" for name in raw.get(f"mask/{subset}").astype("S")}
    if unknown := sorted(names - set(demos)):
        raise UserError(f"{raw.where}: mask/{subset} lists {unknown[0]}, which is not in the file.")
    return [demo for demo in demos if demo in names]

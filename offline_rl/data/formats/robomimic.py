"""robomimic's HDF5 files: one group per demonstration, one array per observation key.

    data/demo_<n>/{actions, rewards, dones, obs/<key>, next_obs/<key>}    N rows each
    mask/<subset>                                                        names of demonstrations

`ARISE-Initiative/robomimic:docs/datasets/overview.md`. Rewards and dones are as in
`robomimic/scripts/dataset_states_to_obs.py`, both for the state after a step:

    dones     set at success, at the demonstration's last row, or both (its done_mode). If rewards
              are 0 and 1, a last row with reward 0 is truncated: the recording ended there.
    success   lasts for some rows until a demonstration is stopped. The first of these rows
              terminates; the others would be episodes of one step each and are left out.
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
TAKES = ("observation_keys", "subset")
ROBOT_KEYS = ("eef_pos", "eef_quat", "gripper_qpos")  # with `object`: robomimic's default


def mismatch(raw: Raw) -> str | None:
    """Return why `raw` is not of this layout; None if it is."""
    if raw.kind != "HDF5":
        return f"no HDF5 file, but {raw.kind}"
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
            f"{raw.where}: {demos[0]} has no obs, only states of the simulator. Extract the "
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
        notes.append(f"data states {total:,} steps and has {rows:,}: are demonstrations missing?")
    if "rewards" not in scalars:
        notes.append(NO_REWARDS)
    done = to_flag(raw.where, "dones", columns.pop("dones"))
    goal = _terminations(columns["rewards"], done, columns["truncated"])
    columns["terminated"] = goal
    columns["truncated"] &= ~goal
    repeated = goal & np.append(False, goal[:-1] & ~columns.pop("first")[1:])
    if repeated.any():
        notes.append(f"{repeated.sum():,} rows that follow a success are left out")
        columns = {word: array[~repeated] for word, array in columns.items()}
    names = {"terminated": "dones"}
    for word, group in (("observations", "obs"), ("next_observations", "next_obs")):
        names |= file_names(word, columns, {key: f"{group}/{key}" for key in keys})
    return ParsedFile(
        "robomimic", as_columns(columns), names, notes=[*notes, f"observed: {', '.join(keys)}"]
    )


def _read_demo(
    raw: Raw, demo: str, keys: list[str], groups: list[str], scalars: list[str]
) -> Columns:
    """Read one demonstration; `truncated` marks its last row, `first` its first."""
    parts = {f"{group}/{key}": raw.get(f"{demo}/{group}/{key}") for group in groups for key in keys}
    arrays = parts | {key: raw.get(f"{demo}/{key}") for key in ("actions", *scalars)}
    rows = arrays["actions"].shape[0] if arrays["actions"].ndim else 0
    check_lengths(f"{raw.where}: {demo}", arrays, rows)
    check_count(f"{raw.where}: {demo}", "steps", rows, raw.attribute(demo, "num_samples"))
    place, none = np.arange(rows), np.zeros(rows, np.float32)
    columns = observation_columns("observations", {key: parts[f"obs/{key}"] for key in keys}) | {
        "actions": arrays["actions"],
        "rewards": arrays.get("rewards", none),
        "dones": arrays.get("dones", none),
        "truncated": place == rows - 1,
        "first": place == 0,
    }
    if "next_obs" in groups:
        columns |= observation_columns(
            "next_observations", {key: parts[f"next_obs/{key}"] for key in keys}
        )
    return columns


def _terminations(rewards: np.ndarray, done: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the rows that terminate, [N] bool: done, and not only the end of the recording."""
    unrewarded = rewards.reshape(len(rewards), -1)[:, 0] == 0
    return done & ~(last & unrewarded) if np.isin(rewards, (0, 1)).all() else done


def _default_keys(keys: list[str]) -> list[str] | None:
    """Return the object and the position and gripper of every robot, if present; None: all."""
    robots = [key for key in keys if key.startswith("robot") and key.endswith(ROBOT_KEYS)]
    return ["object", *robots] if "object" in keys and robots else None


def _select_subset(raw: Raw, subset: str, demos: list[str]) -> list[str]:
    masks = keys_below(raw, "mask")
    if subset not in masks:
        raise UserError(
            f"{raw.where}: no subset {subset!r}; the file names {', '.join(masks) or 'none'}."
        )
    names = {f"data/{bytes(name).decode()}" for name in raw.get(f"mask/{subset}").astype("S")}
    if unknown := sorted(names - set(demos)):
        raise UserError(f"{raw.where}: mask/{subset} names {unknown[0]}, which the file lacks.")
    return [demo for demo in demos if demo in names]

"""robomimic's HDF5 files: one group a demonstration, one array an observation key.

    data/demo_<n>/{actions, rewards, dones, obs/<key>, next_obs/<key>}    N rows each
    mask/<subset>                                                        names of demonstrations

`ARISE-Initiative/robomimic:docs/datasets/overview.md`; rewards and dones as
`robomimic/scripts/dataset_states_to_obs.py` writes them, both of the state a step leads to:

    dones     at success, at the demonstration's last row, or both (its done_mode). A last row
              without a reward, where rewards are 0 and 1, is an end of the recording: truncated.
    success   lasts some rows before a demonstration is stopped. The first of them terminates;
              the others would be episodes of one step each and are left out.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    Columns,
    ParsedFile,
    ReadOptions,
    below,
    called,
    choose,
    counted,
    flag,
    numbered,
    observed,
    same_lengths,
    stacked,
)
from offline_rl.utils.errors import UserError

NAME = "robomimic"
TAKES = ("observation_keys", "subset")
OF_THE_ROBOT = ("eef_pos", "eef_quat", "gripper_qpos")  # with `object`: robomimic's own choice


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    if raw.kind != "HDF5":
        return f"no HDF5 file, but {raw.kind}"
    return None if numbered(raw, "data/demo_") else "no group data/demo_<number>"


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """All demonstrations by number, or those of `mask/<subset>`."""
    demos = list(numbered(raw, "data/demo_").values())
    if options.subset is not None:
        demos = _masked(raw, options.subset, demos)
    shapes = {key: raw.shape(f"{demos[0]}/obs/{key}")[1:] for key in below(raw, f"{demos[0]}/obs")}
    if not shapes:
        raise UserError(
            f"{raw.where}: {demos[0]} has no obs, only states of the simulator. Let robomimic's "
            f"dataset_states_to_obs.py extract observations."
        )
    keys, notes = choose(raw.where, shapes, options, default=_usual(list(shapes)))
    present = set(raw.keys)
    groups = ["obs", *(["next_obs"] if f"{demos[0]}/next_obs/{keys[0]}" in present else [])]
    scalars = [key for key in ("rewards", "dones") if f"{demos[0]}/{key}" in present]
    columns = stacked(raw.where, (_demo(raw, demo, keys, groups, scalars) for demo in demos))
    total, rows = raw.attribute("data", "total"), len(columns["rewards"])
    if options.subset is None and total is not None and total != rows:
        notes.append(f"data states {total:,} steps and has {rows:,}: are demonstrations missing?")
    if "rewards" not in scalars:
        notes.append(NO_REWARDS)
    done = flag(raw.where, "dones", columns.pop("dones"))
    goal = _reached(columns["rewards"], done, columns["truncated"])
    columns["terminated"] = goal
    columns["truncated"] &= ~goal
    again = goal & np.append(False, goal[:-1] & ~columns.pop("first")[1:])
    if again.any():
        notes.append(f"{again.sum():,} rows that follow a success are left out")
        columns = {word: array[~again] for word, array in columns.items()}
    names = {"terminated": "dones"}
    for word, group in (("observations", "obs"), ("next_observations", "next_obs")):
        names |= called(word, columns, {key: f"{group}/{key}" for key in keys})
    return ParsedFile(
        "robomimic", as_columns(columns), names, notes=[*notes, f"observed: {', '.join(keys)}"]
    )


def _demo(raw: Raw, demo: str, keys: list[str], groups: list[str], scalars: list[str]) -> Columns:
    """One demonstration; `truncated` marks its last row, `first` its first."""
    parts = {f"{group}/{key}": raw.get(f"{demo}/{group}/{key}") for group in groups for key in keys}
    arrays = parts | {key: raw.get(f"{demo}/{key}") for key in ("actions", *scalars)}
    rows = arrays["actions"].shape[0] if arrays["actions"].ndim else 0
    same_lengths(f"{raw.where}: {demo}", arrays, rows)
    counted(f"{raw.where}: {demo}", "steps", rows, raw.attribute(demo, "num_samples"))
    place, none = np.arange(rows), np.zeros(rows, np.float32)
    columns = observed("observations", {key: parts[f"obs/{key}"] for key in keys}) | {
        "actions": arrays["actions"],
        "rewards": arrays.get("rewards", none),
        "dones": arrays.get("dones", none),
        "truncated": place == rows - 1,
        "first": place == 0,
    }
    if "next_obs" in groups:
        columns |= observed("next_observations", {key: parts[f"next_obs/{key}"] for key in keys})
    return columns


def _reached(rewards: np.ndarray, done: np.ndarray, last: np.ndarray) -> np.ndarray:
    """[N] bool: the step is done, and not merely the last of its demonstration."""
    unrewarded = rewards.reshape(len(rewards), -1)[:, 0] == 0
    return done & ~(last & unrewarded) if np.isin(rewards, (0, 1)).all() else done


def _usual(keys: list[str]) -> list[str] | None:
    """The objects and every robot's position and gripper, where the file has them; None: all."""
    robots = [key for key in keys if key.startswith("robot") and key.endswith(OF_THE_ROBOT)]
    return ["object", *robots] if "object" in keys and robots else None


def _masked(raw: Raw, subset: str, demos: list[str]) -> list[str]:
    masks = below(raw, "mask")
    if subset not in masks:
        raise UserError(
            f"{raw.where}: no subset {subset!r}; the file names {', '.join(masks) or 'none'}."
        )
    names = {f"data/{bytes(name).decode()}" for name in raw.get(f"mask/{subset}").astype("S")}
    if unknown := sorted(names - set(demos)):
        raise UserError(f"{raw.where}: mask/{subset} names {unknown[0]}, which the file lacks.")
    return [demo for demo in demos if demo in names]

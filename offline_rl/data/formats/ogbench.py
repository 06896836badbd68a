"""OGBench's NPZ files: trajectories without rewards, whose final state is an additional row.

    row             0   1   2   3   4       The last row of a trajectory is only the final state;
    trajectory      |------ A ------|       its action is a placeholder. `terminals` marks this
    terminals       0   0   0   0   1       row as the end of the recording, not of the task.
    read as a step  x   x   x   x           Row 3 is truncated; its next observation is row 4.

The rewards of a single task are computed from the simulator states (`relabel`). A recording
continues after the task is solved: a solved row is terminated, but its episode continues.

`terminals` has this meaning in no other layout. A file is recognized by its simulator states, which
OGBench's scripts (data_gen_scripts/generate_*.py) store for tasks with continuous actions.
`seohongpark/ogbench:ogbench/utils.py` (load_dataset, compact_dataset=False) reads the same rows.
Park et al., arXiv:2410.20092. The validation data is a separate file of the same layout.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, Dataset, as_columns
from offline_rl.data.formats.common import ParsedFile, ReadOptions, check_lengths, to_flag
from offline_rl.utils.errors import UserError
from policies import channels

if TYPE_CHECKING:
    from envs.suites.ogbench import Goal

NAME = "OGBench"
BLOCK_ROWS = 1 << 20  # rows that are relabeled together
SUPPORTED_OPTIONS = ("infos",)
ARRAYS = ("observations", "actions", "terminals")
MARKER_ARRAYS = ("qpos", "qvel")  # simulator states, in every file with continuous actions
STATES = (*MARKER_ARRAYS, "button_states")
NEVER_TERMINATES = "no row terminates: trajectories are truncated"
READ_AS = (
    "read as OGBench: the last row of each episode is only the final state, not a step. With "
    "format=plain, every row is a step"
)


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout, or None."""
    if raw.kind != "NPZ":
        return f"{raw.kind}, not NPZ"
    if missing := [key for key in ARRAYS if key not in raw.keys]:
        return f"no array {' nor '.join(map(repr, missing))}"
    if others := [key for key in raw.keys if key not in (*ARRAYS, *STATES)]:
        return f"array {others[0]!r} is unknown"
    return None


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read the transitions of the file. All rewards are 0, and no row terminates."""
    arrays = {key: raw.get(key) for key in ARRAYS}
    check_lengths(raw.where, arrays, arrays["observations"].shape[0])
    last = to_flag(raw.where, "terminals", arrays["terminals"])
    if not len(last) or not last[-1]:
        raise UserError(
            f"{raw.where}: terminals does not mark the last of {len(last):,} rows, but must mark "
            f"each trajectory's last state. Copy or download the file again."
        )
    rows = np.flatnonzero(~last)
    columns = as_columns(
        {
            "observations": arrays["observations"][rows],
            "actions": arrays["actions"][rows],
            "rewards": np.zeros(len(rows), np.float32),
            "terminated": np.zeros(len(rows), bool),
            "truncated": last[rows + 1],
            "next_observations": arrays["observations"][rows + 1],
        }
    )
    stored = STATES if options.infos else ("qpos", "button_states") if options.states else ()
    states = [key for key in stored if key in raw.keys]
    return ParsedFile(
        "OGBench",
        columns,
        {},
        extras={f"infos/{key}": raw.get(key)[rows] for key in states},
        notes=(NO_REWARDS, READ_AS, NEVER_TERMINATES),
        limits_episodes=False,
    )


def relabel(data: Dataset, goal: "Goal", *, keep_states: bool = False) -> Dataset:
    """Return the data with the rewards and terminations of a single task.

    Success is judged by the state before the row's action, as in all versions of
    `ogbench:relabel_utils.py`. A solved row terminates, but its episode continues after it.

    data: read with states=True. keep_states: keep the simulator states in `extras`. Raises
    UserError if the states are missing, or belong to another task.
    """
    where, task = data.path or data.name, goal.env_id
    qpos, buttons = data.extras.get("infos/qpos"), data.extras.get("infos/button_states")
    if qpos is not None:
        found = channels.shapes(data.observations), qpos.shape[1:]
        expected = (goal.observation_dim,), (goal.qpos_dim,)
        if found != expected:
            raise UserError(
                f"{where} has observations {list(found[0])} and qpos {list(found[1])}, but {task} "
                f"has {list(expected[0])} and {list(expected[1])}: the data belongs to another "
                f"task. Use that task, or another dataset=."
            )
    if qpos is None or (goal.buttons is not None and buttons is None):
        raise UserError(
            f"{where} has no {'qpos' if qpos is None else 'button_states'}, from which the rewards "
            f"of {task} are computed. Use the published file, or task=none for the data without "
            f"rewards."
        )
    rewards, solved = np.empty(len(qpos), np.float32), np.empty(len(qpos), bool)
    for start in range(0, len(qpos), BLOCK_ROWS):  # the states of large sets stay on disk
        rows = slice(start, start + BLOCK_ROWS)
        of_rows = None if buttons is None else buttons[rows]
        rewards[rows], solved[rows] = goal.label(qpos[rows], of_rows)
    continues = solved & ~data.truncated
    notes = [note for note in data.notes if note not in (NO_REWARDS, NEVER_TERMINATES)]
    notes.append(
        f"rewards and terminations are those of {task}, computed from each row's state before its "
        f"action. {solved.sum():,} of {len(solved):,} rows terminate; their trajectories continue"
    )
    return replace(
        data,
        rewards=rewards,
        terminated=solved,
        truncated=data.truncated & ~solved,
        continues=continues,
        extras=data.extras if keep_states else {},
        notes=tuple(notes),
    )

"""OGBench's NPZ files: trajectories without rewards, each with its last state as a row of its own.

    row             0   1   2   3   4       the action of a trajectory's last row is a filler, and
    trajectory      |------ A ------|       `terminals` marks that row: the end of the recording,
    terminals       0   0   0   0   1       not of the task
    kept            x   x   x   x           row 3 is followed by row 4 and truncated

An array of terminals means that in this layout alone, so a file is recognized by the states of the
simulator, which OGBench's scripts (data_gen_scripts/generate_*.py) store with continuous actions.
`seohongpark/ogbench:ogbench/utils.py` (load_dataset, compact_dataset=False) keeps the same rows.
Park et al., arXiv:2410.20092. The validation set is a file of the same layout.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import ParsedFile, ReadOptions, flag, same_lengths
from offline_rl.utils.errors import UserError

NAME = "OGBench"
TAKES = ("infos",)
ARRAYS = ("observations", "actions", "terminals")
MARKS = ("qpos", "qvel")  # states of the simulator, in every file with continuous actions
STATES = (*MARKS, "button_states")
READ_AS = (
    "read as OGBench: the last row of each episode is only the state after the row before, and no "
    "step; format=plain reads every row as a step"
)


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    if raw.kind != "NPZ":
        return f"no NPZ archive, but {raw.kind}"
    if lacking := [key for key in ARRAYS if key not in raw.keys]:
        return f"no array {' nor '.join(map(repr, lacking))}"
    if others := [key for key in raw.keys if key not in (*ARRAYS, *STATES)]:
        return f"{others[0]!r} is none of its arrays"
    return None


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """The transitions of the file; rewards are 0, no row terminates."""
    arrays = {key: raw.get(key) for key in ARRAYS}
    same_lengths(raw.where, arrays, arrays["observations"].shape[0])
    last = flag(raw.where, "terminals", arrays["terminals"])
    if not len(last) or not last[-1]:
        raise UserError(
            f"{raw.where}: the last of {len(last):,} rows is not marked in terminals, as each "
            f"trajectory's last state must be. Copy or download the file again."
        )
    kept = np.flatnonzero(~last)
    columns = as_columns(
        {
            "observations": arrays["observations"][kept],
            "actions": arrays["actions"][kept],
            "rewards": np.zeros(len(kept), np.float32),
            "terminated": np.zeros(len(kept), bool),
            "truncated": last[kept + 1],
            "next_observations": arrays["observations"][kept + 1],
        }
    )
    states = [key for key in STATES if options.infos and key in raw.keys]
    return ParsedFile(
        "OGBench",
        columns,
        {},
        extras={f"infos/{key}": raw.get(key)[kept] for key in states},
        notes=(NO_REWARDS, READ_AS, "no row terminates: trajectories are cut"),
    )

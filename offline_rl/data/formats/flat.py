"""Flat layouts: arrays at the root of an HDF5 or NPZ file, all steps of all episodes in sequence.

    D4RL      HDF5 or NPZ: observations actions rewards terminals [timeouts] [next_observations]
              [infos/...]; github.com/Farama-Foundation/D4RL, all suites. d3rlpy's version 1 has
              episode_terminals, which mark terminated and truncated rows
    DSRL      like D4RL, with costs; github.com/liuzuxin/DSRL
    NeoRL-2   NPZ: obs action reward done truncated next_obs [index]; github.com/polixir/NeoRL2
    plain     any of these names, or terminated and truncated instead of terminals and timeouts;
              several channels are observations/<channel>, next_observations/<channel>

Stored next observations are used, so that a time-out row remains a transition and bootstraps.
D4RL's own loader ignores stored next observations and drops time-out rows; `d4rl_compatible=True`
does the same. In two suites, the flags do not mean what their names say. They are corrected:

    kitchen   `timeouts` is missing, and `terminals` marks the end of every demonstration. An
              episode terminates if its last reward counts all four subtasks; otherwise it is
              truncated.
    antmaze   `terminals` means "at the goal", even if the time-out is set in the same row. A row
              with both flags is terminated.

Kitchen is recognized by its dimensions and by rewards that count subtasks. NeoRL-2 is recognized by
`done` together with `truncated` or `index`, because `done` alone may include time limits.
"""

import difflib
from collections.abc import Callable, Mapping

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats import ogbench
from offline_rl.data.formats.common import Columns, ParsedFile, ReadOptions, to_flag
from offline_rl.utils.errors import UserError
from policies import channels
from policies.channels import Observations

FILE_NAMES = {  # column -> possible names in files; the first one present is used
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
KITCHEN = (60, 9, 4)  # observation dimension, action dimension, number of subtasks
JUMP = 1e-6  # relative distance to the next row's observation above which an episode ends
SUPPORTED_OPTIONS = ("max_episode_steps", "d4rl_compatible", "terminate_on_end", "infos")
NAME = "D4RL, DSRL, NeoRL-2 or plain arrays"
SUITES = {"d4rl": "D4RL", "kitchen": "kitchen", "maze": "maze", "neorl2": "NeoRL-2"}
SUITES["plain"] = "plain"
FORMAT_NAMES = tuple(SUITES)  # values of `format=`
READ_AS_KITCHEN = (
    "read as D4RL's kitchen: terminals mark the ends of demonstrations, which terminate where the "
    "reward is 4. With format=plain, every row with terminals=1 terminates"
)


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    if raw.kind not in ("HDF5", "NPZ"):
        return f"{raw.kind}, not HDF5 or NPZ"
    if any(similar_keys(raw, FILE_NAMES[column]) for column in REQUIRED):
        return None
    return "no array like observations, actions, rewards or terminals"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read the file's arrays; `report` is called for each one that is missing or unreadable."""
    layout, keys, sentences = recognize(raw, options.format)
    for sentence in sentences:
        report(sentence)
    arrays: Columns = {}
    for column, key in keys.items():
        try:
            arrays[column] = raw.get(key)
        except UserError as error:
            report(str(error))
    columns = as_columns(arrays)
    if "truncated" not in columns and "episode_terminals" in raw.keys and "terminated" in columns:
        ends = to_flag(raw.where, "episode_terminals", raw.get("episode_terminals"))
        columns["truncated"] = ends & (columns["terminated"] == 0)
    notes = [READ_AS_KITCHEN] if layout == "kitchen" else []
    if options.format is not None or options.d4rl_compatible:
        notes = []
    if options.format == "plain" and "rewards" not in keys and "actions" in columns:
        columns["rewards"] = np.zeros(len(columns["actions"]), np.float32)
        notes.append(NO_REWARDS)
    index = raw.get("index") if layout == "NeoRL-2" and "index" in raw.keys else None
    extras = {key: raw.get(key) for key in raw.keys if options.infos and key.startswith("infos")}
    timeouts = columns.get("truncated")
    if not (options.d4rl_compatible and layout == "kitchen"):
        columns = correct_flags(layout, columns)

    def finish(columns: Columns) -> Columns:
        if options.d4rl_compatible:
            return columns
        if index is not None:
            return columns | {"truncated": _truncate_at_starts(columns, index, raw.where)}
        if "truncated" in columns:
            return columns
        return columns | {"truncated": _infer_time_outs(columns, options.max_episode_steps)}

    def qlearning(terminals: np.ndarray) -> np.ndarray:
        if options.terminate_on_end:
            return np.arange(len(terminals)) < len(terminals) - 1
        return qlearning_rows(terminals, timeouts, options.max_episode_steps)

    return ParsedFile(layout, columns, keys, extras, notes, finish=finish, qlearning_rows=qlearning)


def recognize(raw: Raw, format: str | None) -> tuple[str, dict[str, str], list[str]]:
    """Return the suite, {column: array of the file}, and a sentence per missing required column."""
    names = dict(FILE_NAMES)
    sentences = []
    present = set(raw.keys)
    neorl2 = {"obs", "next_obs", "done"} <= present and bool({"truncated", "index"} & present)
    if format is not None:
        neorl2 = format == "neorl2"
    if neorl2:
        names["terminated"] = ("done",)
    keys = {}
    for column, candidates in names.items():
        present_keys = [key for key in candidates if key in raw.keys]
        groups = [key for key in raw.keys if key.startswith(f"{candidates[0]}/")]
        if present_keys:
            keys[column] = present_keys[0]
        elif groups and column.endswith("observations"):
            keys |= {key: key for key in groups}
        elif column in REQUIRED and not (column == "rewards" and format == "plain"):
            sentences.append(f"{raw.where}: {_describe_missing(candidates, raw)}")
    if format is not None:
        return SUITES[format], keys, sentences
    suite = "NeoRL-2" if neorl2 else "unknown" if sentences else _recognize_suite(raw, keys)
    return suite, keys, sentences


def correct_flags(layout: str, columns: Columns) -> Columns:
    """Correct the flags of kitchen's and the mazes' files; see the module's docstring."""
    ended = columns.get("terminated")
    other = columns.get({"maze": "truncated", "kitchen": "rewards"}.get(layout, ""))
    if ended is None or other is None or ended.shape != other.shape:
        return columns
    if layout == "maze":
        return columns | {"truncated": np.where(ended == 1, 0, other)}
    solved = other == KITCHEN[2]
    return columns | {
        "terminated": np.where(solved, ended, 0),
        "truncated": np.where(solved, 0, ended),
    }


def qlearning_rows(
    terminals: np.ndarray, timeouts: np.ndarray | None, max_episode_steps: int | None
) -> np.ndarray:
    """Return a mask of the rows that D4RL's `qlearning_dataset` returns, [N] bool.

    If a file has no time-outs, D4RL counts the steps of an episode. After a terminal row the count
    starts at 1 instead of 0, which is reproduced here.
    """
    mask = np.ones(len(terminals), bool)
    mask[-1] = False
    if timeouts is not None:
        return mask & (timeouts == 0)
    if max_episode_steps is not None:
        step = 0
        for row, terminal in enumerate(terminals):
            mask[row] &= step != max_episode_steps - 1
            step = 0 if step == max_episode_steps - 1 else 1 if terminal else step + 1
    return mask


def find_jumps(observations: Observations, next_observations: Observations) -> np.ndarray:
    """Return a mask of the rows whose next observation is not the next row's, [N] bool.

    Differences up to JUMP are allowed. The last row is False.
    """
    return channels.any_channel(
        channels.map_channels(_find_row_jumps, observations, next_observations)
    )


def _find_row_jumps(observations: np.ndarray, next_observations: np.ndarray) -> np.ndarray:
    num_rows = len(observations)
    jumps = np.zeros(num_rows, bool)
    after = observations.reshape(num_rows, -1)[1:]
    stored = next_observations.reshape(num_rows, -1)[:-1]
    rows = np.flatnonzero((stored != after).any(axis=1))
    gap = stored[rows].astype(np.float64) - after[rows]
    size = np.maximum(np.linalg.norm(after[rows], axis=1), 1)  # relative, as float32 rounding is
    jumps[rows] = np.linalg.norm(gap, axis=1) > JUMP * size
    return jumps


def similar_keys(raw: Raw, candidates: tuple[str, ...]) -> list[str]:
    """Return the file's arrays whose names are similar to one of `candidates`."""
    similar = [
        key
        for key in raw.keys
        if any(difflib.get_close_matches(key.split("/")[-1].lower(), candidates, cutoff=0.6))
    ]
    if "terminals" in candidates:
        similar += [key for key in ("dones", "done") if key in raw.keys]
    return similar


def _describe_missing(candidates: tuple[str, ...], raw: Raw) -> str:
    names = " or ".join(repr(key) for key in candidates)
    similar = similar_keys(raw, candidates)
    if "terminals" in candidates and {*similar} & {"dones", "done"}:
        return (
            f"no array {names}, but {' and '.join(map(repr, similar))}, which may mark the end of "
            f"the task or of the recording. If every mark is an end of the task, rename the array "
            f"'terminals'. Otherwise move the time limits to a separate array 'timeouts'."
            + " With format=neorl2, 'done' marks the end of the task, as in NeoRL-2."
            * ("done" in similar)
        )
    if similar:
        return (
            f"no array {names}, but {', '.join(map(repr, similar))}. If this is the array, rename "
            f"it {candidates[0]!r}."
        )
    shown = ", ".join(raw.keys[:12]) + (", ..." if len(raw.keys) > 12 else "")
    missing = f"no array {names} in this {raw.kind} file, which holds {shown or 'nothing'}."
    if "rewards" in candidates and _has_column(raw, "observations") and _has_column(raw, "actions"):
        remedy = "Add format=plain if every row is a step."
        if ogbench.mismatch(raw) is None:
            remedy += " Add format=ogbench if the last row of each episode is only the final state."
        return f"{missing} {remedy}"
    return f"{missing} A data set needs observations, actions, rewards and terminals."


def _has_column(raw: Raw, column: str) -> bool:
    """Return True if the file has an array, or channels, for this column."""
    names = FILE_NAMES[column]
    return any(key in names or key.startswith(f"{names[0]}/") for key in raw.keys)


def _recognize_suite(raw: Raw, keys: Mapping[str, str]) -> str:
    if "infos/goal" in raw.keys and "truncated" in keys:
        return "maze"
    if keys.keys() & {"truncated", "next_observations"} == set() and "observations" in keys:
        widths = tuple(raw.shape(keys[column])[-1:] for column in ("observations", "actions"))
        if widths == ((KITCHEN[0],), (KITCHEN[1],)):
            rewards = raw.get(keys["rewards"])
            if np.isin(rewards, np.arange(KITCHEN[2] + 1)).all():
                return "kitchen"
    if "costs" in keys:
        return "DSRL"
    return "D4RL" if keys["terminated"] == "terminals" else "plain"


def _truncate_at_starts(
    columns: Mapping[str, np.ndarray], starts: np.ndarray, where: str
) -> np.ndarray:
    """Return the time-outs: the stored ones, and the row before each episode start in `starts`."""
    num_rows = len(columns["terminated"])
    rows = starts.astype(np.int64)
    if rows.ndim != 1 or (rows < 0).any() or (rows >= num_rows).any():
        raise UserError(
            f"{where}: index must list the first row of each episode, from 0 to {num_rows - 1:,}; "
            f"found {rows.reshape(-1)[:3].tolist()}, …, of shape {list(rows.shape)}."
        )
    truncated = columns["truncated"] != 0 if "truncated" in columns else np.zeros(num_rows, bool)
    truncated[rows[rows > 0] - 1] = True
    return truncated & (columns["terminated"] == 0)


def _infer_time_outs(
    columns: Mapping[str, np.ndarray], max_episode_steps: int | None
) -> np.ndarray:
    """Infer time-outs that are not stored, by counting steps or from jumps of the observations."""
    ended = columns["terminated"] != 0
    truncated = np.zeros_like(ended)
    if max_episode_steps is not None:
        start = 0
        for end in [*np.flatnonzero(ended), len(ended)]:
            truncated[start + max_episode_steps - 1 : end : max_episode_steps] = True
            start = end + 1
    elif (stored := channels.get(columns, "next_observations")) is not None:
        truncated = find_jumps(channels.get(columns, "observations"), stored) & ~ended
    return truncated

"""Data files and folders, read as a `Dataset`. The layout is recognized by the content."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from offline_rl.data.action_range import (
    check_options,
    data_range,
    limits,
    scale_actions,
    uses_extremes,
)
from offline_rl.data.checks import find_errors
from offline_rl.data.containers.raw import checksum_of, open_raw
from offline_rl.data.dataset import Dataset
from offline_rl.data.formats.common import Bounds, Columns, ParsedFile, ReadOptions
from offline_rl.data.formats.recognize import parse
from offline_rl.data.validation import find_warnings
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import FileFormat, to_python
from policies import channels
from policies.spec import VECTOR, Channel, Spec

# Note on a file that states the minimum and maximum of the recorded actions, but no action limits
REACHED = "actions: -1 and 1 are the minimum and maximum of each action, as stated by the file"


def read(
    path: str | Path,
    *,
    max_episode_steps: int | None = None,
    d4rl_compatible: bool = False,
    terminate_on_end: bool = False,
    action_scale: float | None = None,
    action_range: Sequence[float] | Sequence[Sequence[float]] | Literal["data"] | None = None,
    observation_keys: Sequence[str] | None = None,
    subset: str | None = None,
    infos: bool = False,
    format: FileFormat | None = None,
    stream: Literal["auto", "always", "never"] = "auto",
    states: bool = False,
    name: str | None = None,
) -> Dataset:
    """Read the data set at `path`.

    max_episode_steps: if the file has no time-outs, truncate episodes after this many steps. If
    the file has no time-outs and this is None, an episode ends where a stored next observation is
    not the next row's observation.
    d4rl_compatible: return exactly the transitions of D4RL's `qlearning_dataset`. That function
    drops time-out rows and the last row, and ignores stored next observations: the next observation
    of a terminal row is the next row's. Episode returns lack the rewards of the dropped rows.
    terminate_on_end: with d4rl_compatible, do what D4RL's option of this name actually does. Time-
    out rows remain and are not terminated, and their next observation is the first one of the next
    episode.
    action_scale: divide actions by this number, which thereby becomes 1.
    action_range: [low, high], the actions that become -1 and 1: two numbers, or two lists with a
    number per action. "data": the minimum and maximum of each action in the file.
    By default, the limits that the file states become -1 and 1.
    observation_keys: arrays of the file that make up an observation, concatenated in this order.
    subset: a split that the file defines, such as train.
    infos: store the arrays of infos/ in `extras` (costs are always stored).
    format: layout of the file; by default it is recognized by the content.
    stream: when images of LeRobot's videos are decoded. always: when they are used (`VideoFrames`);
    never: before this function returns; auto: when they are used if all need more than 1 GiB.
    states: OGBench: also store the simulator states that define rewards in `extras`.
    Raises UserError at the first problem.
    """
    action_range = to_python(action_range)
    options = ReadOptions(
        max_episode_steps=max_episode_steps,
        d4rl_compatible=d4rl_compatible,
        terminate_on_end=terminate_on_end,
        action_scale=action_scale,
        action_range=action_range if action_range in (None, "data") else list(action_range),
        observation_keys=None if observation_keys is None else list(observation_keys),
        subset=subset,
        infos=infos,
        format=format,
        stream=stream,
        states=states,
    )
    check_options(options)
    path = Path(path)
    with open_raw(path) as raw:
        parsed = parse(raw, options, _refuse)
    columns, bounds = scale_actions(raw.where, parsed, options), limits(raw.where, parsed, options)
    for sentence in find_errors(columns, raw.where, parsed.keys, bounds, parsed.observation_names):
        raise UserError(sentence)
    notes = [*parsed.notes]
    if action_range == "data":
        low, high = data_range(parsed.columns["actions"])
        notes.append(
            f"-1 and 1 stand for the actions {round_for_display(low)} and {round_for_display(high)}"
        )
    if not d4rl_compatible:  # with this option, D4RL's transitions are intended: no warnings
        limit = max_episode_steps if parsed.limits_episodes else None
        notes += find_warnings(columns, parsed.keys, limit, notes)
    extras = parsed.extras
    if "costs" in columns:
        extras = {**extras, "costs": columns.pop("costs")}
    columns = parsed.finish(columns)
    data = Dataset.from_arrays(
        **channels.unflatten(columns),
        extras=extras,
        spec=make_spec(columns, parsed, bounds),
        name=name or path.stem,
        path=str(path),
        sha256=checksum_of((*raw.files, *parsed.files)),
        keys=parsed.keys,
    )
    notes += [REACHED] if uses_extremes(parsed, options) else []
    data = replace(data, notes=tuple(notes))
    if parsed.unknown_next is not None:
        data = replace(data, next_index=np.where(parsed.unknown_next, -1, data.next_index))
    if not d4rl_compatible or parsed.qlearning_rows is None:
        return data
    rows = np.flatnonzero(parsed.qlearning_rows(columns["terminated"]))
    if not len(rows):
        raise UserError(
            f"{raw.where}: d4rl_compatible leaves none of the {data.num_rows:,} rows. Leave it out."
        )
    return replace(data, next_index=np.arange(1, data.num_rows + 1)).take(rows)


def make_spec(columns: Columns, parsed: ParsedFile, bounds: Bounds | None) -> Spec | None:
    """Build a `Spec` from names, units, limits and rate in the file.

    Returns None if an observation is neither a vector nor a set of channels.
    """
    obs = channels.shapes(channels.get(columns, "observations"))
    names, action_dim = parsed.observation_names, columns["actions"].shape[1]
    if not isinstance(obs, Mapping):
        if len(obs) != 1 or not obs[0] or not action_dim:
            return None
        named = len(names) == obs[0]
        units = parsed.observation_units if named else ()
        obs = (Channel(VECTOR, obs, units=units, names=names if named else ()),)
    low, high = bounds if bounds is not None else ((), ())
    actions_named = len(parsed.action_names) == action_dim
    return Spec(
        obs,
        action_dim,
        action_low=bound_per_action(low, action_dim),
        action_high=bound_per_action(high, action_dim),
        rate_hz=parsed.rate_hz,
        action_offset=parsed.action_offset,
        action_names=parsed.action_names if actions_named else (),
        action_units=parsed.action_units if actions_named else (),
    )


def bound_per_action(bound: Any, count: int) -> tuple[float, ...]:
    """Return the bound of each action; an empty tuple if `bound` is empty."""
    return tuple(np.broadcast_to(bound, count).astype(float).tolist()) if np.size(bound) else ()


def round_for_display(values: np.ndarray | float) -> list[float]:
    """Round to four significant digits, for display."""
    return [float(f"{x:.4g}") for x in np.atleast_1d(values)]


def _refuse(sentence: str) -> NoReturn:
    raise UserError(sentence)

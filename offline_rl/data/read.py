"""A data file or folder as a `Dataset`, its layout recognized by content (see `formats`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np

from offline_rl.data.containers.raw import checksum_of, open_raw
from offline_rl.data.dataset import Dataset
from offline_rl.data.doubts import doubts
from offline_rl.data.faults import ROUNDING, faults, losses
from offline_rl.data.formats.common import Bounds, Columns, Found, ReadOptions
from offline_rl.data.formats.recognize import gather
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import ActionRange, FileFormat, plain_python
from offline_rl.utils.words import unknown
from policies import channels
from policies.spec import VECTOR, Channel, Spec

REACHED = "actions: -1 and 1 stand for the least and the greatest that the file says of each"


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
    name: str | None = None,
) -> Dataset:
    """The data set at `path`.

    max_episode_steps: where a file has no time-outs, an episode of this many steps timed out. Where
    neither is there, episodes are cut where a stored next observation is not the next row's.
    d4rl_compatible: exactly the transitions of D4RL's `qlearning_dataset`: time-out rows and the
    last row dropped, stored next observations ignored, a terminal row's next observation being the
    next row's. Returns then miss the dropped rows' rewards.
    terminate_on_end: with d4rl_compatible, as D4RL's option of that name really does: time-out rows
    are kept, neither terminated nor with their own next observation but with the next episode's.
    action_scale: actions are divided by it; the size that 1 stands for.
    action_range: [low, high], numbers or one list each for all actions: what -1 and 1 stand for;
    "data": the least and greatest of each action that the file has.
    Without either, the limits that the file itself states are mapped to [-1, 1].
    observation_keys: which of the file's arrays make an observation, side by side in this order.
    subset: a split that the file names, such as train.
    infos: keep the per-step arrays under infos/ in `extras` (costs are kept always).
    format: layout of the file; by default it is recognized by what only that layout holds.
    Raises UserError, one sentence, on the first thing wrong.
    """
    action_range = plain_python(action_range)
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
    )
    check_options(options)
    path = Path(path)
    with open_raw(path) as raw:
        found = gather(raw, options, _refuse)
    columns, bounds = scaled(raw.where, found, options), limits(raw.where, found, options)
    for sentence in faults(columns, raw.where, found.keys, bounds, found.observation_names):
        raise UserError(sentence)
    notes = [*found.notes]
    if action_range == "data":
        low, high = own_range(found.columns["actions"])
        notes.append(f"-1 and 1 stand for the actions {as_list(low)} and {as_list(high)}")
    if not d4rl_compatible:  # else what D4RL makes of it is wanted, whatever it is
        notes += doubts(columns, found.keys, max_episode_steps, notes)
    extras = found.extras
    if "costs" in columns:
        extras = {**extras, "costs": columns.pop("costs")}
    columns = found.finish(columns)
    data = Dataset.from_arrays(
        **channels.nested(columns),
        extras=extras,
        spec=spec_of(columns, found, bounds),
        name=name or path.stem,
        path=str(path),
        sha256=checksum_of((*raw.files, *found.files)),
        keys=found.keys,
    )
    notes += [REACHED] if reaching(found, options) else []
    data = replace(data, notes=tuple(notes))
    if found.unknown_next is not None:
        data = replace(data, next_index=np.where(found.unknown_next, -1, data.next_index))
    if not d4rl_compatible or found.qlearning_rows is None:
        return data
    kept = np.flatnonzero(found.qlearning_rows(columns["terminated"]))
    if not len(kept):
        raise UserError(f"{raw.where}: d4rl_compatible leaves none of its {data.num_rows:,} rows.")
    return replace(data, next_index=np.arange(1, data.num_rows + 1)).take(kept)


def check_options(options: ReadOptions) -> None:
    """Raises UserError where an option's value cannot be meant."""
    steps, scale = options.max_episode_steps, options.action_scale
    if options.format is not None and options.format not in get_args(FileFormat):
        raise UserError(unknown("format", options.format, get_args(FileFormat)))
    if options.terminate_on_end and not options.d4rl_compatible:
        raise UserError("terminate_on_end=true means something with d4rl_compatible=true only.")
    if steps is not None and steps < 1:
        raise UserError(f"max_episode_steps={steps}: 1 or more is expected.")
    if scale is not None and not scale > 0:
        raise UserError(f"action_scale={scale}: a number above 0 is expected.")
    if scale is not None and options.action_range is not None:
        raise UserError("action_scale and action_range are both given; one of them is expected.")
    if options.action_range is not None and options.action_range != "data":
        _bounds(options.action_range)


def limits(where: str, found: Found, options: ReadOptions) -> Bounds | None:
    """What -1 and 1 stand for, in the file's units, as the options, else the file itself, say."""
    actions = amounts(found, options)
    if options.action_scale is not None:
        return -options.action_scale, options.action_scale
    bounds: Bounds | None
    if options.action_range == "data":
        if actions is None or actions.dtype.kind != "f" or not actions.size:
            return None  # which `faults` will name
        bounds = own_range(actions)
    elif options.action_range is not None:
        bounds = _bounds(options.action_range)
    else:
        bounds = found.action_extremes if reaching(found, options) else found.action_range
    if bounds is None or actions is None or actions.ndim != 2:
        return bounds
    if not np.less(*bounds).all():
        raise UserError(f"{where}: of the actions' limits {bounds} some are not low below high.")
    for bound in map(np.asarray, bounds):
        if bound.ndim and bound.shape != actions.shape[1:]:
            raise UserError(
                f"{where}: the actions' limits are of {bound.size} numbers, the actions of "
                f"{actions.shape[1]}. Give a number, or one for each."
            )
    return bounds


def reaching(found: Found, options: ReadOptions) -> bool:
    """True if the actions leave [-1, 1] and the file's minimum and maximum are their limits."""
    said = (options.action_scale, options.action_range, found.action_range)
    actions = found.columns.get("actions")
    if found.action_extremes is None or actions is None or said != (None, None, None):
        return False
    return actions.dtype.kind == "f" and bool((np.abs(actions) > 1 + ROUNDING).any())


def amounts(found: Found, options: ReadOptions) -> np.ndarray | None:
    """Return the actions, whole numbers as floats where their range is stated.

    They are float64 where float32 would lose their resolution. Without a range whole numbers from
    0 on may choose one of several actions.
    """
    actions = found.columns.get("actions")
    stated = (options.action_scale, options.action_range, found.action_range)
    if actions is None or actions.dtype.kind not in "iu" or stated == (None, None, None):
        return actions
    return actions.astype(np.float64 if losses(actions) else np.float32)


def scaled(where: str, found: Found, options: ReadOptions) -> Columns:
    """The columns with actions in [-1, 1], which stand for their limits, where any are known."""
    columns, bounds = dict(found.columns), limits(where, found, options)
    actions = amounts(found, options)
    if bounds is None or actions is None or actions.dtype.kind != "f" or actions.ndim != 2:
        return columns  # what is wrong with them `faults` will name
    low, high = (np.asarray(b, np.float64) for b in bounds)
    coarse = losses(actions - (low + high) / 2) if actions.dtype == np.float64 else []
    if any(loss.refused for loss in coarse):
        return columns  # likewise: the range does not take their offset off
    if options.action_scale is not None:
        scale = actions.dtype.type(options.action_scale)
        columns["actions"] = (actions / scale).astype(np.float32)
        return columns
    if (low != -1).any() or (high != 1).any():
        columns["actions"] = (2 * (actions - low) / (high - low) - 1).astype(np.float32)
    return columns


def in_range(
    where: str, columns: Columns, action_scale: float | None, action_range: ActionRange | None
) -> tuple[Columns, Bounds | None]:
    """Columns of no file with their actions in [-1, 1], and what -1 and 1 stand for."""
    options = ReadOptions(action_scale=action_scale, action_range=plain_python(action_range))
    check_options(options)
    found = Found("arrays", columns, {})
    return scaled(where, found, options), limits(where, found, options)


def own_range(actions: np.ndarray) -> Bounds:
    """The least and greatest of each action, [A]; of one that never changes, 1 below and above."""
    low, high = actions.min(0), actions.max(0)
    return np.where(low < high, low, low - 1), np.where(low < high, high, high + 1)


def spec_of(columns: Columns, found: Found, bounds: Bounds | None) -> Spec | None:
    """What the file says of its numbers; None where they are neither a vector nor channels."""
    obs = channels.shapes(channels.of(columns, "observations"))
    act, names, actions = columns["actions"].shape[1], found.observation_names, found.action_names
    if not isinstance(obs, Mapping):
        if len(obs) != 1 or not obs[0] or not act:
            return None
        named = len(names) == obs[0]
        units = found.observation_units if named else ()
        obs = (Channel(VECTOR, obs, units=units, names=names if named else ()),)
    low, high = bounds if bounds is not None else ((), ())
    return Spec(
        obs,
        act,
        action_low=each(low, act),
        action_high=each(high, act),
        rate_hz=found.rate_hz,
        action_offset=found.action_offset,
        action_names=actions if len(actions) == act else (),
        action_units=found.action_units if len(actions) == act else (),
    )


def each(bound: Any, count: int) -> tuple[float, ...]:
    """One limit for each action; none where there is none."""
    return tuple(np.broadcast_to(bound, count).astype(float).tolist()) if np.size(bound) else ()


def _bounds(given: Sequence[float] | Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    try:
        low, high = (np.asarray(bound, np.float64) for bound in given)
        if low.ndim > 1 or high.ndim > 1 or not (low < high).all():
            raise ValueError
    except ValueError:
        raise UserError(
            f"action_range={given}: [low, high] is expected, two numbers or one list each for all "
            f"actions, low below high."
        ) from None
    return low, high


def as_list(values: np.ndarray | float) -> list[float]:
    """To four digits, for people."""
    return [float(f"{x:.4g}") for x in np.atleast_1d(values)]


def _refuse(sentence: str) -> NoReturn:
    raise UserError(sentence)

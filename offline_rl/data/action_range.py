"""The action range of a file or of arrays, and the mapping of actions to [-1, 1]."""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from offline_rl.data.checks import ROUNDING, find_precision_losses
from offline_rl.data.formats.common import Bounds, Columns, ParsedFile, ReadOptions
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import ActionRange, FileFormat, to_python
from offline_rl.utils.words import unknown


def check_options(options: ReadOptions) -> None:
    """Check the values of the options. Raises UserError."""
    steps, scale = options.max_episode_steps, options.action_scale
    if options.format is not None and options.format not in get_args(FileFormat):
        raise UserError(unknown("format", options.format, get_args(FileFormat)))
    if options.terminate_on_end and not options.d4rl_compatible:
        raise UserError("terminate_on_end=true needs d4rl_compatible=true.")
    if steps is not None and steps < 1:
        raise UserError(f"max_episode_steps={steps} is not positive. Use 1 or more.")
    if scale is not None and not scale > 0:
        raise UserError(f"action_scale={scale} is not positive. Use a number above 0.")
    if scale is not None and options.action_range is not None:
        raise UserError("action_scale and action_range are both given. Give one of them.")
    if options.action_range is not None and options.action_range != "data":
        _bounds(options.action_range)


def limits(where: str, parsed: ParsedFile, options: ReadOptions) -> Bounds | None:
    """Return the actions that become -1 and 1, in the units of the file.

    They are taken from the options, or else from the file. None if neither states them.
    """
    actions = continuous_actions(parsed, options)
    if options.action_scale is not None:
        return -options.action_scale, options.action_scale
    bounds: Bounds | None
    if options.action_range == "data":
        if actions is None or actions.dtype.kind != "f" or not actions.size:
            return None  # `find_errors` reports why there is no range
        bounds = data_range(actions)
    elif options.action_range is not None:
        bounds = _bounds(options.action_range)
    else:
        extremes = uses_extremes(parsed, options)
        bounds = parsed.action_extremes if extremes else parsed.action_range
    if bounds is None or actions is None or actions.ndim != 2:
        return bounds
    if not np.less(*bounds).all():
        raise UserError(f"{where}: the actions' limits are {bounds}; low must be below high.")
    for bound in map(np.asarray, bounds):
        if bound.ndim and bound.shape != actions.shape[1:]:
            raise UserError(
                f"{where}: limits are given for {bound.size} actions, but the data has "
                f"{actions.shape[1]}. Give one number, or one per action."
            )
    return bounds


def uses_extremes(parsed: ParsedFile, options: ReadOptions) -> bool:
    """Return True if the action limits are the minimum and maximum that the file states.

    This is the case if some actions are outside [-1, 1], and neither the options nor the file
    state limits.
    """
    stated = (options.action_scale, options.action_range, parsed.action_range)
    actions = parsed.columns.get("actions")
    if parsed.action_extremes is None or actions is None or stated != (None, None, None):
        return False
    return actions.dtype.kind == "f" and bool((np.abs(actions) > 1 + ROUNDING).any())


def continuous_actions(parsed: ParsedFile, options: ReadOptions) -> np.ndarray | None:
    """Return the actions; convert integers to floats if the options or the file state a range.

    The result is float64 if float32 would lose precision. Without a range, integers are not
    converted, because they may be discrete actions.
    """
    actions = parsed.columns.get("actions")
    stated = (options.action_scale, options.action_range, parsed.action_range)
    if actions is None or actions.dtype.kind not in "iu" or stated == (None, None, None):
        return actions
    return actions.astype(np.float64 if find_precision_losses(actions) else np.float32)


def scale_actions(where: str, parsed: ParsedFile, options: ReadOptions) -> Columns:
    """Return the columns with actions scaled so that their limits, if known, become -1 and 1."""
    columns, bounds = dict(parsed.columns), limits(where, parsed, options)
    actions = continuous_actions(parsed, options)
    if bounds is None or actions is None or actions.dtype.kind != "f" or actions.ndim != 2:
        return columns  # `find_errors` reports invalid actions
    low, high = (np.asarray(b, np.float64) for b in bounds)
    lost = find_precision_losses(actions - (low + high) / 2) if actions.dtype == np.float64 else []
    if any(loss.refused for loss in lost):
        return columns  # centering does not restore the precision; `find_errors` reports it
    if options.action_scale is not None:
        scale = actions.dtype.type(options.action_scale)
        columns["actions"] = (actions / scale).astype(np.float32)
        return columns
    if (low != -1).any() or (high != 1).any():
        columns["actions"] = (2 * (actions - low) / (high - low) - 1).astype(np.float32)
    return columns


def scale_arrays(
    where: str, columns: Columns, action_scale: float | None, action_range: ActionRange | None
) -> tuple[Columns, Bounds | None]:
    """Scale the actions of in-memory arrays; return the columns and the limits of the actions."""
    options = ReadOptions(action_scale=action_scale, action_range=to_python(action_range))
    check_options(options)
    parsed = ParsedFile("arrays", columns, {})
    return scale_actions(where, parsed, options), limits(where, parsed, options)


def data_range(actions: np.ndarray) -> Bounds:
    """Return the minimum and maximum of each action, [A]; for a constant c, c - 1 and c + 1."""
    low, high = actions.min(0), actions.max(0)
    return np.where(low < high, low, low - 1), np.where(low < high, high, high + 1)


def _bounds(pair: Sequence[float] | Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    try:
        low, high = (np.asarray(bound, np.float64) for bound in pair)
        if low.ndim > 1 or high.ndim > 1 or not (low < high).all():
            raise ValueError
    except ValueError:
        raise UserError(
            f"action_range={pair} is not [low, high]. Give two numbers, or two lists with a number "
            f"per action, with low below high."
        ) from None
    return low, high

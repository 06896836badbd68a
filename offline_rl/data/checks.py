"""Checks of the arrays of a data set. Each error is one sentence with the file's names of arrays.

`Dataset.from_arrays` raises the first error; `data check` reports all errors.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

FLAGS = ("terminated", "truncated", "continues")
SCALARS = ("rewards", *FLAGS, "costs")  # columns with one number per step
COLORS = (1, 3, 4)  # valid numbers of color channels
TOLERANCE = 1e-5  # float32 rounding can move a bounded action this far beyond 1
ROUNDING = 2**-7  # bfloat16 rounding can move it this far beyond 1: one step of bfloat16
Bounds = tuple[np.ndarray | float, np.ndarray | float]  # actions that are scaled to -1 and 1

# Policies compute in float32, which has 24 significant bits. The distance between neighboring
# numbers is 0.5 near 5,572,094, and 128 near today's Unix time. A column with such an offset loses
# its small changes. A relative error is the rounding error divided by the column's range.
LOST_SHARE = 1e-3  # relative error above which a column has lost its precision
LOST_OF_BULK = 2.5e-3  # the same limit if the range is measured without the tails (outliers)
TAILS = 0.05  # fraction of the values at each end that may be outliers
# A column is refused only if its absolute error exceeds LOST_REFUSED and its range exceeds AT_REST.
# Otherwise it gives at most a note.
LOST_REFUSED = 1e-6  # simulated joints at rest have smaller errors
AT_REST = 1e-5  # joints at rest, in degrees or mm, have smaller ranges
LOST_NOTED = 1e-7  # smaller absolute errors give no note
CONSTANT = 1e-10  # a column whose range / largest absolute value is smaller counts as constant
EXACT = 2**24  # integers up to this are exact in float32


def find_errors(
    columns: Mapping[str, np.ndarray],
    where: str,
    names: Mapping[str, str],
    bounds: Bounds | None = None,
    components: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the errors in `columns`, arrays by the argument names of `Dataset.from_arrays`.

    names: column -> the file's name of it.
    bounds: the limits of the actions, if these were already mapped to [-1, 1].
    components: names of the components of an observation, if the file has them.
    """
    label = {column: names.get(column, column) for column in columns}
    valid: dict[str, np.ndarray] = {}
    for column, array in columns.items():
        error = _check_dtype(array) or (
            None
            if column in FLAGS
            else _check_precision(column, array, component_names(column, components))
        )
        error = error or (_check_discrete(column, array) if bounds is None else None)
        error = error or _check_shape(column, array) or _check_image(column, array)
        if error:
            yield f"{where}: {label[column]} {error}"
        else:
            valid[column] = array

    rows = {
        column: len(array) for column, array in valid.items() if not column.startswith("final_")
    }
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{label[column]} {count:,}" for column, count in rows.items())
        yield f"{where}: row counts differ ({counts}); each array needs one row for every step."
    elif 0 in rows.values():
        yield f"{where}: the arrays have no rows. Check that the recording was saved completely."
        return

    yield from _compare_shapes(valid, where, label)
    for column, array in valid.items():
        if column in FLAGS:
            invalid = (array != 0) & (array != 1)
            if invalid.any():
                row = int(invalid.argmax())
                yield (
                    f"{where}: {label[column]} is {array[row]} in row {row:,} "
                    f"({invalid.sum():,} such rows); a flag must be 0 or 1."
                )
        elif error := _check_finite(array):
            yield f"{where}: {label[column]} {error}"

    if (actions := valid.get("actions")) is not None and actions.size:
        low, high = float(np.nanmin(actions)), float(np.nanmax(actions))
        worst = max(-low, high)
        if np.isfinite(worst) and worst > 1 + ROUNDING:
            yield f"{where}: {label['actions']} {_describe_range(actions, low, high, bounds)}"
    if rows.get("terminated", -1) == rows.get("truncated", -2):
        both = (valid["terminated"] != 0) & (valid["truncated"] != 0)
        if both.any():
            yield (
                f"{where}: {label['terminated']} and {label['truncated']} are both set in row "
                f"{int(both.argmax()):,} ({both.sum():,} such rows); a step either ends the task "
                f"or runs out of time. Clear one of the two."
            )


def describe_overshoot(actions: np.ndarray) -> str | None:
    """Return a note if clipping to [-1, 1] changes actions by more than float32 rounding does.

    The note follows the name of the array in a message. actions: [N, A], in [-1, 1] except for
    rounding.
    """
    beyond = float(np.abs(actions).max()) - 1 if actions.size else 0.0
    if not beyond > TOLERANCE:
        return None
    rows = int((np.abs(actions) > 1).any(1).sum())
    share = f"{rows:,} of {len(actions):,} rows"
    return f"exceed their limits by up to {beyond:.1%} (rounding) and are clipped in {share}"


def _describe_range(actions: np.ndarray, low: float, high: float, bounds: Bounds | None) -> str:
    """Return an error, to follow the name of the array, for actions outside [-1, 1]."""
    reach = f"{list(actions.shape)} reach from {low:.7g} to {high:.7g}"
    if bounds is None:
        return (
            f"{reach}; they must lie in [-1, 1]. If they are in other units, pass "
            f"action_scale=..., the action that becomes 1, or action_range=[low,high]. Otherwise "
            f"clip them."
        )
    column = int(np.nanmax(np.abs(actions), axis=0).argmax())
    ends = (np.broadcast_to(bound, actions.shape[1:])[column] for bound in bounds)
    lowest, highest = (float(end) for end in ends)
    values = [
        lowest + (highest - lowest) * (float(x) + 1) / 2
        for x in (np.nanmin(actions[:, column]), np.nanmax(actions[:, column]))
    ]
    return (
        f"{list(actions.shape)} leave their limits: column {column} reaches from {values[0]:.7g} "
        f"to {values[1]:.7g}, and the limits are {lowest:.7g} and {highest:.7g}. Pass wider "
        f"limits, action_range=[low,high], or clip the actions."
    )


def component_names(column: str, components: Sequence[str]) -> Sequence[str]:
    """Return the names of an observation's components if `column` is an observation."""
    return components if column.endswith("observations") else ()


def _check_dtype(array: np.ndarray) -> str | None:
    if array.dtype.kind not in "fiub":
        return f"has type {array.dtype}; numbers are expected."
    return None


def _check_precision(column: str, array: np.ndarray, components: Sequence[str]) -> str | None:
    lost = next((loss for loss in find_precision_losses(array) if loss.refused), None)
    if lost is None:
        return None
    if column == "actions":
        low, high = lost.ends
        remedy = f"Set action_range= to a range close to the values, such as [{low},{high}]."
    else:
        drop = ", or drop the column" if math.prod(array.shape[1:]) > 1 else ""
        remedy = f"Subtract {lost.ends[0]} in the data and in the environment{drop}."
    return f"{lost.describe(array, components)}. {remedy}"


def _check_discrete(column: str, array: np.ndarray) -> str | None:
    """Return an error if the actions are discrete: one integer per step."""
    if column != "actions" or array.size != len(array) or not len(array) or array.dtype.kind == "b":
        return None
    with np.errstate(invalid="ignore"):
        whole = (array == np.floor(array)).all() and array.min() >= 0
    if not whole or (array.dtype.kind == "f" and array.max() <= 1):
        return None
    return (
        f"are whole numbers from {array.min():g} to {array.max():g}, one per step. These are "
        f"discrete actions, which no algorithm here supports. If they are continuous, pass "
        f"action_range=[low,high], the actions that -1 and 1 stand for."
    )


def _check_shape(column: str, array: np.ndarray) -> str | None:
    shape = list(array.shape)
    if column in SCALARS and array.ndim != 1:
        return f"has shape {shape}; one number per step, [N], is expected."
    if column == "actions" and array.ndim != 2:
        remedy = "Flatten each step's action to a vector."
        remedy = "Give each step a vector of one: reshape(-1, 1)." if array.ndim == 1 else remedy
        return f"have shape {shape}; [N, A] is expected. {remedy}"
    if column.partition("/")[0].endswith("observations") and array.ndim < 2:
        return f"have shape {shape}; [N, O] is expected. Reshape a scalar per step to [N, 1]."
    if 0 in shape[1:]:
        return f"have shape {shape}; each step needs at least one number. Leave the array out."
    return None


def _check_image(column: str, array: np.ndarray) -> str | None:
    """Return an error if a channel that looks like images is not [N, H, W, C] uint8."""
    if "/" not in column or (array.ndim != 4 and array.dtype != np.uint8):
        return None
    shape = list(array.shape)
    if array.ndim != 4 or (shape[-1] not in COLORS):
        channels_first = array.ndim == 4 and shape[1] in COLORS
        remedy = "Move the colors to the end." if channels_first else "Reshape it accordingly."
        return (
            f"has shape {shape}; images are [N, height, width, colors], with 1, 3 or 4 colors. "
            f"{remedy}"
        )
    if array.dtype != np.uint8:
        return f"has type {array.dtype}; images are uint8, from 0 to 255. Convert them."
    return None


def _compare_shapes(
    valid: Mapping[str, np.ndarray], where: str, label: Mapping[str, str]
) -> Iterator[str]:
    """Yield an error for next or final observations that do not match the observations."""
    observed = [column for column in label if column.startswith("observations")]
    for which in ("next_", "final_") if observed else ():
        names = {column for column in label if column.startswith(f"{which}observations")}
        if names and (unmatched := names ^ {which + column for column in observed}):
            first = sorted(unmatched)[0]
            problem = "has no matching observations" if first in names else "is missing"
            yield f"{where}: {first} {problem}. {which}observations need the same channels."
            continue
        for column in names & valid.keys():
            counterpart = column.removeprefix(which)
            if counterpart not in valid:
                continue
            shape, expected = list(valid[column].shape[1:]), list(valid[counterpart].shape[1:])
            if shape != expected:
                yield (
                    f"{where}: {label[column]} have shape {shape} per step, and "
                    f"{label[counterpart]} have {expected}. The two shapes must be equal."
                )


def _check_finite(array: np.ndarray) -> str | None:
    if array.dtype.kind != "f" or not array.size:
        return None
    if np.isfinite(array.min()) and np.isfinite(array.max()):  # NaN passes through min and max
        return None
    bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    row = int(bad.argmax())
    values = array[row].reshape(-1)
    value = values[~np.isfinite(values)][0]
    return (
        f"has {value} first in row {row:,}, and {bad.sum():,} of {len(array):,} rows are not "
        f"finite. Remove these episodes or correct the recording."
    )


class PrecisionLoss(NamedTuple):
    """A column whose small changes are lost in float32."""

    column: int | None  # index of the column; None: the array has one number per step
    low: float
    high: float
    step: float  # median of the nonzero changes between consecutive rows
    resolved: float  # distance between neighboring float32 numbers near the column's values
    distinct: int  # number of distinct values that remain in float32
    refused: bool  # the loss is so large that the data is refused

    @property
    def ends(self) -> tuple[str, str]:
        """`low` and `high` as text, rounded outward to the first digit of `high - low`."""
        unit = 10.0 ** math.floor(math.log10(self.high - self.low))
        low, high = math.floor(self.low / unit) * unit, math.ceil(self.high / unit) * unit
        return f"{low:.15g}", f"{high:.15g}"

    def describe(self, array: np.ndarray, components: Sequence[str] = ()) -> str:
        """Return a sentence about the loss, without a period. components: names of the columns."""
        where = "" if self.column is None else f"column {self.column} "
        if self.column is not None and [*array.shape[1:]] == [len(components)]:
            where += f"({components[self.column]}) "
        return (
            f"{where}{'change' if self.column is None else 'changes'} by {self.step:.3g} per step "
            f"near {self.ends[0]}; float32 resolves only {self.resolved:.3g}, so {self.distinct:,}"
            f" distinct {'value remains' if self.distinct == 1 else 'values remain'}"
        )


def find_precision_losses(array: np.ndarray) -> list[PrecisionLoss]:
    """Return the columns of an array [N, ...] that lose precision in float32."""
    kind = array.dtype.kind
    if not array.size or kind not in "fiu" or np.can_cast(array.dtype, np.float32):
        return []
    flat = array.reshape(len(array), -1)
    low, high = flat.min(0).astype(np.float64), flat.max(0).astype(np.float64)
    size = np.maximum(np.abs(low), np.abs(high))
    if kind in "iu" and size.max() <= EXACT:
        return []
    if not (size <= np.finfo(np.float32).max).all():
        return []  # infinite or NaN in float32, which another check refuses
    resolved = np.spacing(size.astype(np.float32)).astype(np.float64)
    error, extent = resolved / 2, high - low  # the error is an upper bound
    suspected = (error > LOST_NOTED) & (extent > CONSTANT * size)
    suspected &= (error > LOST_REFUSED) | (error > LOST_SHARE * extent)
    columns = [int(column) for column in np.flatnonzero(suspected)]
    losses = (_measure_loss(flat[:, column], column) for column in columns)
    lost = [loss for loss in losses if loss is not None]
    return lost if array.ndim > 1 else [loss._replace(column=None) for loss in lost]


def _measure_loss(values: np.ndarray, column: int) -> PrecisionLoss | None:
    exact = np.sort(values.astype(np.float64))
    error = np.abs(exact - exact.astype(np.float32))
    if error.max() <= LOST_NOTED:
        return None
    changes = np.abs(np.diff(values.astype(np.float64)))
    step = float(np.median(changes[changes > 0]))
    coarse = error.max() > LOST_SHARE * (exact[-1] - exact[0])
    moves = exact[-1] - exact[0] > AT_REST
    refused, tail = bool(coarse and moves and error.max() > LOST_REFUSED), 0
    if not refused and len(exact) > 2:  # outliers may hide the loss
        tail = max(1, int(TAILS * len(exact)))
        bulk, worst = exact[tail:-tail], error[tail:-tail].max()
        extent = bulk[-1] - bulk[0]
        varies = extent > max(AT_REST, CONSTANT * np.abs(bulk).max())
        refused = bool(varies and worst > max(LOST_OF_BULK * extent, LOST_REFUSED))
    if not refused:
        tail, typical = 0, float(np.median(error))
        if not coarse and (typical <= LOST_REFUSED or typical <= step):
            return None
    low, high = float(exact[tail]), float(exact[len(exact) - 1 - tail])
    resolved = float(np.spacing(np.float32(max(-low, high))))
    distinct = len(np.unique(exact.astype(np.float32)))
    return PrecisionLoss(column, low, high, step, resolved, distinct, refused)

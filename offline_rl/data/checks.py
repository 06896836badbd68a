"""What can be wrong with the arrays of a data set, one sentence for each fault.

`Dataset.from_arrays` refuses at the first sentence; `check` collects them all. The sentences name
the arrays as the file does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

FLAGS = ("terminated", "truncated")
SCALARS = ("rewards", *FLAGS, "costs")  # one number a step
COLORS = (1, 3, 4)  # numbers in a pixel
TOLERANCE = 1e-5  # float32 arithmetic of a bounded action, as of its units, may overshoot by this
ROUNDING = 2**-7  # and arithmetic in bfloat16, the coarsest type, by one step above 1
Bounds = tuple[np.ndarray | float, np.ndarray | float]  # what actions of -1 and 1 stand for

# Float32, in which policies compute, has 24 significant bits: near 5,572,094 it resolves 0.5, near
# the Unix time of today 128. A column with such an offset loses its small changes.
LOST_SHARE = 1e-3  # of its range: a column with larger rounding errors has lost its resolution
LOST_OF_BULK = 2.5e-3  # the same without outliers: of the range of the values between the tails
TAILS = 0.05  # share of the values at either end that may be outliers
LOST_REFUSED = 1e-6  # smaller errors are noted only: simulators' joints at rest have them
AT_REST = 1e-5  # so are those of a smaller range: joints at rest again, in degrees or millimeters
LOST_NOTED = 1e-7  # and still smaller ones are not even noted
CONSTANT = 1e-10  # of its size: a smaller range is the rounding of float64
EXACT = 2**24  # whole numbers up to this are exact in float32


def find_errors(
    columns: Mapping[str, np.ndarray],
    where: str,
    names: Mapping[str, str],
    bounds: Bounds | None = None,
    numbers: Sequence[str] = (),
) -> Iterator[str]:
    """Sentences on `columns` (our words -> arrays); `names` translates our words to the file's.

    bounds: the limits by which the actions were mapped to [-1, 1] already.
    numbers: names of the numbers of an observation, if the file has them.
    """
    named = {word: names.get(word, word) for word in columns}
    sound: dict[str, np.ndarray] = {}
    for word, array in columns.items():
        fault = _kind(array) or (
            None if word in FLAGS else _resolution(word, array, component_names(word, numbers))
        )
        fault = fault or (_choice(word, array) if bounds is None else None)
        fault = fault or _shape(word, array) or _picture(word, array)
        if fault:
            yield f"{where}: {named[word]} {fault}"
        else:
            sound[word] = array

    rows = {word: len(array) for word, array in sound.items() if not word.startswith("final_")}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{named[word]} {count:,}" for word, count in rows.items())
        yield f"{where}: row counts differ ({counts}); each array needs one row for every step."
    elif 0 in rows.values():
        yield f"{where}: there are no rows. Check that the recording was saved completely."
        return

    yield from _widths(sound, where, named)
    for word, array in sound.items():
        if word in FLAGS:
            odd = (array != 0) & (array != 1)
            if odd.any():
                row = int(odd.argmax())
                yield (
                    f"{where}: {named[word]} is {array[row]} in row {row:,} ({odd.sum():,} such "
                    f"rows); a flag must be 0 or 1."
                )
        elif fault := _not_finite(array):
            yield f"{where}: {named[word]} {fault}"

    if (actions := sound.get("actions")) is not None and actions.size:
        low, high = float(np.nanmin(actions)), float(np.nanmax(actions))
        worst = max(-low, high)
        if np.isfinite(worst) and worst > 1 + ROUNDING:
            yield f"{where}: {named['actions']} {_outside(actions, low, high, bounds)}"
    if rows.get("terminated", -1) == rows.get("truncated", -2):
        both = (sound["terminated"] != 0) & (sound["truncated"] != 0)
        if both.any():
            yield (
                f"{where}: {named['terminated']} and {named['truncated']} are both set in row "
                f"{int(both.argmax()):,} ({both.sum():,} such rows); a step either ends the task "
                f"or runs out of time. Clear one of the two."
            )


def describe_overshoot(actions: np.ndarray) -> str | None:
    """Return a note, without the array's name, if actions are clipped by more than float32 errors.

    actions: [N, A], scaled to [-1, 1] but for rounding.
    """
    beyond = float(np.abs(actions).max()) - 1 if actions.size else 0.0
    if not beyond > TOLERANCE:
        return None
    rows = int((np.abs(actions) > 1).any(1).sum())
    share = f"{rows:,} of {len(actions):,} rows"
    return f"exceed their limits by up to {beyond:.1%}, as by rounding, and are clipped ({share})"


def _outside(actions: np.ndarray, low: float, high: float, bounds: Bounds | None) -> str:
    """Describe actions that leave [-1, 1]."""
    reach = f"{list(actions.shape)} reach from {low:.7g} to {high:.7g}"
    if bounds is None:
        return (
            f"{reach}; they must lie in [-1, 1]. If they are in other units, pass "
            f"action_scale=..., the size that 1 stands for, or action_range=[low,high]. Otherwise "
            f"clip them."
        )
    column = int(np.nanmax(np.abs(actions), axis=0).argmax())
    ends = (np.broadcast_to(bound, actions.shape[1:])[column] for bound in bounds)
    least, most = (float(end) for end in ends)
    values = [
        least + (most - least) * (float(x) + 1) / 2
        for x in (np.nanmin(actions[:, column]), np.nanmax(actions[:, column]))
    ]
    return (
        f"{list(actions.shape)} leave their limits: column {column} reaches from {values[0]:.7g} "
        f"to {values[1]:.7g}, and the limits are {least:.7g} and {most:.7g}. Pass wider limits, "
        f"action_range=[low,high], or clip the actions."
    )


def component_names(word: str, numbers: Sequence[str]) -> Sequence[str]:
    """Return the names of the numbers of an observation, if `word` is one."""
    return numbers if word.endswith("observations") else ()


def _kind(array: np.ndarray) -> str | None:
    if array.dtype.kind not in "fiub":
        return f"has type {array.dtype}; numbers are expected."
    return None


def _resolution(word: str, array: np.ndarray, numbers: Sequence[str]) -> str | None:
    lost = next((loss for loss in find_precision_losses(array) if loss.refused), None)
    if lost is None:
        return None
    if word == "actions":
        low, high = lost.ends
        remedy = f"Set action_range= to a range close to the values, such as [{low},{high}]."
    else:
        drop = ", or drop the column" if math.prod(array.shape[1:]) > 1 else ""
        remedy = f"Subtract {lost.ends[0]} in the data and in the environment{drop}."
    return f"{lost.describe(array, numbers)}. {remedy}"


def _choice(word: str, array: np.ndarray) -> str | None:
    """Discrete actions: one whole number a step."""
    if word != "actions" or array.size != len(array) or not len(array) or array.dtype.kind == "b":
        return None
    with np.errstate(invalid="ignore"):
        whole = (array == np.floor(array)).all() and array.min() >= 0
    if not whole or (array.dtype.kind == "f" and array.max() <= 1):
        return None
    return (
        f"are whole numbers from {array.min():g} to {array.max():g}, one a step: discrete actions, "
        f"which nothing here learns. If they are amounts, pass action_range=[low,high], what -1 "
        f"and 1 stand for."
    )


def _shape(word: str, array: np.ndarray) -> str | None:
    shape = list(array.shape)
    if word in SCALARS and array.ndim != 1:
        return f"has shape {shape}; one number a step, [N], is expected."
    if word == "actions" and array.ndim != 2:
        remedy = "Flatten each step's action to a vector."
        remedy = "Give each step a vector of one: reshape(-1, 1)." if array.ndim == 1 else remedy
        return f"have shape {shape}; [N, A] is expected. {remedy}"
    if word.partition("/")[0].endswith("observations") and array.ndim < 2:
        return f"have shape {shape}; [N, O] is expected. Give each step a vector, however short."
    if 0 in shape[1:]:
        return f"have shape {shape}; each step needs one number at least."
    return None


def _picture(word: str, array: np.ndarray) -> str | None:
    """Of a named channel: a vector's numbers, or [N, H, W, C] of uint8."""
    if "/" not in word or (array.ndim != 4 and array.dtype != np.uint8):
        return None
    shape = list(array.shape)
    if array.ndim != 4 or (shape[-1] not in COLORS):
        first = array.ndim == 4 and shape[1] in COLORS
        remedy = "Move the colors to the end." if first else "Cut or fold its axes so."
        return (
            f"has shape {shape}; pictures are [N, height, width, colors], of 1, 3 or 4 colors. "
            f"{remedy}"
        )
    if array.dtype != np.uint8:
        return f"has type {array.dtype}; pictures are uint8, from 0 to 255. Convert them."
    return None


def _widths(sound: Mapping[str, np.ndarray], where: str, named: Mapping[str, str]) -> Iterator[str]:
    """The true next observations must look like the observations."""
    observed = [word for word in named if word.startswith("observations")]
    for which in ("next_", "final_") if observed else ():
        words = {word for word in named if word.startswith(f"{which}observations")}
        if words and (odd := words ^ {which + word for word in observed}):
            lone = sorted(odd)[0]
            yield (
                f"{where}: {lone} is {'without its counterpart' if lone in words else 'missing'}: "
                f"{', '.join(observed)} need one each."
            )
            continue
        for word in words & sound.keys():
            own = word.removeprefix(which)
            if own not in sound:
                continue
            found, expected = list(sound[word].shape[1:]), list(sound[own].shape[1:])
            if found != expected:
                yield (
                    f"{where}: {named[word]} have {found} numbers a step and {named[own]} "
                    f"{expected}; the two must be alike."
                )


def _not_finite(array: np.ndarray) -> str | None:
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
        f"finite. Remove these episodes or mend the recording."
    )


class PrecisionLoss(NamedTuple):
    """A column whose changes are lost in float32."""

    column: int | None  # None: the array has one number a step
    low: float
    high: float
    step: float  # median change between consecutive rows, of those that change
    resolved: float  # distance between neighboring float32 numbers there
    distinct: int  # values that are left in float32
    refused: bool  # too much is lost to learn from

    @property
    def ends(self) -> tuple[str, str]:
        """Low and high, rounded outward to a power of ten that their difference exceeds."""
        unit = 10.0 ** math.floor(math.log10(self.high - self.low))
        low, high = math.floor(self.low / unit) * unit, math.ceil(self.high / unit) * unit
        return f"{low:.15g}", f"{high:.15g}"

    def describe(self, array: np.ndarray, numbers: Sequence[str] = ()) -> str:
        """Return a sentence without a period; numbers: names of the array's, where it has them."""
        where = "" if self.column is None else f"column {self.column} "
        if self.column is not None and [*array.shape[1:]] == [len(numbers)]:
            where += f"({numbers[self.column]}) "
        return (
            f"{where}{'change' if self.column is None else 'changes'} by {self.step:.3g} per step "
            f"near {self.ends[0]}; float32 resolves only {self.resolved:.3g}, so {self.distinct:,}"
            f" distinct {'value remains' if self.distinct == 1 else 'values remain'}"
        )


def find_precision_losses(array: np.ndarray) -> list[PrecisionLoss]:
    """Return the columns of an array [N, ...] that lose their resolution in float32."""
    kind = array.dtype.kind
    if not array.size or kind not in "fiu" or np.can_cast(array.dtype, np.float32):
        return []
    flat = array.reshape(len(array), -1)
    low, high = flat.min(0).astype(np.float64), flat.max(0).astype(np.float64)
    size = np.maximum(np.abs(low), np.abs(high))
    if kind in "iu" and size.max() <= EXACT:
        return []
    if not (size <= np.finfo(np.float32).max).all():
        return []  # infinite or NaN in float32, and refused as such
    resolved = np.spacing(size.astype(np.float32)).astype(np.float64)
    error, extent = resolved / 2, high - low  # the largest error that there can be
    suspected = (error > LOST_NOTED) & (extent > CONSTANT * size)
    suspected &= (error > LOST_REFUSED) | (error > LOST_SHARE * extent)
    columns = [int(column) for column in np.flatnonzero(suspected)]
    found = (_loss(flat[:, column], column) for column in columns)
    lost = [loss for loss in found if loss is not None]
    return lost if array.ndim > 1 else [loss._replace(column=None) for loss in lost]


def _loss(values: np.ndarray, column: int) -> PrecisionLoss | None:
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

"""Check of how much of a column's resolution is left in float32, in which policies compute.

Float32 has 24 significant bits: near 5,572,094 it resolves 0.5, near the Unix time of today 128. A
column with such an offset loses its small changes when it is converted.
"""

from typing import NamedTuple

import numpy as np

SHARE = 1e-3  # of its range: a column with larger rounding errors has lost its resolution
REFUSED = 1e-6  # smaller errors are noted only: a joint that never moves has them in simulators
NOTED = 1e-7  # and still smaller ones are not even noted
CONSTANT = 1e-10  # of its size: a smaller range is the rounding of float64
EXACT = 2**24  # whole numbers up to this are exact in float32


class Loss(NamedTuple):
    """A column whose changes are lost in float32."""

    column: int | None  # None: the array has one number a step
    low: float
    high: float
    step: float  # median change between consecutive rows, of those that change
    resolved: float  # distance between neighboring float32 numbers there
    distinct: int  # values that are left in float32
    refused: bool  # too much is lost to learn from

    def __str__(self) -> str:
        where = "" if self.column is None else f"column {self.column} "
        return (
            f"{where}between {self.low:.15g} and {self.high:.15g} "
            f"{'change' if self.column is None else 'changes'} by {self.step:.3g} a step, but "
            f"float32, in which policies compute, resolves {self.resolved:.3g} there: distinct "
            f"values left: {self.distinct:,}"
        )


def losses(array: np.ndarray) -> list[Loss]:
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
    suspected = (error > NOTED) & (extent > CONSTANT * size)
    suspected &= (error > REFUSED) | (error > SHARE * extent)
    columns = [int(column) for column in np.flatnonzero(suspected)]
    found = (_loss(flat[:, column], column, resolved[column]) for column in columns)
    lost = [loss for loss in found if loss is not None]
    return lost if array.ndim > 1 else [loss._replace(column=None) for loss in lost]


def _loss(values: np.ndarray, column: int, resolved: float) -> Loss | None:
    exact = values.astype(np.float64)
    rounded = exact.astype(np.float32)
    error = float(np.abs(exact - rounded).max())
    low, high = float(exact.min()), float(exact.max())
    if error <= NOTED:
        return None
    changes = np.abs(np.diff(exact))
    step = float(np.median(changes[changes > 0]))
    coarse = error > SHARE * (high - low)
    typical = float(np.median(np.abs(exact - rounded)))  # whatever single outliers do
    if not coarse and (typical <= REFUSED or typical <= step):
        return None
    refused = coarse and error > REFUSED
    return Loss(column, low, high, step, float(resolved), len(np.unique(rounded)), refused)

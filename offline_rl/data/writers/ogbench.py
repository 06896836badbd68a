"""Writer of OGBench's NPZ files: trajectories without rewards. The reader describes the layout.

`seohongpark/ogbench:data_gen_scripts/generate_*.py` wrote the published files.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically

DTYPES = {
    "observations": np.dtype(np.float32),
    "actions": np.dtype(np.float32),
    "terminals": np.dtype(bool),  # True in the last row of a trajectory: the final state
    "qpos": np.dtype(np.float32),
    "qvel": np.dtype(np.float32),
    "button_states": np.dtype(np.int64),  # only in scenes and puzzles
}
OPTIONAL = ("button_states",)


def write_ogbench(columns: Mapping[str, np.ndarray], path: str | Path) -> Path:
    """Write columns [N, ...] as a compressed NPZ archive in OGBench's layout; return the path.

    Equal columns give equal bytes (with the same versions of NumPy and zlib).
    Raises UserError if a column is missing, unknown or not finite, or has another dtype or length,
    if the last row is not terminal, or if the file cannot be written. No partial file remains.
    """
    path = Path(path)
    for name, array in columns.items():
        if name not in DTYPES:
            raise UserError(f"{path}: OGBench's layout has no column {name}. Remove it.")
        if array.dtype != DTYPES[name] or len(array) != len(columns["terminals"]):
            raise UserError(
                f"{path}: {name} has {len(array):,} rows of {array.dtype}. OGBench's layout needs "
                f"one row of {DTYPES[name]} per terminal."
            )
        if not np.isfinite(array).all():
            raise UserError(f"{path}: {name} is not finite. Remove the trajectories with NaN.")
    if missing := [name for name in DTYPES if name not in columns and name not in OPTIONAL]:
        raise UserError(f"{path}: OGBench's layout needs a column {missing[0]}. Add it.")
    if not columns["terminals"][-1:].all():
        raise UserError(f"{path}: the last trajectory has no terminal row. Mark its final state.")

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **dict(columns))  # type: ignore[arg-type]

    write_atomically(path, save)
    return path

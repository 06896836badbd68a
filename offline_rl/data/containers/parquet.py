"""Columns of Parquet files, read as arrays with one row per step; encoded images are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.modules import import_extra


@dataclass(frozen=True)
class Table:
    """Parquet files with the same columns, read in sequence."""

    where: str
    files: Sequence[Path]

    def keys(self) -> tuple[str, ...]:
        """Return the columns of the first file."""
        with self._open(self.files[0]) as file:
            return tuple(file.schema_arrow.names)

    def get(self, key: str) -> np.ndarray:
        """Return a column, [N, ...]. Raises ValueError, KeyError or OSError if it is unreadable."""
        parts = []
        for path in self.files:
            with self._open(path) as file:
                parts.append(_array(file.read(columns=[key]).column(key)))
        return np.concatenate(parts)

    def _open(self, path: Path) -> Any:
        parquet = import_extra("pyarrow.parquet", "lerobot", f"{self.where}: reading Parquet")
        return parquet.ParquetFile(path)


def _array(column: Any) -> np.ndarray:
    import pyarrow
    import pyarrow.compute

    types = pyarrow.types
    if column.null_count:
        raise ValueError(f"{column.null_count:,} of {len(column):,} cells are empty")
    cells, shape = column.combine_chunks(), [len(column)]
    if isinstance(cells, pyarrow.ChunkedArray):  # the file has no rows
        cells = pyarrow.concat_arrays(cells.chunks or [pyarrow.array([], column.type)])
    if types.is_struct(cells.type):
        return _decode_images(cells.field("bytes").to_pylist())
    while types.is_list(cells.type) or types.is_fixed_size_list(cells.type):
        lengths = pyarrow.compute.list_value_length(cells).unique().to_pylist()
        if len(lengths) > 1:
            raise ValueError(f"lists of different lengths, {sorted(lengths)[:4]}")
        shape.append(lengths[0] if lengths else 0)
        cells = cells.flatten()
    return cells.to_numpy(zero_copy_only=False).reshape(shape)


def _decode_images(encoded: list[bytes | None]) -> np.ndarray:
    """Decode images to [N, H, W, C] uint8."""
    import imageio.v3

    contents = [content for content in encoded if content is not None]
    if missing := len(encoded) - len(contents):
        raise ValueError(f"{missing:,} images are separate files and not in the table")
    images = [np.asarray(imageio.v3.imread(content)) for content in contents]
    if len(shapes := sorted({image.shape for image in images})) > 1:
        raise ValueError(f"images of different sizes, {[list(shape) for shape in shapes[:2]]}")
    return np.stack(images)

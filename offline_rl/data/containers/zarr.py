"""Zarr stores of formats 2 and 3, in a folder or a ZIP archive, read with zarr-python.

An array is opened when it is requested. Its metadata are checked first: the type must be a number,
and all codecs must be in `CODECS`. That list leaves out a codec of numcodecs that unpickles data.
"""

import contextlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import import_extra

CODECS: tuple[str, ...] = (
    "blosc",
    "zlib",
    "gzip",
    "bz2",
    "lzma",
    "zstd",
    "lz4",
    "shuffle",
    "delta",
    "crc32",
)
CODECS += ("crc32c", "bytes", "transpose", "sharding_indexed")
FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
FAULTS += (zipfile.BadZipFile, zlib.error)
IS_GROUP = re.compile(rb'"node_type"\s*:\s*"group"')


@dataclass(frozen=True)
class Group:
    """The arrays of a store, by path, such as "meta/episode_ends"."""

    where: str
    names: frozenset[str]  # names of the files in the store
    content: Callable[[str], bytes]  # bytes of a file
    opened: Any  # the zarr.Group

    def keys(self) -> tuple[str, ...]:
        """Return the paths of all arrays."""
        end = f"/{self._file}"
        paths = [name.removesuffix(end) for name in self.names if name.endswith(end)]
        with _explain_errors(f"{self.where}: the Zarr store"):
            return tuple(sorted(p for p in paths if not IS_GROUP.search(self._text(p))))

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        with _explain_errors(f"{self.where}: {key}"):
            return tuple(int(length) for length in json.loads(self._text(key))["shape"])

    def count_missing(self, key: str) -> int:
        """Return how many of the array's chunks, or shards, have no file."""
        array = self._array(key)
        sizes = zip(array.shape, array.shards or array.chunks, strict=True)
        indices = np.ndindex(*(-(-length // size) for length, size in sizes))
        name = array.metadata.encode_chunk_key
        return sum(f"{key}/{name(index)}" not in self.names for index in indices)

    def get(self, key: str) -> np.ndarray:
        """Read an array. Raises ValueError, RuntimeError or OSError if it is damaged."""
        return np.asarray(self._array(key)[...])

    def close(self) -> None:
        """Close the store."""
        self.opened.store.close()

    @property
    def _file(self) -> str:
        """Name of the metadata file of an array (and, in format 3, of a group)."""
        return ".zarray" if self.opened.metadata.zarr_format == 2 else "zarr.json"

    def _text(self, key: str) -> bytes:
        return self.content(f"{key}/{self._file}")

    def _array(self, key: str) -> Any:
        with _explain_errors(f"{self.where}: {key}"):
            meta = json.loads(self._text(key))
            kind = meta["dtype" if self._file == ".zarray" else "data_type"]
            if not _is_number(kind):
                raise UserError(f"{self.where}: {key} has type {kind}; numbers are expected.")
            for codec in _codecs(meta):
                if codec.removeprefix("numcodecs.") not in CODECS:
                    raise UserError(
                        f"{self.where}: {key} is stored with the unsupported codec {codec!r}. Save "
                        f"it again with one of {', '.join(CODECS)}."
                    )
            array = self.opened[key]
            if 0 in (array.shards or array.chunks):
                raise ValueError("chunks of size 0")
        return array


def open_folder(path: Path) -> Group:
    """Open the store in a folder."""
    zarr = import_extra("zarr", "zarr", f"{path}: a Zarr store")
    names = frozenset(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file())
    with _explain_errors(f"{path}: the Zarr store"):
        group = zarr.open_group(path, mode="r", use_consolidated=False)
    return Group(str(path), names, lambda name: (path / name).read_bytes(), group)


def open_archive(where: str, path: Path, file: zipfile.ZipFile) -> Group:
    """Open the store in a ZIP archive, at its root or in a folder; file: the open archive."""
    zarr = import_extra("zarr", "zarr", f"{where}: a Zarr store")
    members = file.namelist()
    root = min((n for n in members if is_root(n)), key=len).rpartition("/")[0]
    start = f"{root}/" if root else ""
    names = frozenset(
        n.removeprefix(start) for n in members if n.startswith(start) and not n.endswith("/")
    )
    with _explain_errors(f"{where}: the Zarr store"):
        store = zarr.storage.ZipStore(path, mode="r")
        group = zarr.open_group(store, mode="r", path=root, use_consolidated=False)
    return Group(where, names, lambda name: file.read(start + name), group)


def is_root(name: str) -> bool:
    """Return True if `name` is that of a metadata file of a store, or of a group in a store."""
    return name.rpartition("/")[2] in (".zgroup", "zarr.json")


@contextlib.contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Raise UserError for whatever zarr-python raises on invalid metadata."""
    try:
        yield
    except FAULTS as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{what} has metadata that cannot be read ({reason}). Copy it again, or save it as "
            f"arrays of numbers with Zarr's defaults."
        ) from None


def _is_number(kind: Any) -> bool:
    with contextlib.suppress(TypeError):  # for a structured type or None
        return np.dtype(kind).kind in "fiub"
    return False


def _codecs(meta: dict[str, Any]) -> Iterator[str]:
    """Yield the names of all codecs, including nested ones."""
    for part in ("filters", "compressor", "codecs", "index_codecs"):
        codecs = meta.get(part) or []
        for codec in codecs if isinstance(codecs, list) else [codecs]:
            yield codec["id"] if "id" in codec else codec["name"]
            yield from _codecs(codec.get("configuration", {}))

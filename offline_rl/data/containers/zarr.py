"""Zarr stores of formats 2 and 3, in a folder or in a ZIP archive, as zarr-python reads them.

An array is opened when asked for, and before that its own description is looked at: the type must
be of numbers, the codecs of those that hold nothing but bytes and numbers. One of numcodecs' others
unpickles.
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
    """The arrays of a store, by path, as in "meta/episode_ends"."""

    where: str
    names: frozenset[str]  # of the files in the store
    content: Callable[[str], bytes]
    opened: Any  # the zarr.Group

    def keys(self) -> tuple[str, ...]:
        end = f"/{self._file}"
        places = [name.removesuffix(end) for name in self.names if name.endswith(end)]
        with _description(f"{self.where}: the Zarr store"):
            return tuple(sorted(p for p in places if not IS_GROUP.search(self._text(p))))

    def shape(self, key: str) -> tuple[int, ...]:
        with _description(f"{self.where}: {key}"):
            return tuple(int(length) for length in json.loads(self._text(key))["shape"])

    def absent(self, key: str) -> int:
        """How many of the array's chunks (in a sharded one, shards) have no file."""
        array = self._array(key)
        sizes = zip(array.shape, array.shards or array.chunks, strict=True)
        indices = np.ndindex(*(-(-length // size) for length, size in sizes))
        name = array.metadata.encode_chunk_key
        return sum(f"{key}/{name(index)}" not in self.names for index in indices)

    def get(self, key: str) -> np.ndarray:
        """The whole array. Raises ValueError, RuntimeError or OSError where it is damaged."""
        return np.asarray(self._array(key)[...])

    def close(self) -> None:
        self.opened.store.close()

    @property
    def _file(self) -> str:
        """The name of the files that describe arrays (and, in format 3, groups)."""
        return ".zarray" if self.opened.metadata.zarr_format == 2 else "zarr.json"

    def _text(self, key: str) -> bytes:
        return self.content(f"{key}/{self._file}")

    def _array(self, key: str) -> Any:
        with _description(f"{self.where}: {key}"):
            meta = json.loads(self._text(key))
            kind = meta["dtype" if self._file == ".zarray" else "data_type"]
            if not _is_number(kind):
                raise UserError(f"{self.where}: {key} has type {kind}; numbers are expected.")
            for codec in _codecs(meta):
                if codec.removeprefix("numcodecs.") not in CODECS:
                    raise UserError(
                        f"{self.where}: {key} is stored with the codec {codec!r}; read are "
                        f"{', '.join(CODECS)}. Save it again with one of these."
                    )
            array = self.opened[key]
            if 0 in (array.shards or array.chunks):
                raise ValueError("its chunks are empty")
        return array


def folder(path: Path) -> Group:
    """The store in a folder."""
    zarr = import_extra("zarr", "zarr", f"{path}: a Zarr store")
    names = frozenset(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file())
    with _description(f"{path}: the Zarr store"):
        group = zarr.open_group(path, mode="r", use_consolidated=False)
    return Group(str(path), names, lambda name: (path / name).read_bytes(), group)


def archive(where: str, path: Path, file: zipfile.ZipFile) -> Group:
    """The store in a ZIP archive, at its root or in a folder of it; file: the archive, open."""
    zarr = import_extra("zarr", "zarr", f"{where}: a Zarr store")
    members = file.namelist()
    root = min((n for n in members if is_root(n)), key=len).rpartition("/")[0]
    start = f"{root}/" if root else ""
    names = frozenset(
        n.removeprefix(start) for n in members if n.startswith(start) and not n.endswith("/")
    )
    with _description(f"{where}: the Zarr store"):
        store = zarr.storage.ZipStore(path, mode="r")
        group = zarr.open_group(store, mode="r", path=root, use_consolidated=False)
    return Group(where, names, lambda name: file.read(start + name), group)


def is_root(name: str) -> bool:
    """Whether a file of this name describes a store, of format 2 or 3, or a group in one."""
    return name.rpartition("/")[2] in (".zgroup", "zarr.json")


@contextlib.contextmanager
def _description(what: str) -> Iterator[None]:
    """Makes one sentence of what the libraries raise on a description they cannot follow."""
    try:
        yield
    except FAULTS as error:
        found = str(error).partition("\n")[0]
        raise UserError(
            f"{what} is described as nothing that can be read ({found}); numbers in chunks are "
            f"expected. Copy it again, or save it as Zarr does by itself."
        ) from None


def _is_number(kind: Any) -> bool:
    with contextlib.suppress(TypeError):  # of a structure or of nothing
        return np.dtype(kind).kind in "fiub"
    return False


def _codecs(meta: dict[str, Any]) -> Iterator[str]:
    """The names of all codecs, those inside others included."""
    for part in ("filters", "compressor", "codecs", "index_codecs"):
        found = meta.get(part) or []
        for codec in found if isinstance(found, list) else [found]:
            yield codec["id"] if "id" in codec else codec["name"]
            yield from _codecs(codec.get("configuration", {}))

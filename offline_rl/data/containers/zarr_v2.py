"""Zarr, format 2: arrays of numbers in chunks, one file each, in a folder or in a ZIP archive.

Read as specified in `zarr-developers/zarr-specs:docs/v2/v2.0.rst`. Codecs are those of numcodecs
that hold nothing but bytes and numbers; the one that unpickles is not among them.
"""

import contextlib
import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.optional import needed

CODECS = ("blosc", "zlib", "gzip", "bz2", "lzma", "zstd", "lz4", "shuffle", "delta", "crc32")


@dataclass(frozen=True)
class Group:
    """The arrays of a store, by path, as in "meta/episode_ends"."""

    where: str
    names: frozenset[str]  # of the files in the store
    content: Callable[[str], bytes]

    def keys(self) -> tuple[str, ...]:
        return tuple(
            sorted(n.removesuffix("/.zarray") for n in self.names if n.endswith("/.zarray"))
        )

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._meta(key)["shape"])

    def absent(self, key: str) -> int:
        """How many of the array's chunks have no file: the fill value stands for them."""
        meta = self._meta(key)
        return sum(_name(key, meta, index) not in self.names for index in _indices(meta))

    def get(self, key: str) -> np.ndarray:
        """The whole array. Raises ValueError, KeyError or OSError where it is damaged."""
        meta = self._meta(key)
        dtype = np.dtype(object)
        with contextlib.suppress(TypeError):  # of a structure or of nothing
            dtype = np.dtype(meta["dtype"])
        if dtype.kind not in "fiub":
            raise UserError(f"{self.where}: {key} has type {meta['dtype']}; numbers are expected.")
        codecs = self._codecs(key, meta)
        fill = meta["fill_value"]
        array = np.full(meta["shape"], 0 if fill is None else fill, dtype)
        for index in _indices(meta):
            name = _name(key, meta, index)
            if name not in self.names:
                continue
            data: Any = self.content(name)
            for codec in codecs:
                data = codec.decode(data)
            block = np.frombuffer(data, dtype)
            if block.size != math.prod(meta["chunks"]):
                raise ValueError(f"{name} holds {block.size:,} numbers")
            block = block.reshape(meta["chunks"], order=meta.get("order", "C"))
            place = tuple(
                slice(i * size, min((i + 1) * size, length))
                for i, size, length in zip(index, meta["chunks"], meta["shape"], strict=True)
            )
            array[place] = block[tuple(slice(0, s.stop - s.start) for s in place)]
        return array

    def _meta(self, key: str) -> dict[str, Any]:
        meta = json.loads(self.content(f"{key}/.zarray"))
        sizes = [*meta["shape"], *meta["chunks"]]
        if (
            meta.get("zarr_format") != 2
            or not all(isinstance(size, int) and size >= 0 for size in sizes)
            or len(meta["shape"]) != len(meta["chunks"])
            or 0 in meta["chunks"]
        ):
            raise ValueError("its .zarray is not as format 2 has it")
        return meta

    def _codecs(self, key: str, meta: dict[str, Any]) -> list[Any]:
        """The array's codecs in the order of decoding."""
        used = [*(meta["filters"] or []), *([meta["compressor"]] if meta["compressor"] else [])]
        for codec in used:
            if codec["id"] not in CODECS:
                raise UserError(
                    f"{self.where}: {key} is stored with the codec {codec['id']!r}; read are "
                    f"{', '.join(CODECS)}. Save it again with one of these."
                )
        if not used:
            return []
        numcodecs = needed("numcodecs", "zarr", f"{self.where}: a compressed Zarr array")
        try:
            return [numcodecs.get_codec(codec) for codec in reversed(used)]
        except TypeError as error:
            raise ValueError(str(error)) from None


def folder(path: Path) -> Group:
    """The store in a folder."""
    names = frozenset(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file())
    return Group(str(path), names, lambda name: (path / name).read_bytes())


def archive(where: str, file: zipfile.ZipFile) -> Group:
    """The store in an open ZIP archive, at its root or in a folder of it."""
    members = file.namelist()
    root = min((n for n in members if n.endswith(".zgroup")), key=len).removesuffix(".zgroup")
    names = frozenset(
        n.removeprefix(root) for n in members if n.startswith(root) and not n.endswith("/")
    )
    return Group(where, names, lambda name: file.read(root + name))


def _indices(meta: dict[str, Any]) -> np.ndindex:
    return np.ndindex(
        *(-(-length // size) for length, size in zip(meta["shape"], meta["chunks"], strict=True))
    )


def _name(key: str, meta: dict[str, Any], index: tuple[int, ...]) -> str:
    return f"{key}/{meta.get('dimension_separator', '.').join(map(str, index)) or '0'}"

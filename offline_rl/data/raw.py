"""A data file as named arrays, before anyone says what they mean: HDF5 or NPZ, told by content.

Nothing is ever unpickled, no link out of an HDF5 file is followed, and an array is read only when
asked for. Whatever is broken becomes a `UserError` with the file and the array in it.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offline_rl.errors import UserError

DAMAGED = (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
AGAIN = "Copy or download it again."


@dataclass(frozen=True)
class Raw:
    """The named arrays of one open file."""

    where: str  # the file, as errors name it
    kind: str  # "HDF5" or "NPZ"
    keys: tuple[str, ...]  # groups joined by "/", as in "infos/qpos"
    get: Callable[[str], np.ndarray]  # raises UserError where the array cannot be read
    shape: Callable[[str], tuple[int, ...]]


@contextmanager
def open_raw(path: Path) -> Iterator[Raw]:
    """The arrays of `path`, readable while the context lasts."""
    where = str(path)
    start = _first_bytes(path)
    if start.startswith(b"PK"):
        with _opened(np.load, path, "an NPZ archive", allow_pickle=False) as archive:
            get = _reader(where, archive.__getitem__)
            yield Raw(where, "NPZ", tuple(archive.files), get, lambda key: get(key).shape)
    elif h5py.is_hdf5(where) or start.startswith(b"\x89HDF"):
        with _opened(h5py.File, path, "an HDF5 file", mode="r") as file:
            get = _reader(where, lambda key: file[key][()])
            yield Raw(where, "HDF5", _keys(file, where), get, lambda key: file[key].shape)
    else:
        raise UserError(
            f"{where}: not a data set: it begins with {start[:16]!r}, and neither HDF5 nor NPZ "
            f"does. {AGAIN}"
        )


def checksum(path: Path, kind: str = "sha256") -> str:
    """The file's SHA-256 (or MD5) in hexadecimal, read in blocks."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _first_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise UserError(f"{path}: a folder, where a data file (HDF5 or NPZ) was expected.")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Check the path given as the data set.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not start:
        raise UserError(f"{path}: the file is empty. {AGAIN}")
    return start


def _opened(opener: Callable[..., Any], path: Path, what: str, **options: Any) -> Any:
    try:
        return opener(path, **options)
    except DAMAGED as error:
        raise UserError(
            f"{path}: {what} that is cut short or damaged ({_short(error)}). {AGAIN}"
        ) from None


def _keys(file: h5py.File, where: str) -> tuple[str, ...]:
    keys: list[str] = []

    def note(key: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            keys.append(key)

    try:
        file.visititems(note)
    except DAMAGED as error:
        raise UserError(
            f"{where}: an HDF5 file that is damaged ({_short(error)}). {AGAIN}"
        ) from None
    return tuple(keys)


def _reader(where: str, get: Callable[[str], object]) -> Callable[[str], np.ndarray]:
    def read(key: str) -> np.ndarray:
        try:
            return np.asarray(get(key))
        except DAMAGED as error:
            if "allow_pickle" in str(error):
                raise UserError(
                    f"{where}: {key} holds pickled Python objects, which are never loaded because "
                    f"they can run code. Save it as a plain numeric array."
                ) from None
            raise UserError(
                f"{where}: {key} is cut short or damaged ({_short(error)}). {AGAIN}"
            ) from None

    return read


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__

"""A data file as named arrays, before anyone says what they mean; its container told by content.

Containers: an HDF5 file, an NPZ archive, a Zarr store (a folder or a ZIP archive), a folder with
an HDF5 file or with Parquet files in it, a robot's recording. Nothing is ever unpickled, no link
out of an HDF5 file is followed, and an array is read only when asked for. Whatever is broken
becomes a `UserError` with the file and the array in it.
"""

import hashlib
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import h5py
import numpy as np

from offline_rl.data.containers import parquet, zarr
from offline_rl.utils.errors import MissingData, UserError
from offline_rl.utils.files import checksum, read_json

DAMAGED: tuple[type[Exception], ...] = (OSError, EOFError, KeyError, RuntimeError, ValueError)
DAMAGED += (zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError)
T = TypeVar("T")
RECORDING = b"RRTICKS\n"  # which a robot's recording begins with
EPISODE = re.compile(r"[^.]*\d+(\.(hdf5|h5|npz|npy))?")  # a file or folder that may be one episode
AGAIN = "Copy or download it again."
PICKLE = (
    "To load one runs whatever its writer put into it, so none is ever loaded. Where you trust it, "
    "load it yourself and save its arrays: numpy.savez('data.npz', observations=…, actions=…, "
    "rewards=…, terminals=…, timeouts=…)."
)
JOIN = (
    "join the episodes into one NPZ file (observations, actions, rewards, terminals, timeouts; "
    "timeouts=1 in the last row of each episode). If there are no rewards, read it with "
    "format=plain."
)
TABLE = (
    "Which columns make an observation and an action only you know: read it with "
    "pandas.read_{}, then Dataset.from_arrays(observations, actions, rewards, terminated, "
    "truncated), or save these arrays with numpy.savez."
)


@dataclass(frozen=True)
class Raw:
    """The named arrays of one open file or folder."""

    where: str  # the file or folder, as errors name it
    kind: Literal["HDF5", "NPZ", "Zarr", "Parquet", "recording"]
    keys: tuple[str, ...]  # groups joined by "/", as in "infos/qpos"
    get: Callable[[str], np.ndarray]  # raises UserError where the array cannot be read
    shape: Callable[[str], tuple[int, ...]]
    files: tuple[Path, ...]  # whose bytes the arrays come from
    folder: Path  # in which metadata lie beside the arrays
    attribute: Callable[[str, str], Any] = lambda key, name: None  # of a group; None: has none
    notes: list[str] = field(default_factory=list)  # sentences on what was met in reading


@contextmanager
def open_raw(path: Path) -> Iterator[Raw]:
    """The arrays of `path`, readable while the context lasts."""
    with _folder(path) if path.is_dir() else _file(path, str(path)) as raw:
        if note := beside(path):
            raw.notes.append(note)
        yield raw


def beside(path: Path) -> str | None:
    """A note where the card that `generate` leaves beside a file cannot be read.

    Raises UserError where it is of other bytes than the file's.
    """
    card = path.with_suffix(".json")
    if path.is_dir() or not card.is_file():
        return None
    try:
        told = read_json(card)
    except UserError as error:
        return f"{error}: it cannot tell whether the data is whole."
    if not isinstance(told, dict) or told.get("file") != path.name or "sha256" not in told:
        return None  # of another kind
    if told["sha256"] != (found := checksum(path)):
        raise UserError(
            f"{path}: its SHA-256 is {found}, its card {card} says {told['sha256']}: one of the "
            f"two is damaged or was changed. {AGAIN} To use the file as it is, remove the card."
        )
    return None


def checksum_of(files: Sequence[Path]) -> str:
    """One file's SHA-256; of several that of their lines "<SHA-256>  <path below their folder>"."""
    if len(files) == 1:
        return checksum(files[0])
    root = Path(*_common([f.parent.parts for f in files]))
    lines = (f"{checksum(f)}  {f.relative_to(root).as_posix()}\n" for f in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _common(paths: Sequence[tuple[str, ...]]) -> list[str]:
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared


def _folder(path: Path) -> AbstractContextManager[Raw]:
    if (path / "meta" / "info.json").is_file():
        return _parquet(path)
    if any(zarr.is_root(f.name) for f in path.iterdir()):
        files = tuple(f for f in path.rglob("*") if f.is_file())
        return _zarr(zarr.folder(path), files, path)
    for inner in (path, path / "data"):
        if (inner / "main_data.hdf5").is_file():
            return _file(inner / "main_data.hdf5", str(path))
        if (inner / "metadata.json").is_file():
            raise UserError(
                f"{inner}: has metadata.json but no main_data.hdf5; of Minari's data formats hdf5 "
                f"is read. Make the data set again with data_format='hdf5'."
            )
    numbered = sorted(p for p in path.iterdir() if EPISODE.fullmatch(p.name))
    if len(numbered) > 1:
        shown = ", ".join(p.name for p in numbered[:2])
        raise UserError(
            f"{path}: a folder of {len(numbered):,} files or folders ({shown}, ...), and no data "
            f"set of LeRobot's, Minari's or Zarr's. Name the data file in it. If each file is "
            f"one episode, {JOIN}"
        )
    raise UserError(
        f"{path}: a folder that is no data set: LeRobot's would hold meta/info.json, Minari's "
        f"main_data.hdf5 or data/main_data.hdf5, a Zarr store .zgroup or zarr.json. "
        f"Name the data file in it."
    )


@contextmanager
def _file(path: Path, where: str) -> Iterator[Raw]:
    start = _first_bytes(path)
    if start.startswith(b"PK"):
        with _opened(zipfile.ZipFile, path, "a ZIP archive") as file:
            if any(zarr.is_root(name) for name in file.namelist()):
                with _zarr(zarr.archive(where, path, file), (path,), path.parent) as raw:
                    yield raw
                return
        with _opened(np.load, path, "an NPZ archive", allow_pickle=False) as archive:
            keys = tuple(archive.files)
            if any(key.endswith("data.pkl") for key in keys):
                raise UserError(f"{where}: torch's file, which is a pickle. {PICKLE}")
            get = _guarded(where, keys, archive.__getitem__)
            yield Raw(where, "NPZ", keys, get, lambda key: get(key).shape, (path,), path.parent)
    elif h5py.is_hdf5(str(path)) or start.startswith(b"\x89HDF"):
        with _opened(h5py.File, path, "an HDF5 file", mode="r") as file:
            keys = _keys(file, where)
            yield Raw(
                where,
                "HDF5",
                keys,
                _guarded(where, keys, lambda key: np.asarray(file[key][()])),
                _guarded(where, keys, lambda key: file[key].shape),
                (path,),
                path.parent,
                lambda key, name: file[key].attrs.get(name),
            )
    elif start.startswith(RECORDING):
        yield _recording(path, where)
    elif start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05":
        raise UserError(f"{where}: a pickle. {PICKLE}")
    elif start.startswith(b"PAR1"):
        raise UserError(f"{where}: a Parquet table. {TABLE.format('parquet')}")
    elif b"," in start and start.replace(b"\n", b" ").replace(b"\r", b" ").isascii():
        raise UserError(f"{where}: a table of text. {TABLE.format('csv')}")
    else:
        raise UserError(
            f"{where}: not a data set: it begins with {start[:16]!r}, and neither HDF5 nor NPZ "
            f"does. {AGAIN}"
        )


def _recording(path: Path, where: str) -> Raw:
    """Of a robot; what is whole of it."""
    from real_robot.recording.files import read

    found = read(path)
    keys = found.rows.dtype.names or ()
    notes = []
    if found.lost:
        notes.append(f"{found.lost:,} ticks were never written: the disk was too slow")
    if found.cut_at is not None:
        notes.append(f"damaged or unfinished from byte {found.cut_at:,} on: read up to there")
    return Raw(
        where,
        "recording",
        keys,
        _guarded(where, keys, lambda key: found.rows[key]),
        lambda key: found.rows[key].shape,
        (path,),
        path.parent,
        lambda _, name: {"about": found.about}.get(name),
        notes,
    )


@contextmanager
def _zarr(group: zarr.Group, files: tuple[Path, ...], folder: Path) -> Iterator[Raw]:
    notes: list[str] = []

    def get(key: str) -> np.ndarray:
        if absent := group.absent(key):
            notes.append(
                f"{key}: {absent:,} chunks have no file, the fill value stands for them. "
                f"Was the store copied completely?"
            )
        return group.get(key)

    with closing(group):
        keys = group.keys()
        read, shape = _guarded(group.where, keys, get), _guarded(group.where, keys, group.shape)
        yield Raw(group.where, "Zarr", keys, read, shape, files, folder, notes=notes)


@contextmanager
def _parquet(path: Path) -> Iterator[Raw]:
    files = sorted(path.glob("data/**/*.parquet"))
    if not files:
        raise UserError(f"{path}: no Parquet file below data/. {AGAIN}")
    table = parquet.Table(str(path), files)
    try:
        keys = table.keys()
    except DAMAGED as error:
        raise UserError(
            f"{files[0]}: a Parquet file that is cut short or damaged ({_short(error)}). {AGAIN}"
        ) from None
    get = _guarded(str(path), keys, table.get)
    every = (*files, *sorted(p for p in (path / "meta").rglob("*") if p.is_file()))
    yield Raw(str(path), "Parquet", keys, get, lambda key: get(key).shape, every, path)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        raise MissingData(f"{path}: no such file. Check the path given as the data set.") from None
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

    def note(key: str | bytes, item: object) -> None:
        if isinstance(key, bytes):
            raise ValueError(f"a name that is no text, {key!r}")
        if isinstance(item, h5py.Dataset):
            keys.append(key)

    try:
        file.visititems(note)
    except DAMAGED as error:
        raise UserError(
            f"{where}: an HDF5 file that is damaged ({_short(error)}). {AGAIN}"
        ) from None
    return tuple(keys)


def _guarded(where: str, keys: Sequence[str], get: Callable[[str], T]) -> Callable[[str], T]:
    """`get` of a known key, whose failures are `UserError`s that name the array."""
    known = frozenset(keys)

    def guarded(key: str) -> T:
        if key not in known:
            raise UserError(f"{where}: no array {key!r}. Was the recording saved completely?")
        try:
            return get(key)
        except DAMAGED as error:
            if "allow_pickle" in str(error):
                raise UserError(
                    f"{where}: {key} holds pickled Python objects, which are never loaded because "
                    f"they can run code. Save it as a plain numeric array."
                ) from None
            raise UserError(
                f"{where}: {key} is cut short or damaged ({_short(error)}). {AGAIN}"
            ) from None

    return guarded


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__

"""Data files opened as named arrays. The type of container is recognized by its content.

Containers: an HDF5 file, an NPZ archive, a Zarr store (a folder or a ZIP archive), a folder with
an HDF5 file or with Parquet files, a robot's recording. Pickles are never loaded, external links of
an HDF5 file are not followed, and an array is read only when it is requested. Damaged files raise a
`UserError` that names the file and the array.
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
RECORDING = b"RRTICKS\n"  # the first bytes of a robot's recording
EPISODE = re.compile(r"[^.]*\d+(\.(hdf5|h5|npz|npy))?")  # a file or folder that may be one episode
AGAIN = "Copy or download it again."
PICKLE = (
    "Pickles are not loaded, because loading one can run any code. If you trust it, load it "
    "yourself and save the arrays: numpy.savez('data.npz', observations=…, actions=…, rewards=…, "
    "terminals=…, timeouts=…)."
)
JOIN = (
    "join the episodes into one NPZ file (observations, actions, rewards, terminals, timeouts; "
    "timeouts=1 in the last row of each episode). If the data has no rewards, read the file with "
    "format=plain."
)
TABLE = (
    "Its columns of observations and actions are unknown. Read it with pandas.read_{}, then call "
    "Dataset.from_arrays(observations, actions, rewards, terminated, truncated), or save these "
    "arrays with numpy.savez."
)


@dataclass(frozen=True)
class Raw:
    """The named arrays of one open file or folder."""

    where: str  # the file or folder, for errors
    kind: Literal["HDF5", "NPZ", "Zarr", "Parquet", "recording"]
    keys: tuple[str, ...]  # groups joined by "/", as in "infos/qpos"
    get: Callable[[str], np.ndarray]  # raises UserError if the array cannot be read
    shape: Callable[[str], tuple[int, ...]]
    files: tuple[Path, ...]  # the files that hold the arrays
    folder: Path  # the folder of metadata files
    attribute: Callable[[str, str], Any] = lambda key, name: None  # of a group; None if missing
    notes: list[str] = field(default_factory=list)  # problems found while reading


@contextmanager
def open_raw(path: Path) -> Iterator[Raw]:
    """Open the arrays of `path` for the duration of the block."""
    with _open_folder(path) if path.is_dir() else _open_file(path, str(path)) as raw:
        if note := check_card(path):
            raw.notes.append(note)
        yield raw


def check_card(path: Path) -> str | None:
    """Compare a file with the card next to it, a JSON file that `offline-rl generate` writes.

    Returns a note if the card cannot be read. Raises UserError if the checksums differ.
    """
    card = path.with_suffix(".json")
    if path.is_dir() or not card.is_file():
        return None
    try:
        facts = read_json(card)
    except UserError as error:
        return f"{error}. The checksum of the data could not be verified."
    if not isinstance(facts, dict) or facts.get("file") != path.name or "sha256" not in facts:
        return None  # another kind of JSON file
    if facts["sha256"] != (actual := checksum(path)):
        raise UserError(
            f"{path} has SHA-256 {actual}, but its card {card} says {facts['sha256']}: one of the "
            f"two is damaged or was changed. {AGAIN} To use the file as it is, remove the card."
        )
    return None


def checksum_of(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or one SHA-256 for several files.

    For several files, it is the SHA-256 of a text with a line per file,
    "<SHA-256>  <path below the common folder>".
    """
    if len(files) == 1:
        return checksum(files[0])
    root = Path(*_common_parts([f.parent.parts for f in files]))
    lines = (f"{checksum(f)}  {f.relative_to(root).as_posix()}\n" for f in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _common_parts(paths: Sequence[tuple[str, ...]]) -> list[str]:
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared


def _open_folder(path: Path) -> AbstractContextManager[Raw]:
    if (path / "meta" / "info.json").is_file():
        return _open_parquet(path)
    if any(zarr.is_root(f.name) for f in path.iterdir()):
        files = tuple(f for f in path.rglob("*") if f.is_file())
        return _open_zarr(zarr.open_folder(path), files, path)
    for inner in (path, path / "data"):
        if (inner / "main_data.hdf5").is_file():
            return _open_file(inner / "main_data.hdf5", str(path))
        if (inner / "metadata.json").is_file():
            raise UserError(
                f"{inner}: has metadata.json but no main_data.hdf5. Of Minari's data formats, only "
                f"hdf5 is read. Create the data set again with data_format='hdf5'."
            )
    numbered = sorted(p for p in path.iterdir() if EPISODE.fullmatch(p.name))
    if len(numbered) > 1:
        shown = ", ".join(p.name for p in numbered[:2])
        raise UserError(
            f"{path}: a folder of {len(numbered):,} files or folders ({shown}, ...), and not a "
            f"LeRobot, Minari or Zarr data set. Give the path of the data file in it. If each file "
            f"is one episode, {JOIN}"
        )
    raise UserError(
        f"{path}: a folder that is not a data set. LeRobot's has meta/info.json, Minari's has "
        f"main_data.hdf5 or data/main_data.hdf5, and a Zarr store has .zgroup or zarr.json. "
        f"Give the path of the data file in it."
    )


@contextmanager
def _open_file(path: Path, where: str) -> Iterator[Raw]:
    start = _first_bytes(path)
    if start.startswith(b"PK"):
        with _call_opener(zipfile.ZipFile, path, "a ZIP archive") as file:
            if any(zarr.is_root(name) for name in file.namelist()):
                with _open_zarr(zarr.open_archive(where, path, file), (path,), path.parent) as raw:
                    yield raw
                return
        with _call_opener(np.load, path, "an NPZ archive", allow_pickle=False) as archive:
            keys = tuple(archive.files)
            if any(key.endswith("data.pkl") for key in keys):
                raise UserError(f"{where}: a PyTorch file, which is a pickle. {PICKLE}")
            get = _guarded(where, keys, archive.__getitem__)
            yield Raw(where, "NPZ", keys, get, lambda key: get(key).shape, (path,), path.parent)
    elif h5py.is_hdf5(str(path)) or start.startswith(b"\x89HDF"):
        with _call_opener(h5py.File, path, "an HDF5 file", mode="r") as file:
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
        yield _read_recording(path, where)
    elif start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05":
        raise UserError(f"{where}: a pickle. {PICKLE}")
    elif start.startswith(b"PAR1"):
        raise UserError(f"{where}: a Parquet table. {TABLE.format('parquet')}")
    elif b"," in start and start.replace(b"\n", b" ").replace(b"\r", b" ").isascii():
        raise UserError(f"{where}: a table of text. {TABLE.format('csv')}")
    else:
        raise UserError(
            f"{where}: not a data set. It begins with {start[:16]!r}, unlike an HDF5 or NPZ file. "
            f"{AGAIN}"
        )


def _read_recording(path: Path, where: str) -> Raw:
    """Read a robot's recording, up to the first damaged byte if there is one."""
    from real_robot.recording.files import read

    recording = read(path)
    keys = recording.rows.dtype.names or ()
    notes = []
    if recording.lost:
        notes.append(f"{recording.lost:,} ticks were never written, because the disk was too slow")
    if recording.cut_at is not None:
        notes.append(f"damaged or incomplete from byte {recording.cut_at:,} on; read up to there")
    return Raw(
        where,
        "recording",
        keys,
        _guarded(where, keys, lambda key: recording.rows[key]),
        lambda key: recording.rows[key].shape,
        (path,),
        path.parent,
        lambda _, name: {"about": recording.about}.get(name),
        notes,
    )


@contextmanager
def _open_zarr(group: zarr.Group, files: tuple[Path, ...], folder: Path) -> Iterator[Raw]:
    notes: list[str] = []

    def get(key: str) -> np.ndarray:
        if missing := group.count_missing(key):
            notes.append(
                f"{key}: {missing:,} chunks have no file and are read as the fill value. "
                f"Was the store copied completely?"
            )
        return group.get(key)

    with closing(group):
        keys = group.keys()
        read, shape = _guarded(group.where, keys, get), _guarded(group.where, keys, group.shape)
        yield Raw(group.where, "Zarr", keys, read, shape, files, folder, notes=notes)


@contextmanager
def _open_parquet(path: Path) -> Iterator[Raw]:
    files = sorted(path.glob("data/**/*.parquet"))
    if not files:
        raise UserError(f"{path}: no Parquet file below data/. {AGAIN}")
    table = parquet.Table(str(path), files)
    try:
        keys = table.keys()
    except DAMAGED as error:
        raise UserError(
            f"{files[0]}: an incomplete or damaged Parquet file ({_short(error)}). {AGAIN}"
        ) from None
    get = _guarded(str(path), keys, table.get)
    all_files = (*files, *sorted(p for p in (path / "meta").rglob("*") if p.is_file()))
    yield Raw(str(path), "Parquet", keys, get, lambda key: get(key).shape, all_files, path)


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


def _call_opener(opener: Callable[..., Any], path: Path, what: str, **options: Any) -> Any:
    try:
        return opener(path, **options)
    except DAMAGED as error:
        raise UserError(
            f"{path}: {what} that is incomplete or damaged ({_short(error)}). {AGAIN}"
        ) from None


def _keys(file: h5py.File, where: str) -> tuple[str, ...]:
    keys: list[str] = []

    def note(key: str | bytes, item: object) -> None:
        if isinstance(key, bytes):
            raise ValueError(f"a name that is not text, {key!r}")
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
    """Wrap `get` so that an unknown key, or damage, raises a `UserError` that names the array."""
    valid_keys = frozenset(keys)

    def guarded(key: str) -> T:
        if key not in valid_keys:
            raise UserError(f"{where}: no array {key!r}. Check that it was saved completely.")
        try:
            return get(key)
        except DAMAGED as error:
            if "allow_pickle" in str(error):
                raise UserError(
                    f"{where}: {key} holds pickled Python objects, which are never loaded because "
                    f"they can run code. Save it as a plain numeric array."
                ) from None
            raise UserError(
                f"{where}: {key} is incomplete or damaged ({_short(error)}). {AGAIN}"
            ) from None

    return guarded


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__

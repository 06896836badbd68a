"""The cache of parsed data sets: a large file is parsed once, then its arrays are memory-mapped.

    <cache>/opened/<path's hash>-<hash of size, time and options>/<array>.npy … meta.json

A memory-mapped array uses no memory until it is read, and the system can release the memory again.
Data larger than memory is read from disk as it is sampled. Checks run when the file is parsed. If
the file changes, its entry is replaced. A data set of several files (shards) is parsed one file at
a time and has a single entry.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_folder_atomically, write_json
from policies import channels
from policies.spec import Spec

LARGE = 64 << 20  # minimum size of cached files in bytes; smaller ones are parsed in under a second
VERSION = 4  # version of the cache and of the readers; a new version invalidates all entries
BLOCK_ROWS = 1 << 20  # rows that are changed at once
DAMAGED = (UserError, OSError, EOFError, ValueError, KeyError, TypeError)


def load_cached(
    path: Path, options: Mapping[str, Any], parse: Callable[[], Dataset], cache: Path
) -> Dataset:
    """Return `parse()`, or its cached result for the same file and options.

    If the cache cannot be written, print a message and return the parsed arrays.
    """
    if not path.is_file() or path.stat().st_size < LARGE:
        return parse()
    metadata = path.with_name("metadata.json")  # part of a Minari data set
    stamps = [(f.stat().st_size, f.stat().st_mtime_ns) for f in (path, metadata) if f.is_file()]
    state = [VERSION, stamps, cached_options(options)]
    name = f"{digest(str(path.resolve()))}-{digest(json.dumps(state, default=str))}"
    entry = cache / "opened" / name
    if (entry / "meta.json").is_file():
        try:
            return open_entry(entry)
        except DAMAGED:
            shutil.rmtree(entry, ignore_errors=True)
    data = parse()
    try:
        write_entry(data, entry)
        return open_entry(entry)
    except DAMAGED as error:
        print(f"{path}: not cached, because {entry} could not be written ({error})")
        return data


def load_shards(
    paths: Sequence[Path],
    options: Mapping[str, Any],
    parse: Callable[[Path], Dataset],
    cache: Path,
) -> Dataset:
    """Return the rows of several files as one data set, whose arrays are memory-mapped.

    parse: reads one file. Raises UserError if the cache cannot be written.
    """
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    state = json.dumps([VERSION, files, cached_options(options)], default=str)
    entry = cache / "opened" / f"{digest(files[0][0] + str(len(files)))}-{digest(state)}"
    if (entry / "meta.json").is_file():
        try:
            return open_entry(entry)
        except DAMAGED:
            shutil.rmtree(entry, ignore_errors=True)
    try:
        write_shards(map(parse, paths), entry)
        return open_entry(entry)
    except UserError as error:
        if str(entry) not in str(error):
            raise  # a file is damaged
        raise UserError(
            f"{error}. The {len(paths)} files of a data set are joined there: free some space, or "
            "set XDG_CACHE_HOME to a folder on another disk."
        ) from error


def write_shards(shards: Iterable[Dataset], entry: Path) -> None:
    """Write the rows of all `shards` as the folder `entry`, with one shard in memory at a time."""
    for old in entry.parent.glob(f"{entry.name.split('-')[0]}-*"):
        shutil.rmtree(old, ignore_errors=True)

    def fill(folder: Path) -> None:
        arrays, tails = dict[str, GrowingArray](), dict[str, list[np.ndarray]]()
        num_rows = num_tail = 0
        others, sums = dict[str, Any](), list[str]()
        for shard in shards:
            if not others:
                spec = None if shard.spec is None else shard.spec.to_json()
                others = {"name": shard.name, "path": shard.path, "continues": None, "spec": spec}
                others["notes"] = [*shard.notes]
            sums.append(str(shard.sha256))
            after, count = shard.next_index, shard.num_rows
            # extra rows follow after the rows of all shards: -2 is the first one of them
            index = np.where(after >= count, -2 - (after - count + num_tail), after + num_rows)
            columns = channels.flatten({"observations": shard.observations})
            for key, values in columns.items():
                tails.setdefault(key, []).append(values[count:])
            num_tail += channels.size(shard.observations) - count
            columns = {key: values[:count] for key, values in columns.items()}
            columns |= {"next_index": np.where(after == -1, -1, index), "actions": shard.actions}
            columns |= {k: getattr(shard, k) for k in ("rewards", "terminated", "truncated")}
            columns |= {f"extras/{key}": values for key, values in shard.extras.items()}
            for key, values in columns.items():
                if key not in arrays:
                    arrays[key] = GrowingArray(folder / f"{len(arrays)}.npy", values)
                arrays[key].append(values)
            num_rows += count
        for key, parts in tails.items():
            for part in parts:
                arrays[key].append(part)
        for array in arrays.values():
            array.close()
        written = np.load(arrays["next_index"].path, mmap_mode="r+")
        for start in range(0, num_rows, BLOCK_ROWS):
            block = written[start : start + BLOCK_ROWS]
            block[block < -1] = num_rows - 2 - block[block < -1]
        written.flush()
        others["sha256"] = hashlib.sha256("".join(sums).encode()).hexdigest()
        others["notes"].append(f"the rows of {len(sums)} files")
        names = {key: array.path.name for key, array in arrays.items()}
        write_json(folder / "meta.json", {"arrays": names, "fields": others})

    write_folder_atomically(entry, fill)


class GrowingArray:
    """An .npy file to which rows are appended."""

    def __init__(self, path: Path, like: np.ndarray) -> None:
        """Create an empty file. like: array with the type and shape of the rows."""
        self.path, self.dtype, self.row_shape, self.count = path, like.dtype, like.shape[1:], 0
        self._file = path.open("wb+")
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Append rows."""
        np.ascontiguousarray(rows, self.dtype).tofile(self._file)
        self.count += len(rows)

    def close(self) -> None:
        """Write the number of rows, and close the file."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        # NumPy pads the header, so that its length does not depend on the number of rows
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        shape = (self.count, *self.row_shape)
        np.lib.format.write_array_header_1_0(self._file, header | {"shape": shape})
        self._file.flush()


def write_entry(data: Dataset, entry: Path) -> None:
    """Write `data` atomically as the folder `entry`; remove older entries of the same file."""
    values = {f.name: getattr(data, f.name) for f in fields(data) if f.name != "extras"}
    values |= channels.flatten({"observations": values.pop("observations")})
    arrays = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
    extras = {f"extras/{k}": v for k, v in data.extras.items()}
    names = {k: f"{n}.npy" for n, k in enumerate([*arrays, *extras])}
    others = {k: v for k, v in values.items() if k not in arrays and k != "spec"}
    others["spec"] = None if data.spec is None else data.spec.to_json()

    def fill(folder: Path) -> None:
        for key, array in {**arrays, **extras}.items():
            np.save(folder / names[key], array, allow_pickle=False)
        write_json(folder / "meta.json", {"arrays": names, "fields": others})

    for old in entry.parent.glob(f"{entry.name.split('-')[0]}-*"):
        shutil.rmtree(old, ignore_errors=True)
    write_folder_atomically(entry, fill)


def open_entry(entry: Path) -> Dataset:
    """Open the data set in `entry`. Changes to the memory-mapped arrays are not written to disk."""
    meta = json.loads((entry / "meta.json").read_text())
    arrays = {
        key: np.load(entry / name, mmap_mode="c", allow_pickle=False)
        for key, name in meta["arrays"].items()
    }
    extras = {k.removeprefix("extras/"): v for k, v in arrays.items() if k.startswith("extras/")}
    columns = {k: v for k, v in arrays.items() if not k.startswith("extras/")}
    others, spec_json = meta["fields"], meta["fields"].pop("spec")
    spec = None if spec_json is None else Spec.from_json(spec_json)
    notes = tuple(others.pop("notes"))
    return Dataset(**channels.unflatten(columns), **others, notes=notes, extras=extras, spec=spec)


def cached_options(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options of reading on which the arrays of a file depend, sorted."""
    return sorted((name, value) for name, value in options.items() if name != "stream")


def digest(text: str) -> str:
    """Return the first 32 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]

"""The cache of parsed data sets: a large file is parsed once, then its arrays are memory-mapped.

    <cache>/opened/<path's hash>-<hash of size, time and options>/<array>.npy … meta.json

A memory-mapped array uses no memory until it is read, and the system can release the memory again.
Data larger than memory is read from disk as it is sampled. Checks run when the file is parsed. If
the file changes, its entry is replaced.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
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
    state = [VERSION, stamps, sorted(options.items())]
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


def digest(text: str) -> str:
    """Return the first 32 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]

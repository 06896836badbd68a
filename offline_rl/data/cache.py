"""Large files are parsed once: their arrays are kept in the user's cache and mapped into memory.

    <cache>/opened/<path's hash>-<hash of size, time and options>/<array>.npy … meta.json

A mapped array costs no memory until it is read, and the system can drop it again: data larger than
memory is paged in as it is sampled. Everything was checked when the file was parsed; the entry of a
file that changed is replaced.
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

LARGE = 64 << 20  # bytes: smaller files are parsed in well under a second
VERSION = 4  # of the entries' format and of how files are read
DAMAGED = (UserError, OSError, EOFError, ValueError, KeyError, TypeError)


def cached(
    path: Path, options: Mapping[str, Any], parse: Callable[[], Dataset], cache: Path
) -> Dataset:
    """`parse()`, or what it gave before for this very file and these options.

    Where the cache cannot be written the parsed arrays are used as they are, with one line said.
    """
    if not path.is_file() or path.stat().st_size < LARGE:
        return parse()
    beside = path.with_name("metadata.json")  # Minari's: part of what is parsed
    stamps = [(f.stat().st_size, f.stat().st_mtime_ns) for f in (path, beside) if f.is_file()]
    state = [VERSION, stamps, sorted(options.items())]
    name = f"{digest(str(path.resolve()))}-{digest(json.dumps(state, default=str))}"
    entry = cache / "opened" / name
    if (entry / "meta.json").is_file():
        try:
            return mapped(entry)
        except DAMAGED:
            shutil.rmtree(entry, ignore_errors=True)
    data = parse()
    try:
        keep(data, entry)
        return mapped(entry)
    except DAMAGED as error:
        print(f"{path}: not kept for the next time: {entry} could not be written ({error})")
        return data


def keep(data: Dataset, entry: Path) -> None:
    """Writes `data` as the folder `entry`, whole or not at all; drops entries of older states."""
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


def mapped(entry: Path) -> Dataset:
    """The data set in `entry`, its arrays mapped; what is written to them stays in memory."""
    meta = json.loads((entry / "meta.json").read_text())
    arrays = {
        key: np.load(entry / name, mmap_mode="c", allow_pickle=False)
        for key, name in meta["arrays"].items()
    }
    extras = {k.removeprefix("extras/"): v for k, v in arrays.items() if k.startswith("extras/")}
    own = {k: v for k, v in arrays.items() if not k.startswith("extras/")}
    known, told = meta["fields"], meta["fields"].pop("spec")
    spec = None if told is None else Spec.from_json(told)
    notes = tuple(known.pop("notes"))
    return Dataset(**channels.unflatten(own), **known, notes=notes, extras=extras, spec=spec)


def digest(text: str) -> str:
    """32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]

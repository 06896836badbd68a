"""Algorithms by name, and their settings.

Precedence: command line, then per-task table, then the task's card, then defaults.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.modules import import_file
from offline_rl.utils.options import build, type_metadata, unknown
from offline_rl.utils.paths import PACKAGE, share

if TYPE_CHECKING:
    from offline_rl.algorithms.common.base import Algorithm, Interaction
    from policies import Spec


ALGORITHMS = "offline_rl.algorithms"
TABLES = ("tuned", "online", "parity")  # sections of configs/algorithm/<name>.yaml


@cache
def algorithm_names() -> tuple[str, ...]:
    """Return the names of the files in offline_rl/algorithms."""
    files = (PACKAGE / "algorithms").glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the algorithm of a name: a built-in one, or one of the user's.

    iql                 of offline_rl/algorithms/iql.py
    mine.py             of that file; mine.py:Class if it defines several
    package.module:Class   of an installed package

    Raises UserError with near matches, or if it is no algorithm.
    """
    source, cls = split_name(name)
    if source.endswith(".py"):
        return require_single(
            name, *algorithms_in(name, load_module(Path(source).expanduser().resolve()), cls)
        )
    if cls:
        try:
            module = importlib.import_module(source)
        except ImportError as error:
            remedy = f"Install the package, or use a file: algorithm=path/to/mine.py:{cls}."
            raise UserError(f"algorithm={name}: {error}. {remedy}") from None
        return require_single(name, *algorithms_in(name, module, cls))
    if name not in algorithm_names():
        raise UserError(unknown("algorithm", name, algorithm_names()))
    (algorithm,) = algorithms_in(name, importlib.import_module(f"{ALGORITHMS}.{name}"), "")
    return algorithm


def rebuild_algorithm(name: str, hyper: Mapping[str, Any], spec: Spec) -> Algorithm:
    """Return the algorithm of a run with these hyper-parameters; older runs may have fewer."""
    cls = algorithm_class(name)
    names = {f.name for f in fields(cls.Config)}
    values = {k: v for k, v in hyper.items() if k in names and v is not None}
    return cls(spec, build(cls.Config, values, "hyper."))


def split_name(name: str) -> tuple[str, str]:
    """Return the location of an algorithm, and its class if that is named."""
    source, _, cls = name.rpartition(":")
    return (source, cls) if source else (name, "")


def run_label(name: str) -> str:
    """Return the name of an algorithm's run folders: built-in name, class or file name."""
    source, cls = split_name(name)
    return cls or (Path(source).stem if source.endswith(".py") else source)


def source_file(name: str) -> dict[str, str]:
    """Return file and checksum of a user's algorithm, as stored in runs; {} if built-in."""
    source, _ = split_name(name)
    if source in algorithm_names():
        return {}
    file = Path(inspect.getfile(algorithm_class(name))).resolve()
    return {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def load_module(path: Path) -> ModuleType:
    """Return the module of a user's file; it is loaded again only if the file has changed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"algorithm={path}: {error.strerror}") from None
    name = f"algorithm_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        return import_file(path, name)
    except Exception as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        location = f"{path}, line {lines[-1]}" if lines else str(path)
        raise UserError(f"{location}: {type(error).__name__}: {error}") from error


def algorithms_in(name: str, module: ModuleType, cls: str) -> list[type[Algorithm]]:
    """Return the algorithms that a module defines, or the one named `cls`."""
    from offline_rl.algorithms.common.base import Algorithm

    kinds = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm
    }
    if cls and cls not in kinds:
        raise UserError(f"algorithm={name}: {unknown('algorithm', cls, kinds)}")
    if cls:
        return [kinds[cls]]
    return [value for value in kinds.values() if value.__module__ == module.__name__]


def require_single(name: str, *kinds: type[Algorithm]) -> type[Algorithm]:
    """Return the only one of `kinds`, if its Config is valid. Raises UserError."""
    from offline_rl.algorithms.common.config import BaseConfig

    if not kinds:
        raise UserError(
            f"{name} defines no algorithm. Define a subclass of offline_rl's Algorithm."
        )
    if len(kinds) > 1:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise UserError(f"{name} defines {names}. Choose one, as in {name}:{kinds[-1].__name__}.")
    config = getattr(kinds[0], "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseConfig)):
        raise UserError(f"{name}: {kinds[0].__name__} has no Config derived from BaseConfig.")
    if not hasattr(config, "discount"):
        raise UserError(f"{name}: {kinds[0].__name__}.Config has no discount, which batches need.")
    return kinds[0]


def algorithm_yaml(name: str) -> dict[str, Any]:
    """Return the settings file of `table_of(name)`; empty if there is none. Raises UserError."""
    owner = table_of(name)
    if owner is None or not (path := table_path(owner)).is_file():
        return {}
    return checked_yaml(path, path.stat().st_mtime_ns)


def table_of(name: str) -> str | None:
    """Return the built-in algorithm whose per-task table holds for the algorithm `name`.

    For a built-in algorithm it is itself, for a user's algorithm its nearest built-in parent.
    """
    if name in algorithm_names():
        return name
    modules = (cls.__module__.rpartition(".") for cls in algorithm_class(name).__mro__)
    built_in = (stem for package, _, stem in modules if package == ALGORITHMS)
    return next((stem for stem in built_in if stem in algorithm_names()), None)


def without_own_defaults(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table values that a user's algorithm does not override.

    Values of fields that its Config redefines or lacks are left out. A built-in algorithm takes all
    values.
    """
    owner = table_of(name)
    if name == owner or owner is None:
        return dict(values)
    cls = algorithm_class(name)
    inherited = algorithm_class(owner).Config.__mro__
    layers = [layer for layer in cls.Config.__mro__ if layer not in inherited]
    redefined = {field for layer in layers for field in vars(layer).get("__annotations__", {})}
    names = {f.name for config in (cls.Config, cls.Online) for f in fields(config)}
    return {key: value for key, value in values.items() if key in names - redefined}


@cache
def checked_yaml(path: Path, changed_ns: int) -> dict[str, Any]:
    """Return the content of a settings file; it is read again if it has changed."""
    settings = read_yaml(path)
    for key, value in settings.items():
        if key not in TABLES:
            raise UserError(f"{path}: {unknown('key', key, TABLES)}")
        if not isinstance(value, dict | None):
            raise UserError(f"{path}: {key} is {value!r}. It must map names to values.")
    rows = [*(settings.get("tuned") or {}).items(), *(settings.get("online") or {}).items()]
    for pattern, row in rows:
        if not isinstance(pattern, str) or not isinstance(row, dict):
            raise UserError(f"{path}: {pattern}: {row!r} must map names to values.")
    return settings


def table_path(name: str) -> Path:
    """Return the path of the per-task table of a built-in algorithm, whether it exists or not."""
    return share("configs") / "algorithm" / f"{name}.yaml"


def tuned(name: str, task: str, section: str = "tuned") -> tuple[str | None, dict[str, Any]]:
    """Return the first pattern of the algorithm's per-task table for `task`, and its values.

    section: `tuned`, or `online` for what differs in online training.

    gym/<set>, this project's counterpart of a D4RL data set, uses the row of D4RL's <set>-v2.
    gym/pointmaze-<maze> uses the row of maze2d-<maze>-v1. d4rl:<id> uses the row of <id>.
    """
    task = task.removeprefix("d4rl:")
    names = [task]
    if task.startswith("gym/pointmaze-"):
        names.append(f"{task.replace('gym/pointmaze', 'maze2d')}-v1")
    elif task.startswith("gym/"):
        names.append(f"{task[4:]}-v2")
    for pattern, values in (algorithm_yaml(name).get(section) or {}).items():
        if any(fnmatchcase(each, p) for each in names for p in expand_braces(pattern)):
            return pattern, without_own_defaults(name, values)
    return None, {}


def expand_braces(pattern: str) -> list[str]:
    """Return the alternatives of a pattern: `{a,b}-*` -> `a-*`, `b-*`."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [p for part in match[1].split(",") for p in expand_braces(head + part + tail)]


def card_preprocessing(name: str, task: str) -> dict[str, Any]:
    """Return the preprocessing of the task's card, if the algorithm follows it."""
    from offline_rl.data.load import known_cards

    card = known_cards().get(task.removeprefix("d4rl:"))
    if card is None or not algorithm_class(name).follows_card:
        return {}
    return dict(card.preprocessing)


def algorithm_config(name: str, task: str, overrides: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return the algorithm's config for `task`, and the pattern of its table that was used."""
    config, card = algorithm_class(name).Config, card_preprocessing(name, task)
    pattern, values = tuned(name, task)
    for where, layer in (
        (f"the card of {task}", card),
        (f"{table_path(table_of(name) or name)}: {pattern}", values),
    ):
        build(config, layer, f"{where}: ")  # an error names the layer that causes it
    return build(config, {**card, **values, **overrides}, "algorithm."), pattern


def interaction(name: str, task: str, cfg: Any, overrides: Mapping[str, Any]) -> Interaction:
    """Return the settings of online training.

    Precedence: `overrides`, then table, then `Online.config_changes`. A name is a field of the
    algorithm's `Online` or of its Config. The value of a Config field then applies online only.
    """
    from offline_rl.algorithms.common.base import Interaction
    from offline_rl.algorithms.common.config import OFFLINE, structural_fields

    cls = algorithm_class(name)
    values = {**cls.Online.config_changes, **tuned(name, task, "online")[1], **overrides}
    online_names = {f.name for f in fields(cls.Online)}
    names = online_names | {f.name for f in fields(cls.Config)}
    for key in values:
        if key not in names:
            raise UserError(unknown("option", f"online.{key}", [f"online.{k}" for k in names]))
    changed = {k: v for k, v in values.items() if k not in online_names}
    hints = get_type_hints(cls.Config, include_extras=True)
    for key in changed:
        if OFFLINE in type_metadata(hints[key]):
            raise UserError(f"online.{key} is used offline only. Set algorithm.{key}=.")
        if key in structural_fields(cls.Config):
            raise UserError(
                f"online.{key}: networks and data have one value for all phases. Set "
                f"algorithm.{key}=."
            )
    online = build(cls.Online, {k: v for k, v in values.items() if k in online_names}, "online.")
    online_cfg: Any = build(cls.Config, asdict(cfg) | changed, "online.")
    return Interaction(online, online_cfg, fixed_online_fields=frozenset(changed))

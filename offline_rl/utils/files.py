"""Atomic files (written under a temporary name, then renamed), locks, JSON, YAML and checksums."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import IO, Any, BinaryIO

from offline_rl.utils.errors import UserError

OLD_S = 86_400.0  # temporary files unchanged for this long are leftovers of a killed process


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write(temporary)` in the folder of `path`, flush to disk, and rename it to `path`.

    Raises UserError if that fails. Then no temporary file remains and an older `path` is unchanged.
    """
    # the name is chosen before `try`, so that `finally` removes the file after an interruption
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_old_temporaries(path)
        temporary.touch(0o600, exist_ok=False)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # for example, if the parent is not a folder
            temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed processes below `folder`.

    No other process may be writing there.
    """
    for path in folder.rglob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_old_temporaries(path: Path) -> None:
    """Remove old temporary files of `path`; other processes may be writing newer ones."""
    for file in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 12}.tmp"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if time.time() - file.stat().st_mtime > OLD_S:
                shutil.rmtree(file) if file.is_dir() else file.unlink()


def write_folder_atomically(path: Path, fill: Callable[[Path], Any]) -> None:
    """Call `fill(temporary)` on an empty folder next to `path`, and rename it to `path`.

    Raises UserError if that fails or `path` exists. Then no temporary folder remains.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        if path.exists():
            raise UserError(f"{path} already exists. Choose another folder, or remove it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_old_temporaries(path)
        temporary.mkdir(0o700)
        fill(temporary)
        temporary.chmod(0o755)
        temporary.rename(path)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Create the folder `path` if it does not exist. Raises UserError if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be created: {error.strerror or error}") from error
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} is not writable. Choose another folder, or change its permissions")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError that names the file if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} is not readable as JSON: {reason}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises UserError if it holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}. A JSON object {{…}} is expected")
    return value


@functools.cache
def _yaml_loader() -> Any:
    """Return PyYAML's safe loader (in C if available), which reads numbers as YAML 1.2 and JSON do.

    For example, `1e3` is a number, unlike in YAML 1.1. Dates stay text, and duplicate keys raise
    an error.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in _RESOLVED]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = set[str]()
            for key in (key for key, _ in node.value if key.tag == _TEXT):
                if key.value in keys:
                    problem = f"duplicate key {key.value}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                keys.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(_FLOAT, _FLOAT_PATTERN, list("-+0123456789."))
    return Loader


_TEXT = "tag:yaml.org,2002:str"
_FLOAT = "tag:yaml.org,2002:float"
_RESOLVED = (_FLOAT, "tag:yaml.org,2002:timestamp")
_FLOAT_PATTERN = re.compile(
    r"""^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|[0-9][0-9_]*e[-+]?[0-9]+
    |\.[0-9][0-9_]*(?:e[-+]?[0-9]+)?|\.inf)$|^\.nan$""",
    re.VERBOSE | re.IGNORECASE,
)


def parse_yaml(path: Path) -> Any:
    """Read a YAML file. Raises UserError that names the file and the problem."""
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_yaml_loader())
    except (yaml.YAMLError, ValueError, TypeError, OSError, LookupError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not readable as YAML: {reason}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. An empty file gives an empty mapping.

    Raises UserError that names the file and the problem.
    """
    value = parse_yaml(path)
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{path}: lines of the form name: value are expected; found {value!r:.80}")
    return value


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process. Raises UserError if another process has locked it.

    If the folder is empty at the end, it and all parent folders that were created are removed.
    """
    path, created = folder / ".lock", [f for f in (folder, *folder.parents) if not f.exists()]
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        except OSError as error:
            message = (
                f"{folder} is not writable ({error.strerror}). Choose another folder with out=…"
            )
            raise UserError(message) from error
        with file:
            if not lock_now(file):
                raise UserError(
                    f"{folder} is in use by another process. Wait for it, or give another name=…"
                )
            if not _is_open_as(path, file.fileno()):  # another process has removed the file
                continue
            try:
                yield
            finally:
                if [*folder.iterdir()] == [path]:
                    path.unlink()
                    with contextlib.suppress(OSError):  # another process may have added files
                        for parent in created:
                            parent.rmdir()
            return


def is_locked(folder: Path) -> bool:
    """Return True if a process on this machine has locked `folder`."""
    try:
        with (folder / ".lock").open("r") as file:
            return not lock_now(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def lock_now(file: IO[Any], *, shared: bool = False) -> bool | None:
    """Lock an open file without waiting, and return True.

    shared: other processes can have a shared lock too. Returns False if another process has the
    lock, and None if the file system has no locks.
    """
    import fcntl  # not on every system

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def open_exclusively(path: Path, waiting: Callable[[], object]) -> Iterator[BinaryIO]:
    """Open `path` for reading and writing, and lock it; create the file if necessary.

    If another process has locked the file, call `waiting()` and wait. Raises OSError.
    """
    import fcntl

    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_open_as(path, handle):  # else another process has renamed or removed the file
                yield file
                return


def _is_open_as(path: Path, handle: int) -> bool:
    """Return True if `path` is still the name of the open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def checksum(path: Path, kind: str = "sha256") -> str:
    """Return the file's SHA-256 (or MD5) in hexadecimal."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

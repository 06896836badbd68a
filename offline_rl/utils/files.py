"""Files that are whole or absent: everything is written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import fcntl
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
from typing import Any, BinaryIO

from offline_rl.utils.errors import UserError

OLD_S = 86_400.0  # an unfinished file that nobody has touched for so long is nobody's


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write(temporary)` beside `path`, flushes it to disk and renames it to `path`.

    Raises UserError, with nothing left behind and an older `path` untouched, where that fails.
    """
    # named before it exists, so that whatever interrupts its making finds what to remove
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
        with contextlib.suppress(OSError):  # such as a folder that is none
            temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """What a killed process left at any depth below `folder`, which is this process's alone."""
    for path in folder.rglob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_old_temporaries(path: Path) -> None:
    """What processes that were killed while they wrote `path` left; others may be writing it."""
    for left in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 12}.tmp"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - left.stat().st_mtime > OLD_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def folder_atomically(path: Path, fill: Callable[[Path], Any]) -> None:
    """Calls `fill(temporary)` on an empty folder beside `path` and renames it to `path`.

    Raises UserError, with nothing left behind, where that fails or `path` is there already.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        if path.exists():
            raise UserError(f"{path} is there already; name another folder, or remove it.")
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
    """Makes `path` where it is not there. Raises UserError where it is, or stays, no use."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be made a folder: {error.strerror or error}") from error
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written to")


def write_json(path: Path, value: Any) -> None:
    """Indented JSON, atomically. NaN and infinity are refused: they are no JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Raises UserError naming the file where it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fault = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} is not readable as JSON: {fault}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Likewise, and where it is JSON of another kind than an object with names."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__} where {{…}} is expected")
    return found


@functools.cache
def _yaml_loader() -> Any:
    """PyYAML's safe loader, in C where available, reading numbers as YAML 1.2 and JSON do.

    YAML 1.1 takes `1e3` for text. A date stays text, and a key that is given twice is refused.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in _RESOLVED]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set[str]()
            for key in (key for key, _ in node.value if key.tag == _TEXT):
                if key.value in seen:
                    fault = f"duplicate key {key.value}"
                    raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
                seen.add(key.value)
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
    """Content of a YAML file. Raises UserError naming file and fault."""
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_yaml_loader())
    except (yaml.YAMLError, ValueError, TypeError, OSError, LookupError, RecursionError) as error:
        fault = " ".join(str(error).split())
        raise UserError(f"{path} is not readable as YAML: {fault}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, empty where that is. Raises UserError naming file and fault."""
    found = parse_yaml(path)
    found = {} if found is None else found
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UserError(f"{path}: names and their values are expected, found {found!r:.80}")
    return found


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process. Raises UserError where another process holds it.

    Where nothing is written into it, it is as before: folders that had to be made are gone again.
    """
    path, made = folder / ".lock", [f for f in (folder, *folder.parents) if not f.exists()]
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        except OSError as error:
            message = f"{folder} cannot be written to ({error.strerror}); choose another with out=…"
            raise UserError(message) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f"{folder} is in use by another process; wait for it or give another name=…"
                ) from None
            if not _names(path, file.fileno()):  # the other one has removed it
                continue
            try:
                yield
            finally:
                if [*folder.iterdir()] == [path]:
                    path.unlink()
                    with contextlib.suppress(OSError):  # what others have put something into
                        for each in made:
                            each.rmdir()
            return


def held(folder: Path) -> bool:
    """Whether a process of this machine holds `folder`."""
    try:
        with (folder / ".lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@contextlib.contextmanager
def sole_writer(path: Path, waiting: Callable[[], object]) -> Iterator[BinaryIO]:
    """`path`, made where it is not, open for reading and writing by this process alone.

    Where another one has it: calls `waiting()` and waits. Raises OSError.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            if _names(path, handle):  # else the other one has renamed or removed it
                yield file
                return


def _names(path: Path, handle: int) -> bool:
    """Whether `path` is still the open file's name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def checksum(path: Path, kind: str = "sha256") -> str:
    """The file's SHA-256 (or MD5) in hexadecimal, read in blocks."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

"""Import of optional packages and of user code.

User code is named by

    mine.py:Name          a name in a file
    package.module:Name   a name in an installed module
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module. Raises UserError that names the extra to install.

    purpose: subject of the error message, such as "a video".
    """
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"{purpose} needs the package {module.split('.')[0]}. In a clone of this repository, "
            f'run: pip install -e ".[{extra}]"'
        ) from None


def import_name(what: str, source: str) -> tuple[Any, ModuleType]:
    """Import the object that `source` names; return the object and its module.

    what: name of the option in error messages. Raises UserError.
    """
    module, _, name = source.rpartition(":")
    try:
        loaded = import_file(Path(module)) if module.endswith(".py") else import_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}={source}: {type(error).__name__}: {error}") from error
    if not hasattr(loaded, name):
        raise UserError(f"{what}={source}: {module} has no {name!r}")
    return getattr(loaded, name), loaded


def import_file(path: Path, name: str | None = None) -> ModuleType:
    """Import a file as a module called `name`, by default the file's name and checksum.

    Exceptions of the file's code are raised unchanged.
    """
    path = path.expanduser().resolve()
    name = name or f"{path.stem}_{checksum(path)[:16]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

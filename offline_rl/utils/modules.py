"""Modules that may be missing: packages that only some need, and code of the user's.

mine.py:Name          of a file
package.module:Name   of what is installed
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


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """The module `module`. Raises UserError with the extra of this package that brings it."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"{purpose} needs the package {module.split('.')[0]}: "
            f'pip install "offline-rl-suite[{extra}]"'
        ) from None


def named(what: str, source: str) -> tuple[Any, ModuleType]:
    """What `source` names, and where it stands. what: the option, with which errors begin.

    Raises UserError.
    """
    module, _, name = source.rpartition(":")
    try:
        loaded = imported(Path(module)) if module.endswith(".py") else import_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}={source}: {type(error).__name__}: {error}") from error
    if not hasattr(loaded, name):
        raise UserError(f"{what}={source}: there is no {name} in {module}")
    return getattr(loaded, name), loaded


def imported(path: Path, name: str | None = None) -> ModuleType:
    """The module in a file, under `name`, by default one of its own. Raises what its code does."""
    path = path.expanduser().resolve()
    name = name or f"{path.stem}_{checksum(path)[:16]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

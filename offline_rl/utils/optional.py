"""Packages that only some layouts need."""

import importlib
from types import ModuleType

from offline_rl.utils.errors import UserError


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """The module `module`. Raises UserError with the extra of this package that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"{purpose} needs the package {module.split('.')[0]}: "
            f'pip install "offline-rl-suite[{extra}]"'
        ) from None

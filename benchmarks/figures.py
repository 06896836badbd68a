"""What scripts share: options that are refused in a sentence, and a measurement's two files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs import UnknownName
from offline_rl.report.statistics import formed_share, formed_text
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json, write_text
from offline_rl.utils.words import unknown

Names = tuple[str, ...] | str  # several, or one


def chosen(given: Names, kind: str, known: Collection[str]) -> tuple[str, ...]:
    """The names given, each of them known. Raises UserError."""
    found = (given,) if isinstance(given, str) else given
    for name in found:
        if name not in known:
            raise UserError(unknown(kind, name, known))
    return found


def import_path(root: Path) -> str:
    """Return a PYTHONPATH for a process that imports from `root` first, then from this one's."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))


def commit_of(checkout: str) -> str:
    """The commit that a checkout is at; nothing where it is none."""
    command = ["git", "-C", checkout, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def formed(hyper: Mapping[str, Any], updates: int) -> str:
    """How far values had formed after so many updates."""
    return formed_text(formed_share(hyper, updates))


def status(command: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> int:
    """0: done; 2: the user's mistake, said on standard error."""
    try:
        command(arguments)
    except (UserError, UnknownName) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def written(
    measure: Callable[[], tuple[Path, dict[str, Any]]], page: Callable[[dict[str, Any]], str]
) -> int:
    """0: measured and written, with the machine; 2: the user's mistake, said on standard error."""

    def command(_: Sequence[str]) -> None:
        file, found = measure()
        make_folder(file.parent)
        found |= {"machine": hardware.description() | {"commit": hardware.commit()}}
        write_json(file, found)
        write_text(file.with_suffix(".md"), page(found).rstrip() + "\n")
        print(page(found))

    return status(command, ())

"""Helpers of the benchmark scripts: check options, run commands, write results and pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs import UnknownName
from offline_rl.reporting.statistics import convergence_after, convergence_text
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json, write_text
from offline_rl.utils.words import unknown

Names = tuple[str, ...] | str  # several names, or one


def check_names(names: Names, kind: str, allowed: Collection[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Raises UserError for one that is not allowed."""
    names = (names,) if isinstance(names, str) else names
    for name in names:
        if name not in allowed:
            raise UserError(unknown(kind, name, allowed))
    return names


def import_path(root: Path) -> str:
    """Return a PYTHONPATH with `root` before this process's PYTHONPATH."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))


def commit_of(checkout: str) -> str:
    """Return the commit of a checkout; an empty string if it is not a git checkout."""
    command = ["git", "-C", checkout, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def check_commit(option: str, checkout: str | None, repository: str, commit: str) -> None:
    """Raise UserError if the checkout that `option` names is not at the commit. None: no check."""
    if checkout is not None and commit_of(checkout) != commit:
        raise UserError(
            f"{option}={checkout} is not a checkout of {repository} at {commit[:7]}. Run `git "
            f"clone https://github.com/{repository}` and `git checkout {commit[:7]}` there."
        )


def convergence_cell(hyper: Mapping[str, Any], updates: int) -> str:
    """Return the critic convergence after this number of updates, as text."""
    return convergence_text(convergence_after(hyper, updates))


def run_command(command: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> int:
    """Run a command and return its exit status: 0, or 2 for a user error.

    A user error is printed on standard error.
    """
    try:
        command(arguments)
    except (UserError, UnknownName) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def run_measurement(
    measure: Callable[[], tuple[Path, dict[str, Any]]], page: Callable[[dict[str, Any]], str]
) -> int:
    """Measure, then write the results, the machine's description and the page.

    Returns the exit status: 0, or 2 for a user error, which is printed on standard error.
    """

    def command(_: Sequence[str]) -> None:
        file, results = measure()
        make_folder(file.parent)
        results |= {"machine": hardware.describe_machine() | {"commit": hardware.current_commit()}}
        write_json(file, results)
        write_text(file.with_suffix(".md"), page(results).rstrip() + "\n")
        print(page(results))

    return run_command(command, ())

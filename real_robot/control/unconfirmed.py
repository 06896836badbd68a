"""Joints whose encoder leapt, on disk until the operator confirms them.

The file lies next to the calibration and exists only while a joint is to be confirmed:
{joint: where it was measured last before its encoder leapt, rad or m}.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from threading import Thread

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_json
from real_robot.safety.guard import Guard


class Unconfirmed:
    """The file of one robot; without a path nothing is kept."""

    def __init__(self, path: Path | None, guard: Guard) -> None:
        """Pass what the file holds to the guard. Raises UserError if it holds something else."""
        self._path, self._guard = path, guard
        self._thread: Thread | None = None
        self._failure: Exception | None = None  # of the last write
        found = read_json(path) if path is not None and path.exists() else {}
        if not isinstance(found, dict) or not all(
            type(q) in (int, float) and isfinite(q) and joint in guard.spec.joints
            for joint, q in found.items()
        ):
            raise UserError(
                f"{path}: expected the joints of {guard.spec.name} that are to be confirmed, each "
                "with a position. Calibrate the robot, which removes the file"
            )
        guard.unconfirmed.update(found)
        self._saved = dict(found)

    def keep(self) -> None:
        """Write what has changed, in a thread: the loop waits for no disk."""
        if self._path is None or self._guard.unconfirmed == self._saved:
            return
        if self._thread is not None and self._thread.is_alive():
            return  # the next tick tries again
        self._saved = dict(self._guard.unconfirmed)
        self._thread = Thread(target=self._write, args=(self._path, self._saved))
        self._thread.start()

    def close(self) -> None:
        """Wait until the file is written. Raises UserError if it cannot be."""
        if self._thread is not None:
            self._thread.join()
        if self._path is None or not (self._failure or self._guard.unconfirmed != self._saved):
            return
        self._write(self._path, dict(self._guard.unconfirmed))
        if self._failure is not None:
            joints = ", ".join(self._guard.unconfirmed)
            raise UserError(
                f"{self._path} cannot be written ({self._failure}): the next run will not know "
                f"that {joints} are to be confirmed. Calibrate the robot"
            )

    def _write(self, path: Path, joints: dict[str, float]) -> None:
        try:
            if joints:
                write_json(path, joints)
            else:
                path.unlink(missing_ok=True)
        except (OSError, UserError) as error:
            self._failure = error
        else:
            self._failure = None

"""File of unconfirmed joints: joints whose encoder jumped and that no operator has confirmed since.

The file is next to the calibration. It exists only while a joint must be confirmed. Its contents
are {joint: last measured position before the encoder jumped, in rad or m}.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from threading import Thread

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_json
from real_robot.safety.guard import Guard


class Unconfirmed:
    """File of unconfirmed joints of one robot. If the path is None, nothing is saved."""

    def __init__(self, path: Path | None, guard: Guard) -> None:
        """Load the file and pass its joints to the guard. Raises UserError if it is invalid."""
        self._path, self._guard = path, guard
        self._thread: Thread | None = None
        self._failure: Exception | None = None  # error of the last write
        joints = read_json(path) if path is not None and path.exists() else {}
        if not isinstance(joints, dict) or not all(
            type(q) in (int, float) and isfinite(q) and joint in guard.spec.joints
            for joint, q in joints.items()
        ):
            raise UserError(
                f"{path}: expected joints of {guard.spec.name}, each with a position. Calibrate "
                "the robot, which removes the file"
            )
        guard.unconfirmed.update(joints)
        self._saved = dict(joints)

    def save(self) -> None:
        """Save changes in a thread, so that the loop does not wait for the disk."""
        if self._path is None or self._guard.unconfirmed == self._saved:
            return
        if self._thread is not None and self._thread.is_alive():
            return  # the last write has not ended: the next tick tries again
        self._saved = dict(self._guard.unconfirmed)
        self._thread = Thread(target=self._write, args=(self._path, self._saved))
        self._thread.start()

    def close(self) -> None:
        """Wait until the file is written. Raises UserError if it cannot be written."""
        if self._thread is not None:
            self._thread.join()
        if self._path is None or not (self._failure or self._guard.unconfirmed != self._saved):
            return
        self._write(self._path, dict(self._guard.unconfirmed))
        if self._failure is not None:
            joints = ", ".join(self._guard.unconfirmed)
            raise UserError(
                f"{self._path} cannot be written ({self._failure}), so the next run will not ask "
                f"to confirm {joints}. Calibrate the robot"
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

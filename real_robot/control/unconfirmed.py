"""Joints whose encoder leapt, on disk until the operator confirms them.

The file lies next to the calibration and exists only while a joint is to be confirmed:
{joint: where it was measured last before its encoder leapt, rad or m}.
"""

from __future__ import annotations

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
        found = read_json(path) if path is not None and path.exists() else {}
        if not isinstance(found, dict) or not all(
            type(q) in (int, float) and joint in guard.spec.joints for joint, q in found.items()
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
        self._thread = Thread(target=_write, args=(self._path, self._saved))
        self._thread.start()

    def close(self) -> None:
        """Wait until the file is written."""
        for _ in range(2):  # what is being written, and what has changed since
            if self._thread is not None:
                self._thread.join()
            self.keep()


def _write(path: Path, joints: dict[str, float]) -> None:
    if joints:
        write_json(path, joints)
    else:
        path.unlink(missing_ok=True)

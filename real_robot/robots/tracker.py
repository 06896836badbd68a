"""Tracker: measurements that another process supplies, such as object positions from a camera.

The other process writes them to a ring in shared memory. The fields of a record are `time_ns`, the
monotonic time of the measurement, and the channels of the robot's file.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.clock import is_current
from real_robot.control.rings import Reader, Ring, RingError
from real_robot.robot import Channel

SLOTS = 256


def record_type(channels: Mapping[str, Channel]) -> np.dtype:
    """Return the type of a tracker's records."""
    return np.dtype([("time_ns", "<i8"), *((k, "<f8", c.shape) for k, c in channels.items())])


class Tracker:
    """Reader of a tracker's ring."""

    def __init__(self, path: Path, channels: Mapping[str, Channel], max_age_s: float) -> None:
        """Open the ring. Raises UserError if it does not exist or has other channels."""
        try:
            self._reader = Reader(Ring.open(path))
        except (OSError, RingError) as error:
            raise UserError(f"tracker {path}: {error}. Check that the tracker runs") from None
        if self._reader.ring.dtype != record_type(channels):
            names = ", ".join(self._reader.ring.dtype.names or ())
            expected = ", ".join(record_type(channels).names or ())
            raise UserError(
                f"tracker {path} writes {names}, but the robot's file needs {expected}: make the "
                "tracker write these fields"
            )
        self._max_age_ns = int(max_age_s * 1e9)
        self._unknown = {k: np.full(c.shape, np.nan) for k, c in channels.items()}

    def read(self, now_ns: int) -> tuple[dict[str, np.ndarray], int]:
        """Return the newest values and their time in ns.

        The values are NaN if the measurement is too old, or if its time is in the future.
        """
        self._reader.newest()
        record = self._reader.record
        time_ns = int(record["time_ns"])
        if not is_current(time_ns, now_ns, self._max_age_ns):
            return self._unknown, time_ns
        return {name: record[name].copy() for name in self._unknown}, time_ns

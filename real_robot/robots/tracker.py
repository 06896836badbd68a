"""What a robot's joints do not tell: a camera's or tracker's measurements, from another process.

The other process writes a ring in shared memory whose fields are `time_ns` (monotonic: when it was
so) and the channels of the robot's file.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.clock import is_current
from real_robot.control.rings import Reader, Ring, RingError
from real_robot.robot import Channel

SLOTS = 256


def record(channels: Mapping[str, Channel]) -> np.dtype:
    """The type of a tracker's records."""
    return np.dtype([("time_ns", "<i8"), *((k, "<f8", c.shape) for k, c in channels.items())])


class Tracker:
    """Raises UserError where the ring is not there or is one of other channels."""

    def __init__(self, path: Path, channels: Mapping[str, Channel], max_age_s: float) -> None:
        try:
            self._reader = Reader(Ring.open(path))
        except (OSError, RingError) as error:
            raise UserError(f"tracker {path}: {error}; is the tracker running?") from None
        if self._reader.ring.dtype != record(channels):
            found = ", ".join(self._reader.ring.dtype.names or ())
            expected = ", ".join(record(channels).names or ())
            raise UserError(f"tracker {path} writes {found}; the robot's channels are {expected}")
        self._max_age_ns = int(max_age_s * 1e9)
        self._unknown = {k: np.full(c.shape, np.nan) for k, c in channels.items()}

    def read(self, now_ns: int) -> tuple[dict[str, np.ndarray], int]:
        """The newest values, NaN where too old or of the future, and when they were true."""
        self._reader.newest()
        record = self._reader.record
        time_ns = int(record["time_ns"])
        if not is_current(time_ns, now_ns, self._max_age_ns):
            return self._unknown, time_ns
        return {name: record[name].copy() for name in self._unknown}, time_ns

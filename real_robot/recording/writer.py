"""Writer process: write the rows from the loop's ring to disk."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from offline_rl.utils.errors import UserError
from real_robot.control.observing import places, unit_of
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import Session, load_session, report_errors
from real_robot.recording.files import RecordingWriter
from real_robot.robot import RobotSpec

FLUSH_S = 0.5  # length of a piece; at most this much is lost if the computer fails
POLL_S = 0.02


class Writer:
    """Collector of rows from the ring. It writes them to the file in pieces."""

    def __init__(self, ring: Ring, path: Path, about: dict[str, Any]) -> None:
        self._reader = Reader(ring, from_start=True)
        self._file = RecordingWriter(path, ring.dtype, about)
        self._rows = bytearray()
        self._count, self._first, self._lost = 0, 0, 0

    def take(self) -> int:
        """Copy all new rows from the ring. Return the number of rows that are not written yet."""
        while self._reader.following():
            if self._count == 0:
                self._first = self._reader.next - 1
            self._rows += self._reader.record.tobytes()
            self._count += 1
        return self._count

    def flush(self) -> None:
        """Write the collected rows as a piece. Raises OSError if the disk is full."""
        if self._count == 0:
            return
        lost = self._reader.lost - self._lost
        self._file.append(bytes(self._rows), self._count, self._first, lost)
        self._lost, self._count = self._reader.lost, 0
        self._rows.clear()

    def close(self) -> None:
        self.take()
        self.flush()
        self._file.close()


def metadata_of(spec: RobotSpec, rate_hz: float) -> dict[str, Any]:
    """Return the metadata of a recording.

    Two keys need an explanation. `measured` maps a field to [name, unit] of each of its numbers.
    `position` has the lowest and the highest positions of the joints.
    """
    measured = dict[str, dict[int, list[str]]]()
    # A number may have several names. The last one is the most specific and is kept.
    for name, (field, place) in places(spec).items():
        measured.setdefault(field, {})[place] = [name, unit_of(spec, field, place)]
    limits = spec.limits
    return {
        "robot": spec.name,
        "joints": spec.joints,
        "units": spec.units,
        "rate_hz": rate_hz,
        "position": [limits.position_low.tolist(), limits.position_high.tolist()],
        "measured": {field: list(numbers.values()) for field, numbers in measured.items()},
    }


def write(session: Session) -> None:
    """Run the writer process until the run ends. Raises UserError, for example for a full disk."""
    assert session.recording is not None
    shared = SharedValues(session.path / "shared_values")
    while not shared["control_beat"]:
        if session.ended(shared):
            return
        time.sleep(POLL_S)
    spec = session.make_robot().spec
    about = metadata_of(spec, session.rate_hz) | {"bundle": session.bundle}
    try:
        writer = Writer(Ring.open(session.path / "ticks"), Path(session.recording), about)
        flushed = time.monotonic()
        while not session.ended(shared):
            waiting = writer.take()
            if waiting and time.monotonic() - flushed >= FLUSH_S:
                writer.flush()
                flushed = time.monotonic()
            shared["writer_beat"] += 1
            time.sleep(POLL_S)
        _wait_for_rest(shared)
        writer.close()
    except OSError as error:
        why = error.strerror or error
        raise UserError(
            f"{session.recording} could not be written: {why}. Check the disk, or record elsewhere"
        ) from None


def _wait_for_rest(shared: SharedValues) -> None:
    """Wait until the robot is at rest, so that the recording includes its stop."""
    end = time.monotonic() + 5.0
    while shared["armed"] and not shared["watchdog_fired"] and time.monotonic() < end:
        time.sleep(POLL_S)


def main(arguments: list[str]) -> None:
    session = load_session(arguments)
    with report_errors(session, "writer"):
        try:
            write(session)
        except UserError as error:
            # If the recorder is needed, the console prints the error and ends the run.
            if not session.recorder_needed:
                print(
                    f"\nwriter: {error}; the run continues without recording",
                    file=sys.stderr,
                    flush=True,
                )
            raise


if __name__ == "__main__":
    main(sys.argv)

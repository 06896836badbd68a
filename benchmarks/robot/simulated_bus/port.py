"""Port of a simulated bus on a simulated clock, which is faster than real time."""

from benchmarks.robot.simulated_bus.line import Line
from real_robot.robots.dynamixel.bus import PortLost


class SteppedPort:
    """Port with a simulated clock. Time advances in `read` and `sleep_until`."""

    def __init__(self, line: Line, now_ns: int = 0) -> None:
        self.line, self._now_ns = line, now_ns
        line.advance(now_ns)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until(self, time_ns: int) -> None:
        self._now_ns = max(self._now_ns, time_ns)
        self.line.advance(self._now_ns)

    def write(self, data: bytes) -> None:
        self._require_plugged()
        self.line.feed(data, self._now_ns)

    def read(self, until_ns: int) -> bytes:
        self._require_plugged()
        while not (data := self.line.take(self._now_ns)):
            if self._now_ns >= until_ns:
                return b""
            next_ns = self.line.next_ns()
            event_ns = until_ns if next_ns is None else max(next_ns, self._now_ns)
            self._now_ns = min(until_ns, event_ns)
        return data

    def drain(self) -> int:
        self._require_plugged()
        return len(self.line.take(self._now_ns))

    def claim(self) -> bool:
        return True

    def owner(self) -> int | None:
        return None

    def close(self) -> None: ...

    def _require_plugged(self) -> None:
        if self.line.faults.unplugged:
            self.line.clear()
            raise PortLost("unplugged")

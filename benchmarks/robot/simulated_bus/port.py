"""A port on a simulated line with a clock of its own: hours of robot time in seconds of ours."""

from benchmarks.robot.simulated_bus.line import Line
from real_robot.robots.dynamixel.bus import PortLost


class SteppedPort:
    """Time passes while a client waits for bytes, and where `sleep_until` says so."""

    def __init__(self, line: Line, now_ns: int = 0) -> None:
        self.line, self._now_ns = line, now_ns
        line.advance(now_ns)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until(self, time_ns: int) -> None:
        self._now_ns = max(self._now_ns, time_ns)
        self.line.advance(self._now_ns)

    def write(self, data: bytes) -> None:
        self._plugged()
        self.line.feed(data, self._now_ns)

    def read(self, until_ns: int) -> bytes:
        self._plugged()
        while not (data := self.line.take(self._now_ns)):
            if self._now_ns >= until_ns:
                return b""
            next_ns = self.line.next_ns()
            happens_ns = until_ns if next_ns is None else max(next_ns, self._now_ns)
            self._now_ns = min(until_ns, happens_ns)
        return data

    def drain(self) -> int:
        self._plugged()
        return len(self.line.take(self._now_ns))

    def claim(self) -> bool:
        return True

    def owner(self) -> int | None:
        return None

    def close(self) -> None: ...

    def _plugged(self) -> None:
        if self.line.faults.unplugged:
            self.line.clear()
            raise PortLost("unplugged")

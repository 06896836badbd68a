"""Simulated servo bus: requests and answers with realistic times.

Times are passed as arguments. So the same class works behind a pseudo-terminal in real time
(`server.py`) and on a simulated clock (`port.py`).
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.robot.simulated_bus.servo import SimulatedServo
from real_robot.robots.dynamixel import table as t
from real_robot.robots.dynamixel.packets import (
    BROADCAST,
    Decoder,
    Error,
    Instruction,
    Packet,
    status,
)
from real_robot.robots.physics import Physics

PROTECT_NS = 20_000_000  # period at which the servos check their load and temperature
Log = Callable[[int, str, dict[str, Any]], None]  # time in ns, kind of event, its arguments


@dataclass(frozen=True)
class Faults:
    """Faults of the bus and of its servos that last until they are changed."""

    missing: tuple[int, ...] = ()  # ids of servos that neither receive nor answer
    drop: float = 0.0  # fraction of answers that are lost
    lose: float = 0.0  # fraction of requests that a servo misses, independently for each servo
    corrupt: float = 0.0  # fraction of answers with one wrong byte
    delay_s: float = 0.0  # additional delay of every answer
    frozen: tuple[int, ...] = ()  # ids of servos whose measurements and clock do not change
    stuck: tuple[int, ...] = ()  # ids of servos whose measurements do not change; their clock runs
    # ids of servos whose encoder is stuck: neither measurements nor position loop see any motion
    blind: tuple[int, ...] = ()
    wrap: dict[int, int] = field(default_factory=dict)  # id -> ticks added to the encoder
    unplugged: bool = False  # True: the cable is unplugged

    _LISTS: ClassVar = ("missing", "frozen", "stuck", "blind")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Faults":
        """Create faults from JSON values. Raises TypeError for an unknown name."""
        lists = {k: tuple(v) for k, v in values.items() if k in cls._LISTS}
        wrap = {int(id_): ticks for id_, ticks in values.get("wrap", {}).items()}
        return cls(**values | lists | {"wrap": wrap})


class Line:
    """Bus with simulated servos.

    latency_s: latency of the USB adapter for every answer. seed: seed for lost and corrupt answers.
    """

    def __init__(
        self,
        servos: Sequence[SimulatedServo],
        physics: Physics,
        *,
        baud: int = 1_000_000,
        latency_s: float = 1e-3,
        seed: int = 0,
        log: Log | None = None,
    ) -> None:
        self.servos, self.physics = list(servos), physics
        self._faults = Faults()
        self.log: Log = log or (lambda _now, _kind, _what: None)
        self._byte_ns = 10 * 1e9 / baud
        self._latency_ns = latency_s * 1e9
        self._random = random.Random(seed)
        self._decoder = Decoder()
        self._free_ns = 0.0  # time at which the bus is free again
        self._stalled_until_ns = 0
        self._late_once_ns = 0.0
        self._requests: deque[tuple[int, Packet]] = deque()
        self._answers: list[tuple[int, int, bytes]] = []  # heap of (time, order, bytes)
        self._count = 0
        self._protect_ns = 0
        physics.before_step = self._before_step

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        for servo in self.servos:
            servo.frozen = servo.id in faults.frozen
            servo.stuck, servo.blind = servo.id in faults.stuck, servo.id in faults.blind
            servo.wrap_ticks = faults.wrap.get(servo.id, 0)

    def feed(self, data: bytes, now_ns: int) -> None:
        """Receive bytes from the host."""
        if self.faults.unplugged:
            return
        for packet in self._decoder.feed(data):
            start = max(now_ns, self._free_ns, self._stalled_until_ns)
            self._free_ns = start + self._bytes(packet) * self._byte_ns
            self._requests.append((int(self._free_ns), packet))
            self._free_ns += self._answer_ns(packet)

    def take(self, now_ns: int) -> bytes:
        """Return the bytes that have reached the host."""
        self.advance(now_ns)
        out = b""
        while self._answers and self._answers[0][0] <= now_ns:
            out += heapq.heappop(self._answers)[2]
        return out

    def next_ns(self) -> int | None:
        """Return the time of the next event on the bus; None: there is none."""
        times = [self._requests[0][0]] if self._requests else []
        times += [self._answers[0][0]] if self._answers else []
        return min(times, default=None)

    def clear(self) -> None:
        """Drop all requests and answers, as when the cable is unplugged."""
        self._requests.clear()
        self._answers.clear()

    def advance(self, now_ns: int) -> None:
        """Process physics, watchdogs and requests up to `now_ns`, in the order of their times."""
        while True:
            request_ns = self._requests[0][0] if self._requests else None
            fires = [(at, s) for s in self.servos if (at := s.watchdog_ns()) is not None]
            first = min((at for at, _ in fires), default=None)
            if first is not None and first <= now_ns and (request_ns is None or first < request_ns):
                self.physics.advance(first)
                for at, servo in fires:
                    if at == first:
                        servo.trip()
                        self.log(first, "watchdog", {"id": servo.id})
            elif request_ns is not None and request_ns <= now_ns:
                self.physics.advance(request_ns)
                self._process_request(*self._requests.popleft())
            else:
                break
        self.physics.advance(now_ns)

    def _before_step(self, now_ns: int) -> None:
        for servo in self.servos:
            servo.follow()
        if now_ns >= self._protect_ns:
            self._protect_ns = now_ns + PROTECT_NS
            for servo, torque in zip(self.servos, self.physics.torque, strict=True):
                servo.protect(float(torque), PROTECT_NS * 1e-9)

    # single events

    def stall(self, seconds: float, now_ns: int) -> None:
        """Make the USB adapter delay all data for `seconds`."""
        self._stalled_until_ns = now_ns + int(seconds * 1e9)

    def late_once(self, seconds: float) -> None:
        """Delay the answers to the next request only."""
        self._late_once_ns = seconds * 1e9

    def servo(self, id_: int) -> SimulatedServo:
        """Return a servo. Raises KeyError."""
        return {servo.id: servo for servo in self.servos}[id_]

    def event(self, kind: str, what: dict[str, Any], now_ns: int) -> None:
        """Execute and log an event. Raises KeyError for an unknown kind."""
        self.advance(now_ns)
        actions: dict[str, Callable[..., Any]] = {
            "stall": lambda seconds: self.stall(seconds, now_ns),
            "late_once": self.late_once,
            "reboot": lambda id: self.servo(id).reboot(now_ns),
            "torque_off": lambda id: self.servo(id).write(t.TORQUE_ENABLE.address, b"\0"),
            "fail": lambda id, bits: self.servo(id).fail(bits),
            "heat": lambda id, celsius: setattr(self.servo(id), "temperature_c", celsius),
            "place": self.physics.place,
            "pose": self.physics.pose,
            "push": self.physics.push,
            "grasp": self.physics.grasp,
        }
        actions[kind](**what)
        self.log(now_ns, kind, what)

    # requests

    def _bytes(self, packet: Packet) -> int:
        return 10 + len(packet.parameters)

    def _answer_ns(self, packet: Packet) -> float:
        """Return the transmission time of all answers, including those of missing servos."""
        content, ids, size = packet.parameters, [packet.id], 0
        if packet.instruction == Instruction.PING:
            size = 3
        elif packet.instruction == Instruction.READ:
            size = _pair(content)[1]
        elif packet.instruction == Instruction.SYNC_READ:
            ids, size = list(content[4:]), _pair(content)[1]
        elif packet.id == BROADCAST:
            return 0.0
        return sum((11 + size) * self._byte_ns + self._return_delay_ns(id_) for id_ in ids)

    def _return_delay_ns(self, id_: int) -> float:
        delays = [s.get(t.RETURN_DELAY) for s in self.servos if s.id == id_]
        return delays[0] * 2000.0 if delays else 0.0

    def _process_request(self, now_ns: int, packet: Packet) -> None:
        content, kind = packet.parameters, packet.instruction
        receivers = {
            servo.id: servo
            for servo in self.servos
            if servo.id not in self.faults.missing
            and not servo.is_booting(now_ns)
            and not (self.faults.lose and self._random.random() < self.faults.lose)
        }
        for servo in receivers.values():
            servo.feed(now_ns)
        at, last = float(now_ns), float(now_ns)
        answers = b""
        if kind == Instruction.SYNC_READ:
            address, size = _pair(content)
            for id_ in content[4:]:
                at += (11 + size) * self._byte_ns + self._return_delay_ns(id_)
                if id_ in receivers and receivers[id_].get(t.STATUS_LEVEL) >= 1:
                    error, data = receivers[id_].read(address, size, now_ns)
                    if answer := self._answer(receivers[id_], error, data):
                        answers, last = answers + answer, at
        elif kind == Instruction.SYNC_WRITE:
            address, size = _pair(content)
            rows = content[4:]
            goals = dict[str, Any]()
            for start in range(0, len(rows) - size, size + 1):
                id_, data = rows[start], rows[start + 1 : start + 1 + size]
                if id_ in receivers:
                    self._write(receivers[id_], address, data, now_ns, goals)
            if goals:
                self.log(now_ns, "goals", goals)
        else:
            for servo in receivers.values():
                if packet.id in (servo.id, BROADCAST):
                    at += self._return_delay_ns(servo.id)
                    error, data, level = self._execute(servo, packet, now_ns)
                    at += (11 + len(data)) * self._byte_ns
                    must_answer = packet.id != BROADCAST or kind == Instruction.PING
                    if must_answer and servo.get(t.STATUS_LEVEL) >= level:
                        answers, last = answers + self._answer(servo, error, data), at
        if answers:  # the adapter forwards consecutive answers together
            delay = self._latency_ns + self.faults.delay_s * 1e9 + self._late_once_ns
            self._late_once_ns = 0.0
            self._count += 1
            heapq.heappush(self._answers, (int(last + delay), self._count, answers))

    def _execute(
        self, servo: SimulatedServo, packet: Packet, now_ns: int
    ) -> tuple[int, bytes, int]:
        """Execute one request. Return error, data and the minimum status level for an answer."""
        content = packet.parameters
        if packet.instruction == Instruction.PING:
            return 0, servo.ping(), 0
        if packet.instruction == Instruction.READ and len(content) == 4:
            return *servo.read(*_pair(content), now_ns), 1
        if packet.instruction == Instruction.WRITE and len(content) > 2:
            goals = dict[str, Any]()
            address = int.from_bytes(content[:2], "little")
            error = self._write(servo, address, content[2:], now_ns, goals)
            if goals:
                self.log(now_ns, "goals", goals)
            return error, b"", 2
        if packet.instruction == Instruction.REBOOT:
            servo.reboot(now_ns)
            self.log(now_ns, "reboot", {"id": servo.id})
            return 0, b"", 2
        return Error.INSTRUCTION, b"", 2

    def _write(
        self,
        servo: SimulatedServo,
        address: int,
        data: bytes,
        now_ns: int,
        goals: dict[str, Any],
    ) -> int:
        """Write registers. Return the error.

        A goal that is accepted while torque is on is added to `goals`, id -> ticks.
        """
        error = servo.write(address, data)
        if address == t.GOAL_POSITION.address and not error:
            if servo.get(t.TORQUE_ENABLE):
                goals[str(servo.id)] = t.GOAL_POSITION.unpack(data)
        else:
            what = {"id": servo.id, "address": address, "data": data.hex(), "error": int(error)}
            self.log(now_ns, "write", what)
        return error

    def _answer(self, servo: SimulatedServo, error: int, data: bytes) -> bytes:
        """Return the bytes of an answer as they reach the host."""
        if self._random.random() < self.faults.drop:
            return b""
        packet = status(servo.id, servo.error_byte(error), data)
        if self._random.random() < self.faults.corrupt:
            index = self._random.randrange(len(packet))
            value = packet[index] ^ self._random.randrange(1, 256)
            packet = packet[:index] + bytes([value]) + packet[index + 1 :]
        return packet


def _pair(content: bytes) -> tuple[int, int]:
    """Return the address and the size at the start of a request's parameters."""
    return int.from_bytes(content[:2], "little"), int.from_bytes(content[2:4], "little")

"""Server process: a simulated bus behind a pseudo-terminal, in real time.

    python -m benchmarks.robot.simulated_bus.server robot=desk folder=/tmp/desk

The server creates these files in the folder:

    port               link to the pseudo-terminal
    calibration.json   calibration of the arm
    tracker            ring with the robot's channels
    truth              ring with the true state
    events.jsonl       all events, with their monotonic time

It reads `control.json`, which `hardware.py` describes. It ends on SIGTERM, or with its parent
process.
"""

import errno
import json
import os
import pty
import select
import signal
import sys
import time
import tty
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.simulated_bus import arm
from benchmarks.robot.simulated_bus.hardware import CHANNELS, Options, truth
from benchmarks.robot.simulated_bus.line import Faults
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, parse_options
from real_robot.control.rings import Ring
from real_robot.robots import tracker
from real_robot.robots.config import RobotDescription, describe
from real_robot.robots.dynamixel import calibration

CONTROL_NS = 10_000_000  # period of reading the control file
PUBLISH_NS = 10_000_000  # period of the tracker and of the true state
SPIN_NS = 100_000  # duration of the busy wait before an answer is due


class Server:
    """Server of a simulated bus."""

    def __init__(self, described: RobotDescription, options: Options) -> None:
        self.folder = Path(options.folder)
        self._events = (self.folder / "events.jsonl").open("a", buffering=1)
        self.line = arm.build(
            described,
            baud=options.baud,
            latency_s=options.latency_s,
            seed=options.seed,
            calibrated=options.calibrated,
            log=self._log,
        )
        spec = described.spec
        calibration.save(self.folder / "calibration.json", arm.calibration(self.line, described))
        physics = self.line.physics
        self._channels = {
            k: physics.position_of(CHANNELS[k]) for k in spec.channels if k in CHANNELS
        }
        self._tip, self._puck = physics.position_of("tip"), physics.position_of("puck")
        self._tracker = Ring.create(
            self.folder / "tracker", tracker.record_type(spec.channels), tracker.SLOTS
        )
        self._truth = Ring.create(self.folder / "truth", truth(len(spec.joints)), tracker.SLOTS)
        self._noise = np.random.default_rng(options.seed)
        self._tracker_noise_m = options.tracker_noise_m
        self._goals: dict[str, list[float]] = {}
        self._control = self.folder / "control.json"
        self._control_version: tuple[int, int] | None = None  # time and inode of the control file
        self._done = 0  # number of the last event
        self._master = self._slave = -1

    def _log(self, now_ns: int, kind: str, what: dict[str, Any]) -> None:
        self._events.write(json.dumps({"t_ns": now_ns, "kind": kind, **what}) + "\n")

    def plug(self) -> None:
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        link, fresh = self.folder / "port", self.folder / ".port"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.ttyname(self._slave))
        fresh.replace(link)

    def unplug(self) -> None:
        (self.folder / "port").unlink(missing_ok=True)
        os.close(self._master)
        os.close(self._slave)
        self._master = self._slave = -1
        self.line.clear()

    def run(self) -> None:
        """Serve until SIGTERM or the end of the parent process."""
        parent = os.getppid()
        control_ns = publish_ns = 0
        self.line.take(time.monotonic_ns())
        self._publish(time.monotonic_ns())  # before the port exists, because the first call is slow
        self.plug()
        self._log(time.monotonic_ns(), "started", {"priority": request_real_time()})
        while os.getppid() == parent:
            now = time.monotonic_ns()
            if now >= control_ns:
                control_ns = now + CONTROL_NS
                self._read_control(now)
            out = self.line.take(now)
            if out and self._master >= 0:
                self._write(out)
            if now >= publish_ns:
                publish_ns = now + PUBLISH_NS
                self._publish(now)
            due = min(control_ns, publish_ns, self.line.next_ns() or publish_ns)
            self._listen((due - SPIN_NS - time.monotonic_ns()) * 1e-9)

    def _listen(self, wait_s: float) -> None:
        ports = [self._master] if self._master >= 0 else []
        if select.select(ports, [], [], max(wait_s, 0))[0]:
            try:
                data = os.read(self._master, 4096)
            except OSError as error:
                if error.errno not in (errno.EIO, errno.EAGAIN):
                    raise
            else:
                self.line.feed(data, time.monotonic_ns())

    def _write(self, out: bytes) -> None:
        try:
            os.write(self._master, out)
        except BlockingIOError:  # no process reads
            self._log(time.monotonic_ns(), "overrun", {"bytes": len(out)})

    def _read_control(self, now_ns: int) -> None:
        """Read the control file if it was replaced."""
        try:
            stat = self._control.stat()
            if (stat.st_mtime_ns, stat.st_ino) == self._control_version:
                return
            self._control_version = (stat.st_mtime_ns, stat.st_ino)
            control = json.loads(self._control.read_text())
            faults = Faults.from_json(control.get("faults", {}))
        except FileNotFoundError:
            return
        except (TypeError, ValueError) as error:
            self._log(now_ns, "refused", {"why": str(error)})
            return
        self.line.advance(now_ns)
        if faults != self.line.faults:
            previous, self.line.faults = self.line.faults, faults
            self._log(now_ns, "faults", control.get("faults", {}))
            if faults.unplugged and not previous.unplugged:
                self.unplug()
            elif previous.unplugged and not faults.unplugged:
                self.plug()
        for number, kind, what in control.get("events", []):
            if number > self._done:
                self._done = number
                try:
                    if kind == "goal":  # sets a channel that no body of the model defines
                        self._goals[what["channel"]] = what["at_m"]
                    else:
                        self.line.event(kind, what, now_ns)
                except (KeyError, TypeError, ValueError) as error:
                    self._log(now_ns, "refused", {"why": f"{kind}: {error!r}"})
        self._log(now_ns, "control", {"done": self._done})

    def _publish(self, now_ns: int) -> None:
        physics = self.line.physics
        row = self._tracker.record
        row["time_ns"] = now_ns
        for name in row.dtype.names or ():
            if name in self._channels:
                at = self._channels[name][: row[name].size]
                row[name] = at + self._noise.normal(0, self._tracker_noise_m, at.shape)
            elif name in self._goals:
                row[name] = self._goals[name]
        self._tracker.push()
        row = self._truth.record
        row["time_ns"], row["simulated_ns"] = now_ns, physics.now_ns or 0
        row["q"], row["dq"], row["torque"] = physics.q, physics.dq, physics.torque
        row["tip"], row["puck"] = self._tip, self._puck
        self._truth.push()


def request_real_time() -> str:
    """Request real-time priority, because hardware does not wait for other processes."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(60))
    except PermissionError:
        return "ordinary"
    return "real-time"


def main() -> int:
    try:
        options = build(Options, parse_options(sys.argv[1:]))
        described = describe(options.robot)
        server = Server(described, options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Timing of the control loop and of inference on this machine.

    python -m benchmarks.robot timing [seconds=60] [rates=[50,200,500]]

Three measurements are made, on an idle machine:

- Deadlines and overhead of the control loop. They are compared with a loop that calls time.sleep,
  and with one that also waits busily. The loops alternate while the other core multiplies matrices.
- Duration of one call of a policy, with each runtime. The policies are an MLP, and chunk policies
  with 1 and with 10 denoising steps.
- The loop at 200 Hz while the policy with 1 denoising step runs in another process.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import policies
from benchmarks.latency import RUNTIMES, decisions
from benchmarks.robot.soak import HORIZON, RATE_HZ, STEP_S, RandomInputs, Servos, spec
from benchmarks.robot.terminal import command
from offline_rl.utils.hardware import describe_machine
from policies import Bundle, Channel, Normalizer, Spec
from policies.bundle import write
from policies.golden import seal
from real_robot.control.clock import MonotonicClock, no_garbage_collection, request_real_time
from real_robot.control.inference import Inference
from real_robot.control.loop import Loop, Request
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.schedule import Chunk, Schedule, Timing
from real_robot.control.session import chunk_of, chunk_type, pin
from real_robot.robot import Command, Reading, Sent
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import envelope

SPINS, SLEEPS = "spin 0.5 ms", "plain sleep"
DENOISING_STEPS = {"one step": 1, "ten steps": 10}  # chunk policy -> number of denoising steps


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `timing`."""

    seconds: float = 60.0  # duration of each measurement at each rate
    rates: list = field(default_factory=lambda: [50, 200, 500])  # control rates, Hz


def _busy(stop: Any) -> None:
    """Keep a core busy, as inference does, until `stop` is set."""
    a = np.random.default_rng(0).normal(size=(256, 256))
    while not stop.is_set():
        a = a @ a / 256


class Timed(Servos):
    """Servos that measure how long their calls take, so that the overhead can exclude this time."""

    spent_ns = 0  # duration of all calls

    def read(self) -> Reading:
        start = time.perf_counter_ns()
        reading = super().read()
        self.spent_ns += time.perf_counter_ns() - start
        return reading

    def command(self, command: Command) -> Sent:
        start = time.perf_counter_ns()
        sent = super().command(command)
        self.spent_ns += time.perf_counter_ns() - start
        return sent


class InferredInputs(RandomInputs):
    """Inputs of the loop whose chunks come from another process."""

    def __init__(self, clock: MonotonicClock, joints: int, chunks: Ring) -> None:
        super().__init__(clock, random.Random(0), joints)
        self._chunks = Reader(chunks)

    def chunk(self) -> Chunk | None:
        return chunk_of(self._chunks.record) if self._chunks.newest() else None


def _loop_timing(rate_hz: float, seconds: float, how: tuple[bool, str], send: Any) -> None:
    """Run the control loop with simulated servos and send its times. Called in its own process.

    how: (True for real-time priority, folder of the rings). The folder is empty unless another
    process runs the policy.
    """
    real_time, folder = how
    granted = request_real_time().text if real_time else "ordinary scheduling"
    if not real_time:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    clock, robot_spec = MonotonicClock(), spec(rate_hz=rate_hz)
    joints = len(robot_spec.joints)
    servos = Timed(robot_spec, clock.now_ns)
    guard = Guard(servos, envelope(robot_spec, robot_spec.limits, rate_hz))
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(folder or temporary)
        ring = Ring.create(where / "ticks", row_type(robot_spec), 64)
        inputs, timing = RandomInputs(clock, random.Random(0), joints), Timing(1 / STEP_S, HORIZON)
        if folder:
            pin(last_core=True)
            inputs = InferredInputs(clock, joints, Ring.open(where / "chunks"))
            timing = Timing(RATE_HZ, HORIZON)
        loop = Loop(guard, clock, Schedule(timing, joints), inputs, ring)
        guard.connect(clock.now_ns())
        guard.run_check(clock.now_ns())
        guard.arm(clock.now_ns())
        inputs.requests.append(Request(start=True))
        wakes, took = list[int](), list[float]()
        with no_garbage_collection():
            loop.begin()
            for _ in range(int(seconds * rate_hz)):
                servos.spent_ns = 0
                before = ring.written
                loop.step()
                done = clock.now_ns()
                if ring.written == before:
                    continue  # the deadline was missed
                wakes.append(int(ring.record["wake_ns"]))
                took.append((done - wakes[-1] - servos.spent_ns) / 1000)
    send.send((wakes, took, loop.missed, granted))


def _plain_timing(rate_hz: float, seconds: float, spin_ns: int | None, send: Any) -> None:
    """Run a loop that sleeps until its next period and send its times.

    spin_ns: duration of a busy wait at the end of the period; None: the loop only sleeps.
    """
    period, wakes = round(1e9 / rate_hz), list[int]()
    deadline = time.monotonic_ns()
    for _ in range(int(seconds * rate_hz)):
        start = time.monotonic_ns()
        wakes.append(start)
        if spin_ns is None:
            time.sleep(max(0, period - (time.monotonic_ns() - start)) * 1e-9)
        else:
            deadline += period
            time.sleep(max(0, deadline - spin_ns - time.monotonic_ns()) * 1e-9)
            while time.monotonic_ns() < deadline:
                pass
    send.send((wakes, [], 0, "ordinary scheduling"))


LOOPS: dict[str, tuple[Callable[..., None], Any]] = {
    "ours": (_loop_timing, (False, "")),
    "ours, real-time priority": (_loop_timing, (True, "")),
    SLEEPS: (_plain_timing, None),
    SPINS: (_plain_timing, 500_000),
}


def timing(rates: list[float], seconds: float, turns: int = 6) -> list[dict[str, Any]]:
    """Measure all loops in alternation, `turns` times, while the other core is busy."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    other = context.Process(target=_busy, args=(stop,))
    other.start()
    rows = []
    try:
        for rate in rates:
            errors: dict[str, list[float]] = {name: [] for name in LOOPS}  # |period - P|, us
            ticks: dict[str, list[float]] = {name: [] for name in LOOPS}  # us
            missed, granted = Counter[str](), dict[str, str]()
            for _, (name, (target, extra)) in product(range(turns), LOOPS.items()):
                receive, send = context.Pipe(False)
                child = context.Process(target=target, args=(rate, seconds / turns, extra, send))
                child.start()
                wakes, took, lost, granted[name] = receive.recv()
                child.join()
                errors[name] += (np.abs(np.diff(wakes) - 1e9 / rate) / 1000).tolist()
                ticks[name] += took
                missed[name] += lost
            for name in LOOPS:
                row = {"rate_hz": rate, "loop": name, "granted": granted[name]}
                row["error_us"] = np.percentile(errors[name], [50, 99, 99.9, 100]).tolist()
                row["overhead_us"] = np.percentile(ticks[name] or [0], [50, 99]).tolist()
                row["missed"] = missed[name]
                rows.append(row)
                print(row, flush=True)
    finally:
        stop.set()
        other.join()
    return rows


def _untrained(kind: str, path: Path) -> Path:
    """Write the bundle of an untrained policy, whose latency is that of a trained one.

    The range of its actions is so small that the robot hardly moves and no reason stops it.
    """
    import torch

    from policies.heads.deterministic import DeterministicActor
    from policies.heads.diffusion import DiffusionActor
    from policies.heads.schedules import euler

    torch.manual_seed(0)
    joints = spec().joints
    names = tuple(f"{joint}.{what}" for what in ("q", "dq") for joint in joints)
    units = tuple(unit for unit in ("rad", "rad/s") for _ in joints)
    sizes: dict[str, Any] = {}
    if kind == "perceptron":
        actor: Any = DeterministicActor(len(names), len(joints), [256, 256])
    else:
        actor = DiffusionActor(
            len(names),
            len(joints),
            network="unet",
            options={"widths": [64, 128, 256], "time_size": 64},
            table=euler(DENOISING_STEPS[kind]),
            n_obs_steps=1,
            horizon=HORIZON,
            n_action_steps=1,
        )
        sizes = {"chunk_size": HORIZON}
    spec_of_policy = Spec(
        (Channel("observation", (len(names),), names=names, units=units),),
        len(joints),
        action_low=(-0.005,) * len(joints),
        action_high=(0.005,) * len(joints),
        rate_hz=RATE_HZ,
        action_names=joints,
        action_units=("rad",),
        **sizes,
    )
    weights = {key: value.numpy() for key, value in actor.state_dict().items()}
    identity = Normalizer.identity(spec_of_policy.observation_shape)
    write(
        path, seal(Bundle(spec_of_policy, type(actor).__name__, actor.arguments, weights, identity))
    )
    subprocess.run(command("export", f"run={path}"), check=True, capture_output=True)
    return path


def inferring(folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the loop at 200 Hz while the one-step policy runs at the same rate."""
    policy = policies.load(_untrained("one step", folder / "one.bundle"), runtime="onnx")
    robot, context = spec(), multiprocessing.get_context("spawn")
    chunks = Ring.create(folder / "chunks", chunk_type(HORIZON, len(robot.joints)), 16)
    shared = SharedValues(folder / "shared_values", create=True)
    shared["starting"] = 1
    receive, send = context.Pipe(False)
    how = (RATE_HZ, seconds, (True, str(folder)), send)
    child = context.Process(target=_loop_timing, args=how)
    child.start()
    while not (folder / "ticks").exists():
        time.sleep(0.01)
    pin(last_core=False)
    inference = Inference(policy, robot, Ring.open(folder / "ticks"), chunks, shared)
    inference.warm_up()
    start = time.monotonic()
    while not receive.poll():
        if not inference.step(time.monotonic_ns()):
            time.sleep(0.0005)
    decisions_per_s = inference.seq / (time.monotonic() - start)
    wakes, took, missed, granted = receive.recv()
    child.join()
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    errors = np.abs(np.diff(wakes) - 1e9 / RATE_HZ) / 1000
    return {
        "rate_hz": RATE_HZ,
        "decisions_a_second": round(decisions_per_s, 1),
        "granted": granted,
        "error_us": np.percentile(errors, [50, 99, 99.9, 100]).tolist(),
        "overhead_us": np.percentile(took, [50, 99]).tolist(),
        "missed": missed,
    }


def latency(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Measure the duration of calls of the policies in ms, in alternation, with one thread."""
    loaded = {
        (kind, runtime): policies.load(_untrained(kind, folder / f"{kind}.bundle"), runtime=runtime)
        for kind, runtime in product(("perceptron", *DENOISING_STEPS), RUNTIMES)
    }
    return decisions(loaded, seconds)


def measure(options: Options) -> dict[str, Any]:
    rows = timing(options.rates, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        times = latency(Path(folder), options.seconds)
        during_inference = inferring(Path(folder), options.seconds)
    return {
        "seconds": options.seconds,
        "rows": rows,
        "latency": times,
        "inferring": during_inference,
        "load": round(os.getloadavg()[0], 1),
        "machine": describe_machine(),
    }

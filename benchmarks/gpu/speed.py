"""Updates per second of many contenders on a GPU, measured one after another.

Contenders compile in parallel, up to one per core. Then they take turns. While a contender has its
turn, those that still compile are stopped, because the speed of uncompiled PyTorch and of JAX
depends on a free core. Contenders that are not ready in time are listed as not measured.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

from benchmarks.speed.bench import Contender, take_turns
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError

TURNS, TURN_S = 3, 0.8


class Starting(Contender):
    """Contender that is in `started` as soon as its process exists."""

    started: ClassVar[list[Starting]] = []

    def read_report(self) -> dict[str, Any]:
        if self not in self.started:
            self.started.append(self)
        return super().read_report()


def jobs(jax_corl: str | None) -> list[dict[str, Any]]:
    """Return the contenders in order of importance."""

    def of(kind: str, names: str, seeds: tuple[int, ...], *precisions: str) -> list[dict[str, Any]]:
        keys = {"kind": kind, "device": "cuda"}
        return [
            keys | {"algorithm": name, "seeds": count, "precision": precision}
            for name in names.split()
            for count in seeds
            for precision in precisions
        ]

    def peers(names: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        keys = {"kind": "jax_corl", "checkout": jax_corl}
        return [
            keys | {"algorithm": name, "seeds": count} for name in names.split() for count in seeds
        ] * bool(jax_corl)

    eager = [
        {"kind": "eager", "device": "cuda", "algorithm": name}
        for name in ("td3_bc", "iql", "cql", "edac", "diffusion_policy")
    ]
    result = eager[:2] + of("ours", "td3_bc iql", (1, 8, 64), "fp32", "bf16")
    result += peers("td3_bc iql", (1, 8, 64)) + eager[2:] + of("ours", "cql", (1, 8), "bf16")
    result += peers("cql", (1, 8)) + of("ours", "diffusion_policy", (1,), "fp32", "bf16")
    result += of("separate", "td3_bc iql", (1,), "fp32")  # what combined kernels gain
    result += of("ours", "bc", (1, 64), "fp32") + of("ours", "sac rlpd fql edac", (1, 8), "tf32")
    return result + of("uncompiled", "td3_bc iql", (1, 64), "fp32")


@contextmanager
def others_stopped(ready: list[Starting]) -> Iterator[None]:
    """Stop all contenders that are not ready."""
    late = [c.process for c in Starting.started if c not in ready and c.process.poll() is None]
    for process in late:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in late:
            process.send_signal(signal.SIGCONT)


def measure(contender: Starting) -> dict[str, Any]:
    """Return the updates per second, summed over seeds, of each turn; or the error."""
    seeds = contender.job.get("seeds", 1)
    try:
        [rates] = take_turns([contender], TURNS, TURN_S)
    except UserError as error:
        return contender.job | {"error": str(error)}
    return contender.job | contender.facts | {"blocks": [seeds * rate for rate in rates]}


def compare(
    wanted: Sequence[dict[str, Any]], end: float, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Measure the contenders until `end`; pass the result or the error of each to `keep`.

    end: reading of time.monotonic().
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    Starting.started, ready, failed = [], list[Starting](), list[dict[str, Any]]()
    pool = ThreadPoolExecutor(hardware.num_cores())

    def start(job: dict[str, Any]) -> None:
        try:
            ready.append(Starting(job, device="cuda"))
        except UserError as error:
            if time.monotonic() < end:
                failed.append(job)
                keep(job | {"error": str(error)})

    starting = [pool.submit(start, job) for job in wanted]
    measured = 0
    while time.monotonic() < end and (measured < len(ready) or not all(f.done() for f in starting)):
        if measured == len(ready):
            time.sleep(0.1)
            continue
        measured += 1
        with others_stopped(ready):
            row = measure(ready[measured - 1])
        ready[measured - 1].stop()
        keep(row)
    pool.shutdown(wait=False, cancel_futures=True)
    while not all(future.done() for future in starting):  # a process may only now have started
        for contender in Starting.started:
            contender.process.kill()
        time.sleep(0.1)
    for contender in ready[measured:]:
        contender.stop()
    done = [*failed, *(contender.job for contender in ready[:measured])]
    for job in wanted:
        if job not in done:
            keep(job | {"error": "not ready in time"})

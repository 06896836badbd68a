"""Choice of precision, compilation and CPU threads.

The choices follow fixed rules and no timing, so the same command on the same machine gives
bit-identical results. They are printed, stored in environment.json, and used again when the run is
resumed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

import torch

from offline_rl.algorithms.common.registry import algorithm_class, algorithm_yaml
from offline_rl.engine.cost import COMPILE_SECONDS, is_worth_compiling
from offline_rl.engine.engine import Engine, Fallback, Precision
from offline_rl.utils import hardware

LOG_EVERY = 1_000  # updates or environment steps between two rows of metrics
LOG_EVERY_ON_GPU = 10_000  # replaces LOG_EVERY for short updates on a GPU
LOG_SECONDS = 5.0  # GPU updates are short if the estimated time of LOG_EVERY of them is lower


@dataclass(frozen=True)
class Choices:
    """Precision, compilation and threads of a run."""

    precision: Precision
    compile: bool
    threads: int  # CPU threads
    why: str = ""  # reason for the choice, printed
    # program -> replacement of its compiled code, which failed the check on this machine
    fallbacks: dict[str, Fallback] = field(default_factory=dict)

    def __str__(self) -> str:
        compilation = "compiled" if self.compile else "not compiled"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.precision}, {compilation}, {threads}: {self.why}"


def choose_precision(
    precision: Precision | Literal["auto"], algorithm: str, device: torch.device
) -> Precision:
    """Return the precision of matrix multiplications.

    `auto` is bf16 if a stored result shows no loss of score and the device supports bf16. Otherwise
    it is tf32 on a GPU that supports it, as in JAX, unless the algorithm needs float32. The rest is
    fp32.
    """
    if precision != "auto":
        return precision
    passed = algorithm_yaml(algorithm).get("parity") or {}
    if "bf16" in passed and hardware.has_bf16(device):
        return "bf16"
    inexact = hardware.has_tf32(device) and not algorithm_class(algorithm).needs_fp32
    return "tf32" if inexact else "fp32"


def choose(compile: str, engine: Engine, updates: int, phase: str = "update") -> Choices:
    """Return the choices for `updates` updates of `phase` on this machine.

    compile: the option of this name, auto, always or never.

    The time of an update is estimated from counted operations.
    """
    cost, device = engine.update_cost(phase), engine.device.type
    size = f"{cost.flops / 1e6:,.0f} MFLOP in {cost.matmuls:.0f} matrix multiplications per update"
    if "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()
    elif device != "cpu":
        threads = 1  # the CPU only runs evaluations, whose matrix multiplications are small
    else:
        threads = cost.threads(hardware.num_cores(), engine.precision)
    seconds = cost.seconds(device, engine.precision, threads)
    if compile != "auto":
        return Choices(engine.precision, compile == "always", threads, f"compile={compile}")
    if missing := hardware.missing_compiler():
        return Choices(engine.precision, False, threads, f"not compiling: {missing}")
    worthwhile = is_worth_compiling(seconds, updates)
    why = (
        f"{size}, estimated {1000 * seconds:,.3g} ms; {updates:,} updates "
        f"{'repay' if worthwhile else 'do not repay'} {COMPILE_SECONDS:.0f} s of compilation"
    )
    return Choices(engine.precision, worthwhile, threads, why)


def log_interval(engine: Engine, phase: str) -> int:
    """Return the number of updates of `phase` between two rows of metrics.

    Writing a row takes a few hundred kernel launches, a synchronization with the device and writes
    to two files for each seed. A GPU runs 1,000 small updates in the same time. The interval
    depends on counted operations. If it depended on measured time, two runs of the same command
    would log at different updates.
    """
    if engine.device.type == "cpu":
        return LOG_EVERY
    seconds = engine.update_cost(phase).seconds(engine.device.type, engine.precision)
    return LOG_EVERY_ON_GPU if LOG_EVERY * seconds < LOG_SECONDS else LOG_EVERY

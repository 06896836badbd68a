"""How a run computes: precision, compilation, threads. Chosen by rule, never by a clock.

So one command on one machine ends in the same bits every time. What was chosen is printed, stored
in environment.json, and used again when the run is resumed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from offline_rl.algorithms.common.registry import algorithm_yaml
from offline_rl.engine.engine import Engine, Fallback, Precision
from offline_rl.engine.work import COMPILE_SECONDS, compiling_pays
from offline_rl.training.options import TrainOptions
from offline_rl.training.run_folder import Done, SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_object

LOG_EVERY = 1_000  # updates or environment steps between two rows of metrics
LOG_EVERY_ON_GPU = 10_000  # the same for short updates on a GPU
LOG_SECONDS = 5.0  # updates on a GPU are short if LOG_EVERY of them take less by rule


@dataclass(frozen=True)
class Choices:
    """What is left to the suite by `auto`."""

    precision: Precision
    compile: bool
    threads: int  # of the processor
    why: str = ""
    # by program: what runs in place of compiled code that failed its check on this machine
    fallbacks: dict[str, Fallback] = field(default_factory=dict)

    def __str__(self) -> str:
        how = "compiled" if self.compile else "not compiled"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.precision}, {how}, {threads}: {self.why}"


def stored(folder: SeedFolder, done: Done) -> Choices:
    """Those that a seed's run began with.

    Raises UserError where they are not known, or cannot be followed for want of a compiler.
    """
    path, (_, progress) = folder.path / "environment.json", folder.load(done)
    try:  # before format 3 of checkpoints they were in that file alone
        choices = progress["choices"] if "choices" in progress else read_object(path)["choices"]
        found = Choices(**choices)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not say how the run began ({error}); remove {path.parent} to begin anew"
        ) from None
    if found.compile and (missing := hardware.compiler_missing()):
        remedy = "install one, or give the new run another name=…"
        raise UserError(f"{folder.path} was begun compiled; here {missing}: {remedy}")
    return found


def precision(o: TrainOptions, device: torch.device) -> Precision:
    """`auto` is bf16 where a committed result says that it costs no score, else float32."""
    if o.precision != "auto":
        return o.precision
    passed = algorithm_yaml(o.algorithm).get("parity") or {}
    return "bf16" if "bf16" in passed and hardware.has_bf16(device) else "fp32"


def choose(o: TrainOptions, engine: Engine, updates: int, phase: str = "update") -> Choices:
    """For so many updates of `engine`, whose work is counted, on this machine."""
    work, device = engine.work(phase), engine.device.type
    size = f"{work.flops / 1e6:,.0f} MFLOP in {work.products:.0f} products an update"
    if "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()
    elif device != "cpu":
        threads = 1  # left to the processor are evaluations, whose products are small
    else:
        threads = work.threads(hardware.cores(), engine.precision)
    seconds = work.seconds(device, engine.precision, threads)
    if o.compile != "auto":
        return Choices(engine.precision, o.compile == "always", threads, f"compile={o.compile}")
    if missing := hardware.compiler_missing():
        return Choices(engine.precision, False, threads, f"not compiling: {missing}")
    pays = compiling_pays(seconds, updates)
    why = (
        f"{size}, {1000 * seconds:,.3g} ms by rule; {updates:,} of them "
        f"{'repay' if pays else 'do not repay'} a compilation of {COMPILE_SECONDS:.0f} s"
    )
    return Choices(engine.precision, pays, threads, why)


def log_interval(engine: Engine, phase: str) -> int:
    """Return the number of a phase's updates between two rows of metrics.

    A row launches some hundred kernels, waits for the device and writes two files for each seed. A
    GPU does 1,000 small updates in the same time. The interval follows from counted work: if it
    followed from a clock, two runs of one command would log at different updates.
    """
    if engine.device.type == "cpu":
        return LOG_EVERY
    seconds = engine.work(phase).seconds(engine.device.type, engine.precision)
    return LOG_EVERY_ON_GPU if LOG_EVERY * seconds < LOG_SECONDS else LOG_EVERY

"""Choice of precision, compilation and CPU threads.

The choices follow fixed rules and no timing, so the same command on the same machine gives
bit-identical results. They are printed, stored in environment.json, and used again when the run is
resumed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from offline_rl.algorithms.common.registry import algorithm_yaml
from offline_rl.engine.cost import COMPILE_SECONDS, is_worth_compiling
from offline_rl.engine.engine import Engine, Fallback, Precision
from offline_rl.training.options import TrainOptions
from offline_rl.training.run_folder import Done, SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object

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
    # program -> what replaces its compiled code, which failed its check on this machine
    fallbacks: dict[str, Fallback] = field(default_factory=dict)

    def __str__(self) -> str:
        how = "compiled" if self.compile else "not compiled"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.precision}, {how}, {threads}: {self.why}"


def load_choices(folder: SeedFolder, done: Done) -> Choices:
    """Load the choices with which a seed's run was started.

    Raises UserError if they are unreadable, or if the run was compiled and no compiler is found.
    """
    path, (_, progress) = folder.path / "environment.json", folder.load(done)
    try:  # checkpoints before format 3 do not contain the choices
        values = progress["choices"] if "choices" in progress else read_json_object(path)["choices"]
        choices = Choices(**values)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not contain the run's precision, compilation and threads ({error}). "
            f"Remove {path.parent} to restart."
        ) from None
    if choices.compile and (missing := hardware.missing_compiler()):
        remedy = "Install one, or give the new run another name=…"
        raise UserError(f"{folder.path} was started with compilation, but {missing}. {remedy}.")
    return choices


def choose_precision(o: TrainOptions, device: torch.device) -> Precision:
    """Return the precision of matrix multiplications.

    `auto` is bf16 if a stored result shows no loss of score and the device supports bf16, else
    fp32.
    """
    if o.precision != "auto":
        return o.precision
    passed = algorithm_yaml(o.algorithm).get("parity") or {}
    return "bf16" if "bf16" in passed and hardware.has_bf16(device) else "fp32"


def choose(o: TrainOptions, engine: Engine, updates: int, phase: str = "update") -> Choices:
    """Return the choices for `updates` updates of `phase` on this machine.

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
    if o.compile != "auto":
        return Choices(engine.precision, o.compile == "always", threads, f"compile={o.compile}")
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

    Writing a row takes some hundred kernel launches, a synchronization with the device and writes
    to two files for each seed. A GPU runs 1,000 small updates in the same time. The interval
    depends on counted operations. If it depended on measured time, two runs of the same command
    would log at different updates.
    """
    if engine.device.type == "cpu":
        return LOG_EVERY
    seconds = engine.update_cost(phase).seconds(engine.device.type, engine.precision)
    return LOG_EVERY_ON_GPU if LOG_EVERY * seconds < LOG_SECONDS else LOG_EVERY

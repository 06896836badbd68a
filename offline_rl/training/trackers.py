"""Loggers of learning curves: TensorBoard, Weights & Biases, or none."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from offline_rl.algorithms.common.schedule import Unit
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.runs.options import WandbOptions
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_json


def word(unit: Unit) -> str:
    """Return the name of a unit in messages: updates, steps or rows."""
    return unit.removeprefix("env_")


class Moment(NamedTuple):
    """Progress at which values were measured."""

    phase: str
    step: int  # progress of the phase
    unit: Unit  # of `step`; the horizontal axis of the phase
    done: Done  # progress of the run

    def __str__(self) -> str:
        """Return the progress of the phase in words."""
        return f"{self.step:,} {word(self.unit)} of {self.phase}"

    def row(self) -> dict[str, Any]:
        """Return the first fields of a row of metrics.jsonl and evaluations.jsonl."""
        row = {"updates": self.done.updates, "env_steps": self.done.env_steps, "phase": self.phase}
        return row | ({"rows": self.done.rows} if self.done.rows else {})


class Tracker(Protocol):
    """Interface of loggers. Values are named `group/name`.

    An evaluation in the background is logged later, with the moment at which it started.
    """

    def log(self, values: Mapping[str, float], moment: Moment) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    """Logger that discards all values."""

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoard:
    """Event files under `<seed folder>/tensorboard/<phase>`.

    The horizontal axis of a phase is its number of environment steps, or of updates if it takes no
    environment steps. Values that an interrupted process logged at step `first[phase]` or later
    are replaced.
    """

    def __init__(self, folder: Path, first: Mapping[str, int]) -> None:
        self.folder, self.first, self.writers = folder / "tensorboard", first, dict[str, Any]()

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        if moment.phase not in self.writers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter
            path, first = str(self.folder / moment.phase), self.first.get(moment.phase, 0)
            self.writers[moment.phase] = SummaryWriter(path, purge_step=first)
        for name, value in values.items():
            self.writers[moment.phase].add_scalar(name, value, moment.step)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class WandB:
    """One W&B run per seed. The seeds of a run form a W&B group.

    The id of the W&B run is stored in the seed's folder. step_metric: horizontal axis.
    """

    def __init__(
        self,
        folder: SeedFolder,
        group: str,
        config: Mapping[str, Any],
        options: WandbOptions,
        step_metric: str,
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        settings = {k: v for k, v in asdict(options).items() if v is not None}
        with wandb_errors():
            self.run = wandb.init(
                **{"group": group, **settings},
                id=run_id(folder.path / "wandb.json"),
                name=f"{group}/{folder.path.name}",
                dir=str(folder.path),
                resume="allow",
                config={**config, "seed": folder.seed},
                reinit="create_new",
            )
        # W&B's own step counter cannot go back, as a resumed run must
        self.run.define_metric("*", step_metric=step_metric)

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        updates, env_steps = moment.done.updates, moment.done.env_steps
        self.run.log({**values, "updates": updates, "env_steps": env_steps})

    def close(self) -> None:
        self.run.finish()


def run_id(path: Path) -> str:
    """Return the id stored in `path`. If there is none, create and store one."""
    if not path.is_file():
        write_json(path, {"id": secrets.token_hex(8)})
    return str(read_json(path)["id"])


def log_in(options: WandbOptions) -> None:
    """Log in to W&B if the mode is online. Raises UserError if that fails."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    if (options.mode or os.environ.get("WANDB_MODE") or "online") == "online":
        with wandb_errors():
            wandb.login()


@contextmanager
def wandb_errors() -> Iterator[None]:
    """Convert W&B's errors to UserError with a remedy."""
    import wandb

    try:
        yield
    except wandb.errors.Error as error:
        remedy = "Log in with `wandb login`, or log to local files with wandb.mode=offline"
        raise UserError(f"tracker=wandb: {error}. {remedy}.") from None


def tracker(
    kind: str,
    folder: SeedFolder,
    group: str,
    config: Mapping[str, Any],
    options: WandbOptions,
    *,
    first: Mapping[str, int],
    step_metric: str,
) -> Tracker:
    """Return the logger of one seed for `tracker=<kind>`. group: <task>/<algorithm>/<name>.

    first: step of the first value to be logged in each phase, 0 if missing. step_metric: horizontal
    axis of W&B, env_steps or updates.
    """
    if kind == "tensorboard":
        return TensorBoard(folder.path, first)
    if kind == "wandb":
        return WandB(folder, group, config, options, step_metric)
    return NoTracker()

"""Loggers of learning curves: TensorBoard, Weights & Biases, or none."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from offline_rl.training.options import WandbOptions
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_json


class Tracker(Protocol):
    """Interface of loggers. Values are named `group/name`.

    clock: updates on the dataset plus environment steps. An evaluation in the background is logged
    later, with the clock at which it started.
    """

    def log(self, values: Mapping[str, float], clock: int) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    """Logger that discards all values."""

    def log(self, values: Mapping[str, float], clock: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoard:
    """Event files under `<seed folder>/tensorboard`.

    Values that an interrupted process logged at clock `first` or later are replaced.
    """

    def __init__(self, folder: Path, first: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first)

    def log(self, values: Mapping[str, float], clock: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, clock)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """One W&B run per seed. The seeds of a run form a W&B group.

    The id of the W&B run is stored in the seed's folder.
    """

    def __init__(
        self, folder: SeedFolder, group: str, config: Mapping[str, Any], options: WandbOptions
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
        self.run.define_metric("*", step_metric="clock")

    def log(self, values: Mapping[str, float], clock: int) -> None:
        self.run.log({**values, "clock": clock})

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
    first: int,
) -> Tracker:
    """Return the logger of one seed for `tracker=<kind>`. group: <task>/<algorithm>/<name>.

    first: clock of the first value to be logged.
    """
    if kind == "tensorboard":
        return TensorBoard(folder.path, first)
    return WandB(folder, group, config, options) if kind == "wandb" else NoTracker()

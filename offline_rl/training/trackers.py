"""Where curves go besides the run folder's own files: TensorBoard, Weights & Biases, or nowhere."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from offline_rl.utils.errors import UserError


class Tracker(Protocol):
    """Takes `group/name` -> number, with the number of updates done."""

    def log(self, values: Mapping[str, float], updates: int) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    """Keeps nothing."""

    def log(self, values: Mapping[str, float], updates: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TensorBoard:
    """Event files under `<seed folder>/tensorboard`; what lies after `updates` is replaced."""

    def __init__(self, folder: Path, updates: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=updates or None)

    def log(self, values: Mapping[str, float], updates: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, updates)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """One run per seed; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        try:
            self.run = wandb.init(
                project="offline_rl",
                dir=str(folder),
                name=name,
                id=name.replace("/", "-"),
                resume="allow",
                config=config,
                reinit="create_new",
            )
        except wandb.errors.Error as error:
            remedy = "log in with `wandb login`, or set WANDB_MODE=offline"
            raise UserError(f"tracker=wandb: {error}; {remedy}") from None

    def log(self, values: Mapping[str, float], updates: int) -> None:
        self.run.log(dict(values), step=updates)

    def close(self) -> None:
        self.run.finish()


def tracker(kind: str, folder: Path, name: str, config: dict[str, Any], updates: int) -> Tracker:
    """The tracker of `tracker=<kind>` for one seed."""
    if kind == "tensorboard":
        return TensorBoard(folder, updates)
    return WandB(folder, name, config) if kind == "wandb" else NoTracker()

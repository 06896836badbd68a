"""Where curves go besides the run folder's own files: TensorBoard, Weights & Biases, or nowhere."""

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
    """Takes `group/name` -> number, with the clock: updates on the data, then environment steps.

    An evaluation that ran beside the training comes later than it was, with its own clock.
    """

    def log(self, values: Mapping[str, float], clock: int) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    """Keeps nothing."""

    def log(self, values: Mapping[str, float], clock: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TensorBoard:
    """Event files under `<seed folder>/tensorboard`.

    What an interrupted call put there from `first` on is replaced.
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
    """One run per seed, in the group of its run, under an id of its own that the folder keeps."""

    def __init__(
        self, folder: SeedFolder, group: str, config: Mapping[str, Any], options: WandbOptions
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        chosen = {k: v for k, v in asdict(options).items() if v is not None}
        with named():
            self.run = wandb.init(
                **{"group": group, **chosen},
                id=run_id(folder.path / "wandb.json"),
                name=f"{group}/{folder.path.name}",
                dir=str(folder.path),
                resume="allow",
                config={**config, "seed": folder.seed},
                reinit="create_new",
            )
        self.run.define_metric("*", step_metric="clock")  # its own steps may not go back

    def log(self, values: Mapping[str, float], clock: int) -> None:
        self.run.log({**values, "clock": clock})

    def close(self) -> None:
        self.run.finish()


def run_id(path: Path) -> str:
    """The id in `path`; a new one, which is put there first, where there is none."""
    if not path.is_file():
        write_json(path, {"id": secrets.token_hex(8)})
    return str(read_json(path)["id"])


def log_in(options: WandbOptions) -> None:
    """Asks for what W&B needs of its user, where it is needed. Raises UserError where it fails."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    if (options.mode or os.environ.get("WANDB_MODE") or "online") == "online":
        with named():
            wandb.login()


@contextmanager
def named() -> Iterator[None]:
    """W&B's errors as the user's, with the remedy."""
    import wandb

    try:
        yield
    except wandb.errors.Error as error:
        remedy = "log in with `wandb login`, or keep it on this machine with wandb.mode=offline"
        raise UserError(f"tracker=wandb: {error}; {remedy}") from None


def tracker(
    kind: str,
    folder: SeedFolder,
    group: str,
    config: Mapping[str, Any],
    options: WandbOptions,
    first: int,
) -> Tracker:
    """The tracker of `tracker=<kind>` for one seed. group: <task>/<algorithm>/<name>.

    first: the clock from which on something is still to be logged.
    """
    if kind == "tensorboard":
        return TensorBoard(folder.path, first)
    return WandB(folder, group, config, options) if kind == "wandb" else NoTracker()

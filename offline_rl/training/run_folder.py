"""A seed's folder: everything a run leaves behind, and all that `report` ever reads.

config.json       the resolved options and hyper-parameters
environment.json  versions, hardware, commit, data checksum, how it computes (training/choices.py)
metrics.jsonl     means of the algorithm's metrics    evaluations.jsonl  every episode's return
checkpoints/updates_<n>[-env_steps_<n>].safetensors   whole state; the two newest are kept
tensorboard/      wandb.json and wandb/ (the run's id there)      result.json      policy.bundle
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_atomically, write_json, write_text
from offline_rl.utils.trees import flatten, plain

KEPT = 2  # checkpoints
FORMAT = "2"  # of checkpoints; another one where what a run goes on from changes


def run_folder(out: str, *parts: str) -> Path:
    """`<out>/<task>/<algorithm>/<name>`; characters outside [A-Za-z0-9._-] become `_`."""
    return Path(out, *(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts))


class Done(NamedTuple):
    """How far a run has come: what orders checkpoints, and names them."""

    env_steps: int = 0  # online; counted first: updates go on between two of them
    updates: int = 0  # all phases together

    @property
    def file(self) -> str:
        """The checkpoint's name."""
        online = f"-env_steps_{self.env_steps:010d}" if self.env_steps else ""
        return f"updates_{self.updates:010d}{online}.safetensors"

    @classmethod
    def of(cls, file: str) -> Done | None:
        """The inverse of `file`; None for other names. Before format 3 it was a number alone."""
        match = re.fullmatch(r"(?:updates_)?(\d+)(?:-env_steps_(\d+))?\.safetensors", file)
        return match and cls(int(match[2] or 0), int(match[1]))


class SeedFolder:
    """One seed's files."""

    def __init__(self, run: Path, seed: int) -> None:
        self.path, self.seed = run / f"seed_{seed}", seed
        self.result, self.config = self.path / "result.json", self.path / "config.json"
        self.bundle = self.path / "policy.bundle"

    @property
    def finished(self) -> bool:
        return self.result.is_file()

    def checkpoints(self) -> dict[Done, Path]:
        """What was done -> file, oldest first."""
        files = (self.path / "checkpoints").glob("*.safetensors")
        found = [(done, f) for f in files if (done := Done.of(f.name)) is not None]
        return dict(sorted(found))

    def save(self, done: Done, tensors: Mapping[str, Tensor], progress: Any) -> None:
        """Writes a checkpoint and removes all but the newest ones."""
        path = self.path / "checkpoints" / done.file
        metadata = {"format": FORMAT, "progress": json.dumps(progress)}
        write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, metadata))
        for old in list(self.checkpoints().values())[:-KEPT]:
            old.unlink(missing_ok=True)

    def load(self, done: Done) -> tuple[dict[str, Tensor], Any]:
        """Tensors and progress of the checkpoint at `done`."""
        path = self.checkpoints()[done]
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata()
                if about.get("format") != FORMAT:
                    raise UserError(
                        f"{path} was written by another version of offline_rl; finish the run with "
                        f"that version, or delete {self.path} to begin again"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return tensors, json.loads(about["progress"])
        except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it to resume earlier") from None

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Adds a line to `<name>.jsonl`."""
        try:
            with (self.path / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(plain(row), allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"{self.path / name}.jsonl could not be written: {error}") from error

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of `<name>.jsonl`; a line that a kill cut short is left out."""
        path, rows = self.path / f"{name}.jsonl", []
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def rewind(self, updates: int, env_steps: int, evaluations: int | None = None) -> None:
        """Forgets what was logged after so many updates or steps, which will be done again.

        evaluations: how many are known to be done, where later ones may have been logged too.
        """
        for name in ("metrics", "evaluations"):
            kept = [
                row
                for row in self.rows(name)
                if row["updates"] <= updates and row["env_steps"] <= env_steps
            ]
            kept = kept[:evaluations] if name == "evaluations" else kept
            text = "".join(json.dumps(row) + "\n" for row in kept)
            write_text(self.path / f"{name}.jsonl", text)

    def agree(self, config: dict[str, Any]) -> None:
        """Stores `config`, or refuses where the run was begun with another, naming the option."""
        config = plain(config)
        if not self.config.is_file():
            write_json(self.config, config)
            return
        before, after = (flatten(c, ".") for c in (read_json(self.config), config))
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                raise UserError(
                    f"{self.path} was begun with {key}={before.get(key)!r}, now it is "
                    f"{after.get(key)!r}; give the new run another name=…"
                )

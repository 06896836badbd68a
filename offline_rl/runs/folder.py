"""Files of a run: one folder for each seed, with config, logs, checkpoints, result and policy.

config.json        resolved options and hyper-parameters
environment.json   versions, hardware, commit, data checksum, precision, compilation, threads
metrics.jsonl      means of the algorithm's metrics
evaluations.jsonl  the return of every evaluation episode
checkpoints/updates_<n>[-env_steps_<n>][-rows_<n>].safetensors   complete state, with a checksum;
                   two are kept
tensorboard/       event files; with tracker=wandb instead wandb.json (the run's id) and wandb/
result.json, policy.bundle   exist once the seed is finished. While a finished run is extended, both
                   files of the shorter run remain until the longer run replaces them
best_safe.bundle   on tasks with a cost limit: policy of the best safe evaluation so far
failed.json        reason of an error; removed when the run is resumed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offline_rl.algorithms.common.registry import split_name
from offline_rl.data.load import known_cards
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import (
    is_locked,
    read_json_object,
    write_atomically,
    write_json,
    write_text,
)
from offline_rl.utils.trees import to_json_values
from policies.bundle import BUNDLE

MAX_CHECKPOINTS = 2
# Prefixes of checksums in a flat config: of the checkpoint and the model that each seed loads
SUMS = ("start.sha256.", "dynamics_sha256.")
FORMAT = "4"  # version of the checkpoint format; increased when the content changes
METADATA = {"format", "progress", "checksum"}  # keys of a checkpoint's metadata


def run_folder(out: str, *parts: str) -> Path:
    """Return `<out>/<task>/<algorithm>/<name>`. Characters outside [A-Za-z0-9._-] become `_`."""
    return Path(out, *(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts))


def named_task(keys: Mapping[str, Any]) -> str:
    """Return the name of a run's task in folders and reports: `none/<dataset>` for task=none.

    The dataset's name is that of its card, or its file name without folder and ending.
    keys: contains the run's task and dataset.
    """
    task, dataset = str(keys["task"]), keys.get("dataset")
    if task != "none" or dataset is None:
        return task
    name = str(dataset)
    return f"none/{name if name in known_cards() else Path(name).stem}"


class OtherVersion(UserError):
    """Checkpoint in the format of another version of offline_rl."""


class Done(NamedTuple):
    """Progress of a run, by which checkpoints are sorted and named."""

    env_steps: int = 0  # of online training; compared first, because updates follow each step
    updates: int = 0  # of all phases
    rows: int = 0  # computed without an environment, by `schedule.Fill`

    @property
    def file(self) -> str:
        """File name of the checkpoint."""
        suffix = "".join(
            f"-{name}_{count:010d}"
            for name, count in (("env_steps", self.env_steps), ("rows", self.rows))
            if count
        )
        return f"updates_{self.updates:010d}{suffix}.safetensors"

    @classmethod
    def of(cls, file: str) -> Done | None:
        """Parse a checkpoint's file name. None for other names."""
        pattern = r"updates_(\d+)(?:-env_steps_(\d+))?(?:-rows_(\d+))?\.safetensors"
        match = re.fullmatch(pattern, file)
        return match and cls(int(match[2] or 0), int(match[1]), int(match[3] or 0))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Done:
        """Return the progress in a row of metrics.jsonl or evaluations.jsonl."""
        return cls(row["env_steps"], row["updates"], row.get("rows", 0))

    def includes(self, other: Done) -> bool:
        """Return True if no count is below that of `other`."""
        return all(mine >= its for mine, its in zip(self, other, strict=True))


class SeedFolder:
    """Files of one seed."""

    def __init__(self, run: Path, seed: int) -> None:
        self.path, self.seed = run / f"seed_{seed}", seed
        self.result, self.config = self.path / "result.json", self.path / "config.json"
        self.bundle, self.failed = self.path / BUNDLE, self.path / "failed.json"

    @property
    def finished(self) -> bool:
        """True if there is a result with the number of updates in config.json."""
        return self.result.is_file() and not self.extending

    @property
    def extending(self) -> bool:
        """True if result.json and the policy are those of a shorter run that is being extended.

        Both stay until the longer run replaces them.
        """
        try:
            done, total = (read_json_object(f)["num_updates"] for f in (self.result, self.config))
            return bool(done < total)
        except (UserError, KeyError, TypeError):  # reported when the content is needed
            return False

    def algorithm(self, config: Mapping[str, Any]) -> str:
        """Return the algorithm in `config`, with its absolute path if its file is elsewhere."""
        name: str = config["algorithm"]
        source, cls = split_name(name)
        if not source.endswith(".py") or Path(source).expanduser().is_file():
            return name
        file = self._algorithm_file().get("file")
        return ":".join(filter(None, (file, cls))) if file else name

    def _algorithm_file(self) -> dict[str, str]:
        """Return path and checksum of a user's algorithm file; empty for built-in algorithms."""
        environment = self.path / "environment.json"
        return (
            (read_json_object(environment).get("algorithm") or {}) if environment.is_file() else {}
        )

    @property
    def start_updates(self) -> int:
        """Updates of the run that this run continues; 0 if it was trained from scratch."""
        start = read_json_object(self.config).get("start") if self.config.is_file() else None
        return int(start["updates"]) if start else 0

    @property
    def state(self) -> str:
        """State of the seed: finished, running, interrupted, or failed with the reason."""
        if self.finished:
            return "finished"
        if is_locked(self.path.parent):
            return "running"
        return (
            f"failed ({read_json_object(self.failed)['why']})"
            if self.failed.is_file()
            else "interrupted"
        )

    def outcome(self) -> dict[str, Any]:
        """Return the content of result.json. Raises UserError if it is damaged."""
        try:
            result = read_json_object(self.result)
            for name in ("score", "mean_return"):
                if not isinstance(result.get(name, ""), int | float | None):
                    raise UserError(f"{self.result}: {name} is not a number")
        except UserError as error:
            raise UserError(
                f"{error}. Remove it; repeating the command creates it again."
            ) from None
        return result

    def checkpoints(self) -> dict[Done, Path]:
        """Return the progress and file of each checkpoint, oldest first."""
        files = (self.path / "checkpoints").glob("*.safetensors")
        checkpoints = [(done, f) for f in files if (done := Done.of(f.name)) is not None]
        return dict(sorted(checkpoints))

    def save(self, done: Done, tensors: Mapping[str, Tensor], progress: Any) -> None:
        """Write a checkpoint. Only the newest MAX_CHECKPOINTS are kept."""
        path, text = self.path / "checkpoints" / done.file, json.dumps(progress)
        metadata = {"format": FORMAT, "progress": text, "checksum": checksum(text, tensors)}

        def write(temporary: Path) -> None:
            try:
                save_file(dict(tensors), temporary, metadata)
            except SafetensorError as error:  # also raised by a full disk
                raise OSError(f"{error}; earlier checkpoints are kept") from error

        write_atomically(path, write)
        for file in list(self.checkpoints().values())[:-MAX_CHECKPOINTS]:
            file.unlink(missing_ok=True)

    def load(self, done: Done) -> tuple[dict[str, Tensor], Any]:
        """Return tensors and progress of the checkpoint at `done`.

        Raises UserError if it is damaged, OtherVersion if another version wrote it.
        """
        path = self.checkpoints()[done]
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, AttributeError, TypeError, ValueError, OSError) as error:
            raise UserError(f"{path} is damaged ({error})") from None
        if metadata.get("format") != FORMAT:
            version = metadata.get("format")
            raise OtherVersion(f"{path} is of another version of offline_rl (format {version})")
        if metadata.keys() != METADATA:
            raise UserError(f"{path} is damaged (its metadata is {sorted(metadata)})")
        text = metadata["progress"]
        if metadata["checksum"] != checksum(text, tensors):
            raise UserError(f"{path} is damaged (its contents do not match its checksum)")
        try:
            return tensors, json.loads(text)
        except ValueError as error:
            raise UserError(f"{path} is damaged (progress: {error})") from None

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a line to `<name>.jsonl`."""
        try:
            with (self.path / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(to_json_values(row), allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"{self.path / name}.jsonl could not be written: {error}") from error

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of `<name>.jsonl`.

        A last line that is incomplete because the process was killed is skipped. Raises UserError
        naming a damaged line.
        """
        rows = list[dict[str, Any]]()
        for where, row in self._lines(name):
            if row is None:
                raise UserError(f"{where} is damaged. Remove this line to read the others.")
            rows.append(row)
        return rows

    def _lines(self, name: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Yield the position of each line of `<name>.jsonl`, and its row, None if damaged."""
        path = self.path / f"{name}.jsonl"
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if not all(type(count) is int for count in Done.of_row(row)):
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == len(lines) and line.isascii():
                    return  # empty, or incomplete because the process was killed
                row = None
            yield f"{path}: line {number}", row

    def evaluation(self, done: Done) -> Episodes | None:
        """Return the logged evaluation at `done`; None if it is missing or incomplete."""
        for _, row in self._lines("evaluations"):
            if row is not None and Done.of_row(row) == done:
                try:
                    return Episodes.from_row(row)
                except (KeyError, TypeError, ValueError):
                    return None
        return None

    def rewind(self, done: Done | None, *, evaluated: bool = True) -> None:
        """Remove rows logged after `done`, since that part is repeated; None removes all rows.

        Damaged lines are reported and removed. evaluated: keep the evaluation at `done`.
        """
        last = done or Done(-1, -1, -1)
        for name in ("metrics", "evaluations"):
            rows = list[dict[str, Any]]()
            for where, row in self._lines(name):
                if row is None:
                    print(f"{where} is damaged and is removed")
                    continue
                at = Done.of_row(row)
                repeated = name == "evaluations" and at == last and not evaluated
                if last.includes(at) and not repeated:
                    rows.append(row)
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_text(self.path / f"{name}.jsonl", text)

    def stored_config(self) -> dict[str, Any] | None:
        """Return the content of config.json; None for a folder without a run.

        Raises UserError if the folder contains a run and the file is missing.
        """
        if self.config.is_file():
            return read_json_object(self.config)
        if self.finished or self.checkpoints():
            raise UserError(
                f"{self.config} is missing, so the run cannot be resumed. Restore it, or give "
                "the new run another name=…"
            )
        return None

    def store_config(self, config: Mapping[str, Any]) -> None:
        """Store the config of a new or resumed run.

        An earlier result and policy stay until `finish` replaces them.
        """
        if not self.config.is_file() or read_json_object(self.config) != to_json_values(config):
            write_json(self.config, to_json_values(config))
        self.failed.unlink(missing_ok=True)

    def fail(self, why: str) -> None:
        """Store the reason of an error. A failure to store it is ignored."""
        with contextlib.suppress(UserError):
            write_json(self.failed, {"why": why})


def common_checkpoint(
    folders: Sequence[SeedFolder],
    remedy: str = "remove the folder to restart, or train under another name=…",
) -> Done | None:
    """Return the newest progress at which all seeds have an intact checkpoint; None without one.

    Prints the damaged checkpoints that it skips. Raises UserError if all are damaged.
    """
    common, faults = set.intersection(*(set(f.checkpoints()) for f in folders)), list[UserError]()
    for done in sorted(common, reverse=True):
        try:
            for folder in folders:
                folder.load(done)
        except UserError as error:
            print(f"{error}: not used")
            faults.append(error)
        else:
            return done
    if common:
        if isinstance(faults[0], OtherVersion):
            remedy = "continue with that version, or use another run"
        raise UserError(
            f"{folders[0].path.parent}: no checkpoint can be resumed ({faults[0]}). To continue, "
            f"{remedy}."
        )
    return None


def seed_numbers(run: Path) -> list[int]:
    """Return the seeds that have a folder in a run's folder, sorted."""
    return sorted(int(p.name[5:]) for p in run.glob("seed_*") if p.name[5:].isdigit())


def learner_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors without experience, policy memory and rings."""
    excluded = ("buffer", "memory", "rings")
    return {k: v for k, v in tensors.items() if k.split("/")[0] not in excluded}


def checksum(progress: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the checksum of a checkpoint: progress, tensor names, dtypes, shapes and bytes."""
    digest = hashlib.blake2b(progress.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

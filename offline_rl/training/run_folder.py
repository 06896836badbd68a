"""A seed's folder: everything a run leaves behind, and all that `report` ever reads.

config.json       the resolved options and hyper-parameters
environment.json  versions, hardware, commit, data checksum, how it computes (training/choices.py)
metrics.jsonl     means of the algorithm's metrics    evaluations.jsonl  every episode's return
checkpoints/updates_<n>[-env_steps_<n>].safetensors   whole state, with a checksum; two are kept
tensorboard/      wandb.json and wandb/ (the run's id there)      result.json      policy.bundle
                  (of a run that is being extended: its shorter self, until both are replaced)
failed.json       why it stopped, where that was a mistake; gone when it goes on
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offline_rl.algorithms.common.registry import split
from offline_rl.data.load import known_cards
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import held, read_object, write_atomically, write_json, write_text
from offline_rl.utils.trees import flatten, plain
from policies.bundle import BUNDLE

KEPT = 2  # checkpoints
CHECKSUMS = {  # which tell no one much
    "data": "other data",
    "expert_data": "another expert's data",
    "base_sha256": "another base",
    "code_sha256": "other code in its algorithm's file",
}
SUMS = "start.sha256."  # in a flat config: what each seed of a run goes on from
FORMAT = "3"  # of checkpoints; another one where what a run goes on from changes
METADATA = {"2": {"format", "progress"}, "3": {"format", "progress", "checksum"}}  # that are read


def run_folder(out: str, *parts: str) -> Path:
    """`<out>/<task>/<algorithm>/<name>`; characters outside [A-Za-z0-9._-] become `_`."""
    return Path(out, *(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts))


def named_task(keys: Mapping[str, Any]) -> str:
    """Return what a run's folder and reports call its task: `none/<dataset>` for task=none.

    A dataset is called by its card, or by its file without folder and ending. keys: a run's task
    and dataset.
    """
    task, dataset = str(keys["task"]), keys.get("dataset")
    if task != "none" or dataset is None:
        return task
    name = str(dataset)
    return f"none/{name if name in known_cards() else Path(name).stem}"


class OtherVersion(UserError):
    """A checkpoint that another version wrote; a copy of it is no better."""


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
        """The inverse of `file`; None for other names. Earlier ones were a number alone."""
        match = re.fullmatch(r"(?:updates_)?(\d+)(?:-env_steps_(\d+))?\.safetensors", file)
        return match and cls(int(match[2] or 0), int(match[1]))


class SeedFolder:
    """One seed's files."""

    def __init__(self, run: Path, seed: int) -> None:
        self.path, self.seed = run / f"seed_{seed}", seed
        self.result, self.config = self.path / "result.json", self.path / "config.json"
        self.bundle, self.failed = self.path / BUNDLE, self.path / "failed.json"

    @property
    def finished(self) -> bool:
        """True if there is a result of as many updates as config.json asks for."""
        return self.result.is_file() and not self.extending

    @property
    def extending(self) -> bool:
        """True if result.json and the policy are those of a shorter run that is being extended.

        Both stay until the longer run replaces them.
        """
        try:
            done, wanted = (read_object(f)["num_updates"] for f in (self.result, self.config))
            return bool(done < wanted)
        except (UserError, KeyError, TypeError):  # whoever needs such a file says what is wrong
            return False

    def algorithm(self, config: Mapping[str, Any]) -> str:
        """Its name in `config`; of a file that lies elsewhere from here, with its whole path."""
        name: str = config["algorithm"]
        source, cls = split(name)
        if not source.endswith(".py") or Path(source).expanduser().is_file():
            return name
        file = self._code().get("file")
        return ":".join(filter(None, (file, cls))) if file else name

    def _code(self) -> dict[str, str]:
        """Where an algorithm that is not ours lay, and its file's checksum; nothing of ours."""
        about = self.path / "environment.json"
        return (read_object(about).get("algorithm") or {}) if about.is_file() else {}

    @property
    def began(self) -> int:
        """Updates of the run that it goes on from; 0 where there is none."""
        start = read_object(self.config).get("start") if self.config.is_file() else None
        return int(start["updates"]) if start else 0

    @property
    def state(self) -> str:
        """finished, running, interrupted, or failed with the reason."""
        if self.finished:
            return "finished"
        if held(self.path.parent):
            return "running"
        return (
            f"failed ({read_object(self.failed)['why']})"
            if self.failed.is_file()
            else "interrupted"
        )

    def outcome(self) -> dict[str, Any]:
        """result.json. Raises UserError where it is damaged."""
        try:
            found = read_object(self.result)
            for name in ("score", "mean_return"):
                if not isinstance(found.get(name, ""), int | float | None):
                    raise UserError(f"{self.result} has no number {name}")
        except UserError as error:
            raise UserError(f"{error}; remove it, and the same command makes it again") from None
        return found

    def checkpoints(self) -> dict[Done, Path]:
        """What was done -> file, oldest first."""
        files = (self.path / "checkpoints").glob("*.safetensors")
        found = [(done, f) for f in files if (done := Done.of(f.name)) is not None]
        return dict(sorted(found))

    def save(self, done: Done, tensors: Mapping[str, Tensor], progress: Any) -> None:
        """Writes a checkpoint and removes all but the newest ones."""
        path, text = self.path / "checkpoints" / done.file, json.dumps(progress)
        metadata = {"format": FORMAT, "progress": text, "checksum": checksum(text, tensors)}

        def write(temporary: Path) -> None:
            try:
                save_file(dict(tensors), temporary, metadata)
            except SafetensorError as error:  # which a full disk is too
                raise OSError(f"{error}; what was saved before is kept") from error

        write_atomically(path, write)
        for old in list(self.checkpoints().values())[:-KEPT]:
            old.unlink(missing_ok=True)

    def load(self, done: Done) -> tuple[dict[str, Tensor], Any]:
        """Tensors and progress of the checkpoint at `done`. Raises UserError for a damaged one."""
        path = self.checkpoints()[done]
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, AttributeError, TypeError, ValueError, OSError) as error:
            raise UserError(f"{path} is damaged ({error})") from None
        if about.get("format") not in METADATA:
            found = about.get("format")
            raise OtherVersion(f"{path} is of another version of offline_rl (format {found})")
        if about.keys() != METADATA[about["format"]]:
            raise UserError(f"{path} is damaged (its metadata is {sorted(about)})")
        text = about["progress"]
        if about["format"] == FORMAT and about["checksum"] != checksum(text, tensors):
            raise UserError(f"{path} is damaged (its contents do not match its checksum)")
        try:
            return tensors, json.loads(text)
        except ValueError as error:
            raise UserError(f"{path} is damaged (progress: {error})") from None

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Adds a line to `<name>.jsonl`."""
        try:
            with (self.path / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(plain(row), allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"{self.path / name}.jsonl could not be written: {error}") from error

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All lines of `<name>.jsonl`; one that a kill cut short, the last, is left out.

        Raises UserError naming a line that is damaged.
        """
        rows = list[dict[str, Any]]()
        for where, row in self._lines(name):
            if row is None:
                raise UserError(f"{where} is damaged; remove that line to read the others")
            rows.append(row)
        return rows

    def _lines(self, name: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Where each line of `<name>.jsonl` stands, and its row; None where that is damaged."""
        path = self.path / f"{name}.jsonl"
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if not type(row["updates"]) is type(row["env_steps"]) is int:
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == len(lines) and line.isascii():
                    return  # nothing, or what a kill cut short
                row = None
            yield f"{path}: line {number}", row

    def evaluation(self, done: Done) -> Episodes | None:
        """What is logged of the evaluation at `done`, if it is whole."""
        for _, row in self._lines("evaluations"):
            if row is not None and Done(row["env_steps"], row["updates"]) == done:
                try:
                    return Episodes.from_row(row)
                except (KeyError, TypeError, ValueError):
                    return None
        return None

    def rewind(self, done: Done | None, *, evaluated: bool = True) -> None:
        """Forgets what was logged after `done`, which will be done again; everything for None.

        Names the damaged lines that it leaves out. evaluated: keeps the evaluation at `done`.
        """
        last = done or Done(-1, -1)
        for name in ("metrics", "evaluations"):
            kept = list[dict[str, Any]]()
            for where, row in self._lines(name):
                if row is None:
                    print(f"{where} is damaged and left out")
                    continue
                at = Done(row["env_steps"], row["updates"])
                again = name == "evaluations" and at == last and not evaluated
                if at.env_steps <= last.env_steps and at.updates <= last.updates and not again:
                    kept.append(row)
            text = "".join(json.dumps(row) + "\n" for row in kept)
            write_text(self.path / f"{name}.jsonl", text)

    def agree(self, config: dict[str, Any], free: Collection[str] = ()) -> None:
        """Stores `config`, or refuses where the run was begun with another, naming the option.

        free: names in which it may be another.
        """
        config = plain(config)
        if not self.config.is_file():
            if self.finished or self.checkpoints():
                raise UserError(
                    f"{self.config} is missing, which says what the run was begun with: bring it "
                    f"back, or give the new run another name=…"
                )
            write_json(self.config, config)
            return
        before = flatten(own(read_object(self.config), self.seed), ".")
        after = flatten(config, ".")
        if "code_sha256" in after and "code_sha256" not in before:  # as earlier versions left it
            before["code_sha256"] = self._code().get("sha256")
        differ = sorted((before.keys() | after.keys()) - {*free})
        differ = [key for key in differ if not agree_in(key, before, after)]
        differ.sort(key=lambda key: key not in CHECKSUMS)  # other data explains other options
        if differ:
            key = differ[0]
            then = f"{typed(key)}={before.get(key)!r}, now it is {after.get(key)!r}"
            files = [config.get("dataset") for config in (before, after)]
            if key == "data" and all(files) and files[0] != files[1]:
                then = f"other data ({files[0]}, now it is {files[1]})"
            else:
                then = CHECKSUMS.get(key, then)
            raise UserError(f"{self.path} was begun with {then}; give the new run another name=…")

    def renew(self, config: dict[str, Any]) -> None:
        """Store `config`, with which the run continues and which `agree` has accepted.

        An earlier result and policy stay until `finish` replaces them.
        """
        if read_object(self.config) != plain(config):
            write_json(self.config, plain(config))
        self.failed.unlink(missing_ok=True)

    def fail(self, why: str) -> None:
        """Keeps the reason, where a disk still takes it."""
        with contextlib.suppress(UserError):
            write_json(self.failed, {"why": why})


def common_checkpoint(
    folders: Sequence[SeedFolder],
    remedy: str = "remove the folder to begin again, or train under another name=…",
) -> Done | None:
    """The newest point of which all seeds have a whole checkpoint; None where none has any.

    Names the damaged ones that it passes over. Raises UserError where no whole ones are left.
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
            remedy = "go on with that version, or name another run"
        raise UserError(
            f"{folders[0].path.parent}: no checkpoint is left to go on from ({faults[0]}); {remedy}"
        )
    return None


def typed(key: str) -> str:
    """How a name of a flat config is given on the command line."""
    return re.sub("^hyper[.]", "algorithm.", key)


def agree_in(key: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two flat configs agree; an option that one's version did not have was off then."""
    codes = one.get("code_sha256"), two.get("code_sha256")
    if key == "algorithm" and None not in codes:
        return True  # a file, known by its checksum, wherever it is named from
    every = f"hyper.{key.removeprefix('online.')}"  # what holds online if nothing is said
    if key.startswith("online.") and every in one and every in two:
        return bool(one.get(key, one[every]) == two.get(key, two[every]))
    if key in one and key in two:
        return bool(one[key] == two[key])
    found = one.get(key, two.get(key))
    return found is None or found is False


def own(config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A seed's config without what other seeds go on from, which earlier versions wrote there."""
    if not config.get("start"):
        return dict(config)
    sums = config["start"].get("sha256", {})
    sums = {number: digest for number, digest in sums.items() if number == str(seed)}
    return {**config, "start": {**config["start"], "sha256": sums}}


def learner(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors without those of the collector: experience and memory."""
    return {k: v for k, v in tensors.items() if k.split("/")[0] not in ("buffer", "memory")}


def checksum(progress: str, tensors: Mapping[str, Tensor]) -> str:
    """Of what a checkpoint holds: progress, and the tensors' names, kinds, shapes and bytes."""
    total = hashlib.blake2b(progress.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        total.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()

"""A seed's folder as its files tell it: what reports, compact files and pages are made of.

Read are config.json, environment.json, evaluations.jsonl, the last line of metrics.jsonl,
result.json and failed.json, nothing else: a run made elsewhere can be dropped in, and a running
one, which a process holds by its .lock, is seen as far as it has come.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.registry import label
from offline_rl.training.run_folder import SeedFolder, named_task, own
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_object


@dataclass(frozen=True)
class Record:
    """What a seed's files tell, in the words of today's version."""

    config: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any] | None  # None where it is not finished
    evaluations: list[dict[str, Any]]
    metrics: dict[str, Any]  # the last row's
    state: str = "finished"  # or running, interrupted, failed and why

    @property
    def run(self) -> str:
        """What its seeds have in common."""
        return run_of(self.config)

    @property
    def key(self) -> tuple[str, int]:
        """The run, and which of its seeds it is."""
        assert self.result is not None
        return self.run, self.result["seed"]


def run_of(told: Mapping[str, Any]) -> str:
    """<task>/<algorithm>/<name> of a config, a result's row or a suite's cell."""
    return f"{named_task(told)}/{label(str(told['algorithm']))}/{told['name']}"


def of_folder(folder: SeedFolder) -> Record:
    """What the seed's files tell. Raises UserError naming the one that is damaged."""
    result, environment = None, folder.path / "environment.json"
    config = own(read_object(folder.config), folder.seed)
    machine = read_object(environment) if environment.is_file() else {}
    if folder.finished:
        result = as_of_today(read_object(folder.result), config, folder.result)
    metrics = last_row(folder.path / "metrics.jsonl")
    evaluations = folder.rows("evaluations")
    return Record(config, machine, result, evaluations, metrics, folder.state)


def as_of_today(result: dict[str, Any], config: dict[str, Any], file: Path) -> dict[str, Any]:
    """A result.json of any version: earlier ones counted all updates as one, and kept no costs."""
    if "pretrain_updates" not in result:
        try:
            main, counted = config["num_updates"], result["num_updates"]
            before, online = (counted - main, 0) if main else (0, counted)
        except (KeyError, TypeError) as error:
            raise UserError(f"{file} or its config.json lacks {error}") from None
        result |= {"num_updates": main, "pretrain_updates": before, "online_updates": online}
    return {"costs": None, **result}


def last_row(file: Path) -> dict[str, Any]:
    """The last line of a file of JSON lines that is whole; empty where there is none."""
    for line in reversed(file.read_text(errors="replace").splitlines() if file.is_file() else []):
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
    return {}


def seed_folders(folder: Path) -> list[SeedFolder]:
    """Every seed's folder at any depth below `folder`, sorted."""
    files = [f for name in ("config", "result") for f in folder.resolve().rglob(f"{name}.json")]
    numbered = {f.parent for f in files if f.parent.name.startswith("seed_")}
    found = [(p, p.name.removeprefix("seed_")) for p in sorted(numbered)]
    return [SeedFolder(p.parent, int(n)) for p, n in found if n.isdecimal() and str(int(n)) == n]

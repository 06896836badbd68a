"""Content of a seed's folder, from which reports, compact files and result pages are made.

Only config.json, environment.json, evaluations.jsonl, the last line of metrics.jsonl, result.json
and failed.json are read, so a run that was trained elsewhere can be copied in. A run that is still
training (its process locks .lock) is read up to the last complete line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.registry import run_label
from offline_rl.runs.folder import SeedFolder, named_task
from offline_rl.utils.files import read_json_object


@dataclass(frozen=True)
class Record:
    """Content of a seed's files."""

    config: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any] | None  # None if the seed is not finished
    evaluations: list[dict[str, Any]]
    metrics: dict[str, Any]  # last line of metrics.jsonl
    state: str = "finished"  # finished, running, interrupted, or failed with the reason

    @property
    def run(self) -> str:
        """The run's name, <task>/<algorithm>/<name>."""
        return run_of(self.config)

    @property
    def key(self) -> tuple[str, int]:
        """The run's name and the seed's number."""
        assert self.result is not None
        return self.run, self.result["seed"]


def run_of(config: Mapping[str, Any]) -> str:
    """Return the name of a run, <task>/<algorithm>/<name>.

    config: the run's config, its row in runs.csv, or its cell of a suite.
    """
    return f"{named_task(config)}/{run_label(str(config['algorithm']))}/{config['name']}"


def of_folder(folder: SeedFolder) -> Record:
    """Read a seed's files. Raises UserError naming a damaged file."""
    result, environment = None, folder.path / "environment.json"
    config = config_of_seed(read_json_object(folder.config), folder.seed)
    machine = read_json_object(environment) if environment.is_file() else {}
    if folder.finished:
        result = read_json_object(folder.result)
    metrics = last_row(folder.path / "metrics.jsonl")
    evaluations = folder.rows("evaluations")
    return Record(config, machine, result, evaluations, metrics, folder.state)


def config_of_seed(config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a seed's config, without the checksums of files that other seeds load.

    Compact files store one config for all seeds of a run.
    """

    def of_seed(sums: Mapping[str, str]) -> dict[str, str]:
        return {number: digest for number, digest in sums.items() if number == str(seed)}

    config = dict(config)
    if config.get("start"):
        config["start"] = {**config["start"], "sha256": of_seed(config["start"].get("sha256", {}))}
    if config.get("dynamics_sha256"):
        config["dynamics_sha256"] = of_seed(config["dynamics_sha256"])
    return config


def last_row(file: Path) -> dict[str, Any]:
    """Return the last complete line of a JSON-lines file; empty if there is none."""
    for line in reversed(file.read_text(errors="replace").splitlines() if file.is_file() else []):
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
    return {}


def seed_folders(folder: Path) -> list[SeedFolder]:
    """Return every seed's folder at any depth below `folder`, sorted."""
    files = [f for name in ("config", "result") for f in folder.resolve().rglob(f"{name}.json")]
    numbered = {f.parent for f in files if f.parent.name.startswith("seed_")}
    pairs = [(p, p.name.removeprefix("seed_")) for p in sorted(numbered)]
    return [SeedFolder(p.parent, int(n)) for p, n in pairs if n.isdecimal() and str(int(n)) == n]

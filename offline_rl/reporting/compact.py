"""Compact files: the finished runs of a study in three small files, which `report` also reads.

    runs.csv            one row per seed: result, machine, last metrics
    configs.json        <task>/<algorithm>/<name> -> the resolved configuration that its seeds share
    evaluations.csv.gz  one row per episode of every evaluation

Equal runs give equal bytes. Floats are stored without loss. Means, scores and the last evaluation
follow from the episodes; they are not stored but computed when the files are read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from envs import Reference
from offline_rl.data.load import data_folder
from offline_rl.reporting.records import (
    Record,
    config_of_seed,
    of_folder,
    run_of,
    seed_folders,
)
from offline_rl.runs.folder import SUMS, named_task
from offline_rl.runs.run import difference, option_name
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_atomically, write_json
from offline_rl.utils.trees import flatten

RUNS, CONFIGS, EVALUATIONS = "runs.csv", "configs.json", "evaluations.csv.gz"
WHOLE = ("dynamics",)  # nested fields of a result that are stored in one cell
LAST = ("returns", "success", "costs")  # fields of a result that repeat its last evaluation
REFERENCE = ("min", "max", "source", "environment", "success", "last_evaluations")
# first columns of runs.csv; the others follow in alphabetical order
FIRST: tuple[str, ...] = ("task", "algorithm", "name", "seed", "seeds_stacked", "num_updates")
FIRST += ("pretrain_updates", "online_updates", "num_env_steps", "score", "mean_return")
FIRST += ("behavior_score", "behavior_return", "seconds", "compile_seconds", "updates_per_second")
FIRST += ("device", "precision", "compiled", "dataset", "dataset_sha256", "diverged_at")
EPISODE: tuple[str, ...] = ("run", "seed", "updates", "env_steps", "episode_seed", "return")
EPISODE += ("length", "success", "cost")
# Cells of these columns are plain text, all others are JSON. An empty cell is null.
TEXT = {"task", "algorithm", "name", "device", "precision", "dataset", "dataset_sha256", "version"}
TEXT |= {"commit", "last_checkpoint", "score_reference.source", "score_reference.environment"}
VERSIONS = ("offline_rl", "commit", "python", "torch", "numpy", "mujoco", "gymnasium", "machine")
TEXT |= {f"environment.{key}" for key in (*VERSIONS, "gpu", "choices.precision")}


def pack(folders: Sequence[str | Path], out: str | Path) -> int:
    """Add the finished seeds below `folders` to the compact files in `out`; return their number.

    A seed that `out` already contains is replaced. Raises UserError, and does not change `out`, if
    two folders contain the same seed or the settings of a run's seeds differ.
    """
    out, new = Path(out), dict[tuple[str, int], Record]()
    seeds_in = {folder: seed_folders(Path(folder)) for folder in folders}
    if empty := [str(folder) for folder, seeds in seeds_in.items() if not seeds]:
        raise UserError(f"{', '.join(empty)}: no runs found. Use folders that contain runs.")
    for seed in chain(*seeds_in.values()):
        record = of_folder(seed)
        if record.result is None:
            continue
        if record.key in new:
            raise UserError(
                f"{seed.path} is seed {seed.seed} of {record.run} a second time. Pack one of them."
            )
        new[record.key] = portable(record)
    old = {record.key: record for record in read(out)} if (out / RUNS).is_file() else {}
    write(list((old | new).values()), out)
    return len(old | new)


def portable(record: Record) -> Record:
    """Return `record` with portable paths: see `portable_path`."""
    assert record.result is not None

    def with_portable_data(values: dict[str, Any]) -> dict[str, Any]:
        paths = ("dataset", "expert_dataset", "dynamics")
        names = [key for key in paths if isinstance(values.get(key), str)]
        return values | {key: portable_path(values[key]) for key in names}

    environment = {k: v for k, v in record.environment.items() if not k.startswith("dataset")}
    if "file" in (origin := environment.get("algorithm") or {}):  # a user's algorithm
        environment["algorithm"] = origin | {"file": Path(origin["file"]).name}
    config, result = with_portable_data(record.config), with_portable_data(record.result)
    config["algorithm"] = portable_path(config["algorithm"])
    return Record(config, environment, result, record.evaluations, record.metrics)


def portable_path(file: str) -> str:
    """Return a path relative to the data folder, or only the file name of a file elsewhere.

    Relative paths and names are returned unchanged.
    """
    path = Path(file).expanduser()
    if not path.is_absolute() and ".." not in path.parts:
        return file
    try:
        return path.resolve().relative_to(data_folder().resolve()).as_posix()
    except ValueError:
        return path.name


def write(records: Sequence[Record], out: Path) -> None:
    """Write the three files, sorted by run and seed.

    Raises UserError if the settings of a run's seeds differ.
    """
    records = sorted(records, key=lambda r: r.key)
    configs: dict[str, Any] = {}
    for record in records:
        first = configs.setdefault(record.run, record.config)
        differ = [k for k in difference(first, record.config) if not k.startswith(SUMS)]
        if differ:
            names = ", ".join(map(option_name, differ))
            raise UserError(
                f"The seeds of {record.run} differ in {names}, but one configuration is stored for "
                "all. Pack them into separate folders, or train one of them under another name=…"
            )
        if first.get("start"):  # collect the checksums of the checkpoints that the seeds continue
            sums = merged(first["start"]["sha256"], record.config["start"]["sha256"])
            configs[record.run] = first | {"start": first["start"] | {"sha256": sums}}
        if first.get("dynamics_sha256"):  # likewise, of the dynamics models that they load
            sums = merged(first["dynamics_sha256"], record.config["dynamics_sha256"])
            configs[record.run] = configs[record.run] | {"dynamics_sha256": sums}
    rows = [row_of(record) for record in records]
    rest = sorted({column for row in rows for column in row} - set(FIRST))
    write_csv(out / RUNS, [*FIRST, *rest], rows)
    write_json(out / CONFIGS, configs)
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(EPISODE)
    for record in records:
        sheet.writerows(episodes_of(record))
    packed = gzip.compress(text.getvalue().encode(), 9, mtime=0)
    write_atomically(out / EVALUATIONS, lambda temporary: temporary.write_bytes(packed))


def merged(first: dict[str, str], second: dict[str, str]) -> dict[str, str]:
    """Return the checksums of both, sorted by seed."""
    return dict(sorted((first | second).items(), key=lambda item: int(item[0])))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write a CSV table, its cells formatted by `cell`."""
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(columns)
    sheet.writerows([cell(column, row.get(column)) for column in columns] for row in rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue(), "utf-8"))


def row_of(record: Record) -> dict[str, Any]:
    """Return a seed's row in runs.csv: the result without episodes, machine, last metrics."""
    assert record.result is not None
    result = {k: v for k, v in record.result.items() if k not in LAST}
    metrics = {k: v for k, v in record.metrics.items() if k.startswith("train/")}
    row = {"name": record.config["name"], **result, "task": named_task(record.config)}
    row |= {"environment": record.environment, **metrics}
    fit = {key: row.pop(key) for key in WHOLE if key in row}
    return flatten(row, ".") | fit


def episodes_of(record: Record) -> Iterator[list[str]]:
    """Yield a row for each episode of every evaluation."""
    assert record.result is not None
    run, seed = record.key
    for e in record.evaluations:
        count = len(e["returns"])
        columns = [e["seeds"], e["returns"], e["lengths"]]
        columns += [e.get(key) or [None] * count for key in ("success", "costs")]
        head = [run, str(seed), str(e["updates"]), str(e["env_steps"])]
        for cells in zip(*columns, strict=True):
            yield [*head, *(cell("", value) for value in cells)]


def cell(column: str, value: Any) -> str:
    """Return a CSV cell. Floats are written without loss."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value) if column in TEXT else json.dumps(value)


def parse_cell(column: str, text: str) -> Any:
    """Return the value of a CSV cell; the inverse of `cell`."""
    if not text:
        return None
    return text if column in TEXT else json.loads(text)


def read(folder: str | Path) -> list[Record]:
    """Read the compact files in `folder`. Raises UserError naming a damaged file."""
    folder = Path(folder)
    file = folder / CONFIGS
    try:
        configs = dict(read_json(file))
        file = folder / EVALUATIONS
        evaluations: dict[tuple[str, int], list[dict[str, Any]]] = {}
        with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
            sheet = csv.reader(lines)
            if tuple(next(sheet)) != EPISODE:
                raise ValueError("columns of another version")
            for (run, seed, updates, steps), rows in groupby(sheet, itemgetter(slice(4))):
                of_seed = evaluations.setdefault((run, int(seed)), [])
                episodes = list(rows)
                first = [n for n, row in enumerate(episodes) if row[4] == episodes[0][4]]
                # two evaluations may have the same counts of updates and steps
                for n, end in pairwise([*first, len(episodes)]):
                    of_seed.append(evaluation(int(updates), int(steps), episodes[n:end]))
        file, records = folder / RUNS, []
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *table = csv.reader(lines)
        for texts in table:
            row = {c: parse_cell(c, text) for c, text in zip(columns, texts, strict=True)}
            run = run_of(row)
            played = evaluations.pop((run, row["seed"]), [])
            records.append(record_of(row, config_of_seed(configs[run], row["seed"]), played))
        if evaluations:
            raise ValueError(f"no row for {', '.join(map(str, evaluations))}")
        return records
    except (AttributeError, EOFError, KeyError, OSError, StopIteration, ValueError) as error:
        raise UserError(
            f"{file} is damaged, or was not written by `compact.pack` ({error!r}). Pack the runs "
            "again."
        ) from None


def evaluation(updates: int, env_steps: int, rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a line of evaluations.jsonl, without its score, from the rows of its episodes."""
    seeds, returns, lengths, success, costs = list(zip(*rows, strict=True))[4:]
    played = [float(text) if text else None for text in returns]
    return {
        "updates": updates,
        "env_steps": env_steps,
        "eval/return": mean(played),
        "returns": played,
        "lengths": [int(text) for text in lengths],
        "success": None if "" in success else [text == "true" for text in success],
        "costs": None if "" in costs else [float(text) for text in costs],
        "seeds": [int(text) for text in seeds],
    }


def record_of(
    row: dict[str, Any], config: dict[str, Any], evaluations: list[dict[str, Any]]
) -> Record:
    """Return a seed's record from its row in runs.csv, with the scores of its evaluations."""
    parts: dict[str, dict[str, Any]] = {"environment": {}, "score_reference": {}}
    result: dict[str, Any] = {}
    metrics = {k: v for k, v in row.items() if k.startswith("train/") and v is not None}
    for column, value in row.items():
        part, _, key = column.partition(".")
        if part in parts and key:
            parts[part][key] = value
        elif not part.startswith("train/") and column != "name":
            result[column] = value
    result["task"] = config["task"]  # for task=none, the row's task also names the dataset
    reference = parts["score_reference"]
    scored = reference.get("min") is not None
    known = {key: reference[key] for key in REFERENCE if reference.get(key) is not None}
    result["score_reference"] = known if scored else None
    if scored:
        scale = Reference(**result["score_reference"])
        for e in evaluations:
            returns = [math.nan if r is None else r for r in e["returns"]]
            e["eval/score"] = mean(scale.score(returns, e["success"]).tolist())
    last = evaluations[-1] if evaluations else {}
    result |= {key: last.get(key) for key in LAST}
    return Record(config, parts["environment"], result, evaluations, metrics)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there is no value or one of them is None (null in JSON)."""
    return None if None in values or not len(values) else float(np.mean(np.asarray(values, float)))

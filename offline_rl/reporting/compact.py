"""A study's finished runs as three small files, which `report` reads like the runs' own folders.

    runs.csv            a row for each seed: its result, its machine, its last metrics
    configs.json        <task>/<algorithm>/<name> -> the resolved configuration all its seeds share
    evaluations.csv.gz  a row for each episode of every evaluation

The same runs give the same bytes. Floats are written so that they are read back exactly; what
follows from the episodes (means, scores, the last evaluation) is computed again when they are read.
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

from offline_rl.data.load import data_folder
from offline_rl.reporting.records import Record, of_folder, run_of, seed_folders
from offline_rl.training.run_folder import SUMS, agree_in, named_task, own, typed
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json, write_atomically, write_json
from offline_rl.utils.trees import flatten

RUNS, CONFIGS, EVALUATIONS = "runs.csv", "configs.json", "evaluations.csv.gz"
LAST = ("returns", "success", "costs")  # of a result: those of its last evaluation
REFERENCE = ("min", "max", "source", "environment")
FIRST: tuple[str, ...] = ("task", "algorithm", "name", "seed", "seeds_stacked", "num_updates")
FIRST += ("pretrain_updates", "online_updates", "num_env_steps", "score", "mean_return")
FIRST += ("behavior_score", "behavior_return", "seconds", "compile_seconds", "updates_per_second")
FIRST += ("device", "precision", "compiled", "dataset", "dataset_sha256", "diverged_at")
EPISODE: tuple[str, ...] = ("run", "seed", "updates", "env_steps", "episode_seed", "return")
EPISODE += ("length", "success", "cost")
# Cells of these columns are text as it stands, of all others JSON; an empty one is null.
TEXT = {"task", "algorithm", "name", "device", "precision", "dataset", "dataset_sha256", "version"}
TEXT |= {"commit", "last_checkpoint", "score_reference.source", "score_reference.environment"}
VERSIONS = ("offline_rl", "commit", "python", "torch", "numpy", "mujoco", "gymnasium", "machine")
TEXT |= {f"environment.{key}" for key in (*VERSIONS, "gpu", "choices.precision")}


def pack(folders: Sequence[str | Path], out: str | Path) -> int:
    """Adds the finished seeds below `folders` to the compact files in `out`; how many it has then.

    A seed that is there already is replaced. Raises UserError, and leaves `out` as it was, where
    two folders hold the same seed, or a run's seeds were trained otherwise.
    """
    out, records = Path(out), dict[tuple[str, int], Record]()
    found = {folder: seed_folders(Path(folder)) for folder in folders}
    if empty := [str(folder) for folder, seeds in found.items() if not seeds]:
        raise UserError(f"{', '.join(empty)}: no run in it; give folders that hold runs")
    for seed in chain(*found.values()):
        record = of_folder(seed)
        if record.result is None:
            continue
        if record.key in records:
            raise UserError(f"{seed.path} is seed {seed.seed} of {record.run} a second time")
        records[record.key] = portable(record)
    kept = {record.key: record for record in read(out)} if (out / RUNS).is_file() else {}
    write(list((kept | records).values()), out)
    return len(kept | records)


def portable(record: Record) -> Record:
    """Without places on this machine: data is named from the data folder on, else by its file."""
    assert record.result is not None

    def shortened(values: dict[str, Any]) -> dict[str, Any]:
        names = [key for key in ("dataset", "expert_dataset") if values.get(key) is not None]
        return values | {key: short(values[key]) for key in names}

    environment = {k: v for k, v in record.environment.items() if not k.startswith("dataset")}
    if "file" in (origin := environment.get("algorithm") or {}):  # one of the user's
        environment["algorithm"] = origin | {"file": Path(origin["file"]).name}
    config, result = shortened(record.config), shortened(record.result)
    config["algorithm"] = short(config["algorithm"])
    return Record(config, environment, result, record.evaluations, record.metrics)


def short(file: str) -> str:
    """The path from the data folder on; the name of one that is of this machine or its folders."""
    path = Path(file).expanduser()
    if not path.is_absolute() and ".." not in path.parts:
        return file
    try:
        return path.resolve().relative_to(data_folder().resolve()).as_posix()
    except ValueError:
        return path.name


def write(records: Sequence[Record], out: Path) -> None:
    """The three files, sorted by run and seed. Raises UserError where a run's seeds disagree."""
    records = sorted(records, key=lambda r: r.key)
    configs: dict[str, Any] = {}
    for record in records:
        first = configs.setdefault(record.run, record.config)
        a, b = flatten(first, "."), flatten(record.config, ".")
        differ = [k for k in sorted(a | b) if not (agree_in(k, a, b) or k.startswith(SUMS))]
        if differ:
            told = ", ".join(map(typed, differ))
            raise UserError(
                f"seeds of {record.run} differ in {told} and so have no common configuration: pack "
                "them apart, or train one of them under another name=…"
            )
        if first.get("start"):  # what each of its seeds goes on from
            sums = first["start"]["sha256"] | record.config["start"]["sha256"]
            sums = dict(sorted(sums.items(), key=lambda item: int(item[0])))
            configs[record.run] = first | {"start": first["start"] | {"sha256": sums}}
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


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """A table whose cells `cell` writes."""
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(columns)
    sheet.writerows([cell(column, row.get(column)) for column in columns] for row in rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue(), "utf-8"))


def row_of(record: Record) -> dict[str, Any]:
    """A seed's row: the result without its episodes, the machine, the last metrics."""
    assert record.result is not None
    result = {k: v for k, v in record.result.items() if k not in LAST}
    metrics = {k: v for k, v in record.metrics.items() if k.startswith("train/")}
    row = {"name": record.config["name"], **result, "task": named_task(record.config)}
    row |= {"environment": record.environment, **metrics}
    return flatten(row, ".")


def episodes_of(record: Record) -> Iterator[list[str]]:
    """A row for each episode."""
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
    """A CSV cell; floats keep every digit."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value) if column in TEXT else json.dumps(value)


def content(column: str, text: str) -> Any:
    """The inverse of `cell`."""
    if not text:
        return None
    return text if column in TEXT else json.loads(text)


def read(folder: str | Path) -> list[Record]:
    """What `pack` wrote. Raises UserError naming a file that is damaged."""
    folder = Path(folder)
    file = folder / CONFIGS
    try:
        configs = dict(read_json(file))
        file = folder / EVALUATIONS
        evaluations: dict[tuple[str, int], list[dict[str, Any]]] = {}
        with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
            sheet = csv.reader(lines)
            if tuple(next(sheet)) != EPISODE:
                raise ValueError("another version's columns")
            for (run, seed, updates, steps), rows in groupby(sheet, itemgetter(slice(4))):
                seen = evaluations.setdefault((run, int(seed)), [])
                whole = list(rows)
                first = [n for n, row in enumerate(whole) if row[4] == whole[0][4]]
                for n, end in pairwise([*first, len(whole)]):  # of one moment there may be two
                    seen.append(evaluation(int(updates), int(steps), whole[n:end]))
        file, records = folder / RUNS, []
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *table = csv.reader(lines)
        for texts in table:
            row = {c: content(c, text) for c, text in zip(columns, texts, strict=True)}
            run = run_of(row)
            played = evaluations.pop((run, row["seed"]), [])
            records.append(record_of(row, own(configs[run], row["seed"]), played))
        if evaluations:
            raise ValueError(f"no row for {', '.join(map(str, evaluations))}")
        return records
    except (AttributeError, EOFError, KeyError, OSError, StopIteration, ValueError) as error:
        raise UserError(f"{file} is not as `compact.pack` leaves it: {error!r}") from None


def evaluation(updates: int, env_steps: int, rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """A line of evaluations.jsonl, but for its score, from the rows of its episodes."""
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
    """A seed from its row in runs.csv, with the scores of its evaluations."""
    parts: dict[str, dict[str, Any]] = {"environment": {}, "score_reference": {}}
    result: dict[str, Any] = {}
    metrics = {k: v for k, v in row.items() if k.startswith("train/") and v is not None}
    for column, value in row.items():
        part, _, key = column.partition(".")
        if part in parts and key:
            parts[part][key] = value
        elif not part.startswith("train/") and column != "name":
            result[column] = value
    result["task"] = config["task"]  # a row's says of which dataset task=none is, too
    reference = parts["score_reference"]
    known = reference.get("min") is not None
    result["score_reference"] = {key: reference[key] for key in REFERENCE} if known else None
    for e in evaluations if known else ():
        low, high = reference["min"], reference["max"]
        returns = [math.nan if r is None else r for r in e["returns"]]
        e["eval/score"] = mean((100 * (np.asarray(returns) - low) / (high - low)).tolist())
    last = evaluations[-1] if evaluations else {}
    result |= {key: last.get(key) for key in LAST}
    return Record(config, parts["environment"], result, evaluations, metrics)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; null where a value is, as JSON has what is no number."""
    return None if None in values or not len(values) else float(np.mean(np.asarray(values, float)))

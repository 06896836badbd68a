"""Every algorithm beside public code of it.

    python -m benchmarks.conformance corl=<checkout> td3=<checkout> … [python=<interpreter>]
        [algorithms=[iql,cql]]

Rows whose repository is not named, or whose algorithm is not asked for, stay as they were.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conformance import ours
from benchmarks.conformance.cases import CASES, KEPT, REPOSITORIES, WITHOUT, Case
from benchmarks.conformance.compare import ROOT, TOLERANCE, differences, last, reference
from benchmarks.conformance.inputs import Arrays, part
from benchmarks.conformance.ours import UserError
from benchmarks.figures import commit_of

RESULTS = ROOT / "benchmarks" / "results" / "conformance"
RECORDED = ROOT / "tests" / "offline_rl" / "conformance"
FAULT = 1e-6
NETWORKS = ("policy", "model", "critic", "value", "vae", "student", "behavior", "dynamics", "fit")
GROUPS = ("networks", "targets", "temperatures", "gradients", "losses")
HEADER = ["algorithm", "beside", "updates", *GROUPS, "with a fault", "made equal before"]
INTRODUCTION = """# Conformance

*Made by `python -m benchmarks.conformance corl=<checkout> …`, not by hand.*

Each algorithm's update beside public code of it, run unmodified but for what the last column says:
the same initial weights, batches and random numbers, everything in float64. Numbers are the largest
relative differences after any of the updates: of weights, relative to the largest change from
the start; of gradients (Adam's running means, which its normalization would hide), temperatures'
included, and of the losses that the other code tells, relative to the largest one. Transformers
differ by most: some gradients, as those of keys' biases, are 0 but for rounding, which Adam sees.
With a fault: the largest difference that the same comparison finds when our targets (where there
are none, the actions to be cloned or the states of chains) are 1e-6 too large; a row whose
comparison did not find that is refused. Networks are {width} wide. An empty cell: the other code
has no such quantity, or does not tell it. Rows have 4 to 14 updates; those of 4 were not run
longer.
`tests/offline_rl/test_conformance.py` holds our updates to the other side's final numbers, which
are kept once where rows of an algorithm have the same inputs.
How published implementations of one method differ: [list](../../docs/explanation/differences.md).
"""

Options = make_dataclass(
    "ConformanceOptions",
    [
        ("python", str, sys.executable),  # an interpreter with what the checkouts need
        ("algorithms", list[str], field(default_factory=lambda: [*ours.algorithm_names()])),
        *((key, str | None, None) for key in REPOSITORIES),
    ],
    frozen=True,
    kw_only=True,
)


def conformance(**keys: Any) -> str:
    """Compares, writes table, rows and recorded numbers; returns the table.

    Raises UserError before anything runs for what does not exist or is of another commit, and at
    the end for what differs, which is not written.
    """
    options: Any = ours.build(Options, keys)
    if unknown := set(options.algorithms) - set(ours.algorithm_names()):
        raise UserError(f"conformance: no algorithm is called {sorted(unknown)[0]!r}")
    if shutil.which(options.python) is None:
        raise UserError(f"conformance: python={options.python} is no program")
    checkouts = {key: getattr(options, key) for key in REPOSITORIES if getattr(options, key)}
    for key, checkout in checkouts.items():
        check(key, checkout)
    path, failed = RESULTS.with_suffix(".json"), []
    rows = json.loads(path.read_text()) if path.is_file() else {}
    for case in CASES:
        if case.repository not in checkouts or case.algorithm not in options.algorithms:
            continue
        try:
            row, numbers = compare(case, checkouts[case.repository], options.python)
        except (UserError, ValueError) as error:
            failed.append(f"{case.name}: {error}")
            continue
        worst = max(row["differences"], key=row["differences"].__getitem__)
        print(f"{case.name}: {row['differences'][worst]:.1e} ({worst})", flush=True)
        if row["differences"][worst] > TOLERANCE:
            failed.append(f"{case.name}: {worst} differs by {row['differences'][worst]:.1e}")
            continue
        if row["fault"] < 10 * TOLERANCE:
            failed.append(f"{case.name}: targets 1e-6 too large make no difference")
            continue
        rows[case.name] = row
        if case in KEPT:
            ours.write_atomically(recorded(case), partial(save, numbers=numbers))
    text = publish({case.name: rows[case.name] for case in CASES if case.name in rows})
    if failed:
        raise UserError("conformance: " + "\n".join(failed))
    return text


def check(key: str, checkout: str) -> None:
    """Raises UserError for a checkout that is none, or not of the commit that the table is of."""
    name, commit = REPOSITORIES[key]
    if (found := commit_of(checkout)) != commit:
        of = f"is at {found[:7]}" if found else "is no checkout"
        raise UserError(
            f"conformance: {key}={checkout} {of}; the comparison is written for {name} at "
            f"{commit[:7]}: git checkout {commit}"
        )


def compare(case: Case, checkout: str, python: str) -> tuple[dict[str, Any], Arrays]:
    """The case's row, and the other side's numbers that are kept."""
    given, mine = ours.run(case)
    theirs, start = reference(case, checkout, given, python), part(given, "params/")
    fault = differences(ours.run(case, FAULT)[1], theirs, start)
    row = {"differences": differences(mine, theirs, start), "fault": max(fault.values())}
    return row | {"commit": REPOSITORIES[case.repository][1]}, last(theirs)


def recorded(case: Case) -> Path:
    """Where the other side's numbers are kept."""
    return RECORDED / f"{case.name}.npz"


def save(path: Path, numbers: Arrays) -> None:
    """All numbers in one vector: an entry of its own would cost each array 300 bytes."""
    names = sorted(numbers)
    flat = np.concatenate([numbers[name].ravel() for name in names])
    with path.open("wb") as file:
        np.savez_compressed(file, names=np.array(names), numbers=flat)


def load(case: Case, mine: Arrays) -> Arrays:
    """What was saved; mine: ours of the same, which has the shapes."""
    with np.load(recorded(case)) as file:
        names, flat = file["names"], file["numbers"]
    ends = np.cumsum([mine[name].size for name in names])
    return {
        str(name): values.reshape(mine[name].shape)
        for name, values in zip(names, np.split(flat, ends[:-1]), strict=True)
    }


def publish(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Writes the rows and the page; returns the table for a terminal."""
    body = [cells(case, rows.get(case.name)) for case in CASES]
    body += [[name, why] + [""] * (len(HEADER) - 2) for name, why in WITHOUT.items()]
    body.sort(key=lambda row: row[0])
    page = (
        INTRODUCTION.format(width=ours.inputs.WIDTH)
        + "\n"
        + ours.table(HEADER, body, markdown=True)
    )
    ours.write_text(RESULTS.with_suffix(".json"), json.dumps(rows, indent=1) + "\n")
    ours.write_text(RESULTS.with_suffix(".md"), page + "\n")
    return ours.table(HEADER, body)


def cells(case: Case, row: Mapping[str, Any] | None) -> list[str]:
    """A row of the table."""
    name, commit = REPOSITORIES[case.repository]
    where = f"{name}@{commit[:7]}: {case.file}"
    title = case.algorithm + (f" ({case.variant})" if case.variant else "")
    start = [title, where, str(case.updates)]
    if row is None:
        return [*start, "not run", *[""] * 5, "; ".join(case.adapted)]
    largest: dict[str, float] = {}
    for quantity, value in row["differences"].items():
        group = kind(quantity)
        largest[group] = max(value, largest.get(group, 0.0))
    numbers = [f"{largest[group]:.0e}" if group in largest else "" for group in GROUPS]
    return [*start, *numbers, f"{row['fault']:.0e}", "; ".join(case.adapted)]


def kind(quantity: str) -> str:
    """The column of a quantity."""
    if quantity.endswith("gradient"):
        return "gradients"
    if quantity.startswith("log_"):
        return "temperatures"
    if quantity.endswith("_target"):
        return "targets"
    return "networks" if quantity in NETWORKS else "losses"

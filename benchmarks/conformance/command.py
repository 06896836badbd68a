"""Compare the updates of every algorithm with public code.

    python -m benchmarks.conformance corl=<checkout> td3=<checkout> … [python=<interpreter>]
        [algorithms=[iql,cql]]

Stored rows of other repositories and of other algorithms are left unchanged.
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

from benchmarks.conformance import our_side
from benchmarks.conformance.cases import CASES, RECORDED_CASES, REPOSITORIES, WITHOUT, Case
from benchmarks.conformance.compare import (
    ROOT,
    TOLERANCE,
    final_quantities,
    relative_differences,
    run_reference,
)
from benchmarks.conformance.inputs import Arrays, subtree
from benchmarks.conformance.our_side import UserError
from benchmarks.figures import commit_of

RESULTS = ROOT / "benchmarks" / "results" / "conformance"
RECORDING_FOLDER = ROOT / "tests" / "offline_rl" / "conformance"
FAULT = 1e-6
NETWORKS = ("policy", "model", "critic", "value", "vae", "student", "behavior", "dynamics", "fit")
NETWORKS += ("best_dynamics", "record", "walk", "cost_critic", "cost_value", "nu", "chi")
GROUPS = ("networks", "targets", "temperatures", "gradients", "losses")
HEADER = ["algorithm", "compared with", "updates", *GROUPS, "with a fault", "removed differences"]
INTRODUCTION = """# Conformance

*Made by `python -m benchmarks.conformance corl=<checkout> …`, not by hand.*

Each row compares an algorithm's update with public code (the reference), with the same initial
weights, batches and random numbers, in float64. The reference is unmodified except for the changes
in the last column, written as "original -> changed to".

- Numbers are the largest relative differences after any update. Differences of weights are relative
  to the largest change from the initial weights. Differences of gradients and of the losses that
  the reference reports are relative to the largest value. Gradients, including those of
  temperatures, are compared by Adam's running means of them. The weights alone would hide a
  difference in scale, because Adam normalizes gradients.
- Transformers have the largest differences: some gradients, such as those of the key biases, are 0
  except for rounding errors, and Adam normalizes these.
- "With a fault" is the largest difference in a second comparison, in which our targets are 1e-6 too
  large. For an algorithm without targets, the demonstrated actions or the states of denoising
  chains or rollouts are 1e-6 too large. A row is rejected if the comparison does not detect this
  fault.
- Networks have {width} units per layer. Rows have 4 to 14 updates. Rows with 4 updates were not run
  longer.
- An empty cell means that the reference has no such quantity or does not report it.

`tests/offline_rl/test_conformance.py` compares our updates with recorded final numbers of the
references. Rows of an algorithm with the same inputs share one recording. A separate page lists how
[published implementations of one method differ](../../docs/explanation/differences.md).
"""

Options = make_dataclass(
    "ConformanceOptions",
    [
        ("python", str, sys.executable),  # interpreter with the packages that the checkouts need
        ("algorithms", list[str], field(default_factory=lambda: [*our_side.algorithm_names()])),
        *((key, str | None, None) for key in REPOSITORIES),
    ],
    frozen=True,
    kw_only=True,
)


def conformance(**keys: Any) -> str:
    """Run the comparison, write table, rows and recorded numbers, and return the table.

    Raises UserError before the first run for a missing checkout or a wrong commit. Cases that
    differ are not written; UserError is raised for them at the end.
    """
    options: Any = our_side.build(Options, keys)
    if unknown := set(options.algorithms) - set(our_side.algorithm_names()):
        raise UserError(f"conformance: unknown algorithm {sorted(unknown)[0]!r}")
    if shutil.which(options.python) is None:
        raise UserError(
            f"conformance: python={options.python} is not a program. Pass the path of a Python "
            "interpreter"
        )
    checkouts = {key: getattr(options, key) for key in REPOSITORIES if getattr(options, key)}
    for key, checkout in checkouts.items():
        check_checkout(key, checkout)
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
            failed.append(f"{case.name}: targets that are 1e-6 too large were not detected")
            continue
        rows[case.name] = row
        if case in RECORDED_CASES:
            our_side.write_atomically(recording_path(case), partial(save, numbers=numbers))
    text = publish({case.name: rows[case.name] for case in CASES if case.name in rows})
    if failed:
        raise UserError("conformance: " + "\n".join(failed))
    return text


def check_checkout(key: str, checkout: str) -> None:
    """Raise UserError if `checkout` is not a checkout of the expected commit."""
    name, commit = REPOSITORIES[key]
    if (current := commit_of(checkout)) != commit:
        state = f"is at {current[:7]}" if current else "is not a git checkout"
        raise UserError(
            f"conformance: {key}={checkout} {state}; the comparison is written for {name} at "
            f"{commit[:7]}. Run git checkout {commit}"
        )


def compare(case: Case, checkout: str, python: str) -> tuple[dict[str, Any], Arrays]:
    """Return the case's row, and the reference's final numbers for the recording."""
    inputs, our_results = our_side.run(case)
    results, start = run_reference(case, checkout, inputs, python), subtree(inputs, "params/")
    fault = relative_differences(our_side.run(case, FAULT)[1], results, start)
    row = {
        "differences": relative_differences(our_results, results, start),
        "fault": max(fault.values()),
    }
    return row | {"commit": REPOSITORIES[case.repository][1]}, final_quantities(results)


def recording_path(case: Case) -> Path:
    """Return the path of the reference's recorded numbers."""
    return RECORDING_FOLDER / f"{case.name}.npz"


def save(path: Path, numbers: Arrays) -> None:
    """Save all numbers as one vector, because separate entries cost 300 bytes per array."""
    names = sorted(numbers)
    flat = np.concatenate([numbers[name].ravel() for name in names])
    with path.open("wb") as file:
        np.savez_compressed(file, names=np.array(names), numbers=flat)


def load(case: Case, our_results: Arrays) -> Arrays:
    """Return the recorded numbers, in the shapes of `our_results`."""
    current = {our_side.recorded_name(case.algorithm, name): name for name in our_results}
    with np.load(recording_path(case)) as file:
        names, flat = [current.get(str(name), str(name)) for name in file["names"]], file["numbers"]
    ends = np.cumsum([our_results[name].size for name in names])
    return {
        name: values.reshape(our_results[name].shape)
        for name, values in zip(names, np.split(flat, ends[:-1]), strict=True)
    }


def publish(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the rows and the page; return the table for a terminal."""
    body = [table_row(case, rows.get(case.name)) for case in CASES]
    body += [[name, why] + [""] * (len(HEADER) - 2) for name, why in WITHOUT.items()]
    body.sort(key=lambda row: row[0])
    page = (
        INTRODUCTION.format(width=our_side.inputs.WIDTH)
        + "\n"
        + our_side.table(HEADER, body, markdown=True)
    )
    our_side.write_text(RESULTS.with_suffix(".json"), json.dumps(rows, indent=1) + "\n")
    our_side.write_text(RESULTS.with_suffix(".md"), page + "\n")
    return our_side.table(HEADER, body)


def table_row(case: Case, row: Mapping[str, Any] | None) -> list[str]:
    """Return a row of the table."""
    name, commit = REPOSITORIES[case.repository]
    where = f"{name}@{commit[:7]}: {case.file}"
    title = case.algorithm + (f" ({case.variant})" if case.variant else "")
    start = [title, where, str(case.updates)]
    if row is None:
        return [*start, "not run", *[""] * 5, "; ".join(case.adapted)]
    largest: dict[str, float] = {}
    for quantity, value in row["differences"].items():
        group = column_of(quantity)
        largest[group] = max(value, largest.get(group, 0.0))
    numbers = [f"{largest[group]:.0e}" if group in largest else "" for group in GROUPS]
    return [*start, *numbers, f"{row['fault']:.0e}", "; ".join(case.adapted)]


def column_of(quantity: str) -> str:
    """Return the column of a quantity."""
    if quantity.endswith("gradient"):
        return "gradients"
    if quantity.startswith(("log_", "raw_")):
        return "temperatures"
    if quantity.endswith("_target"):
        return "targets"
    return "networks" if quantity in NETWORKS else "losses"

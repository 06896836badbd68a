"""`offline-rl benchmark`: run a suite, or show its estimated cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_rl.reporting.report import report
from offline_rl.suite.claims import holder
from offline_rl.suite.launchers import make_launcher
from offline_rl.suite.options import BenchmarkOptions
from offline_rl.suite.plan import (
    Cell,
    cells,
    check_data,
    check_runs,
    estimate_costs,
    read_costs,
    read_plan,
    read_suite,
    select,
    stored_seeds,
    write_plan,
)
from offline_rl.suite.slurm import active_jobs
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object
from offline_rl.utils.options import build
from offline_rl.utils.text import format_duration, table


def benchmark(*, show: bool = True, **keys: Any) -> str:
    """Run the cells of a suite, and return a report on them. Raises UserError.

    A repeated call continues an interrupted suite.
    """
    options = build(BenchmarkOptions, keys)
    launcher = make_launcher(options)
    if (options.suite is None) == (options.plan is None):
        raise UserError("benchmark: give either suite=<name or file> or plan=<plan.json>")
    if options.plan is not None:
        for key in ("algorithms", "tasks", "seeds", "kept", "out"):
            if getattr(options, key) not in (None, []):
                raise UserError(
                    f"benchmark: {key}= needs suite=, because plan= already defines it. Remove it."
                )
        path = Path(options.plan)
        out, selected = path.parent, read_plan(path)
        check_runs(selected)
    else:
        name = str(options.suite)
        out = Path(options.out or f"runs/{Path(name).stem}")
        all_cells = cells(read_suite(name), str(out), options.seeds)
        selected = select(all_cells, options.algorithms, options.tasks)
        if options.kept is not None:
            selected, before = without_stored(selected, options.kept), len(selected)
            if show:
                print(
                    f"{before - len(selected)} of {before} cells are complete in {options.kept}",
                    flush=True,
                )
        check_runs(selected)
        if show:
            print(f"{name}: {len(selected)} cells; reading data and estimating cost", flush=True)
        for sentence in check_data(selected):
            if show:
                print(f"missing data: {sentence}")
        selected = estimate_costs(selected, str(out))
        if not options.dry_run:
            seconds = read_costs(out / "plan.json") | {cell.id: cell.seconds for cell in selected}
            estimated = [replace(cell, seconds=seconds.get(cell.id)) for cell in all_cells]
            write_plan(out / "plan.json", name, estimated)
    text = cost_table(selected, launcher.places, launcher.where, states(selected, out))
    if options.dry_run:
        return text
    if show:
        print(text, flush=True)
    if not selected:
        return ""
    failed = launcher.run(selected, out, show=show)
    if failed:
        raise UserError("; ".join(f"{label} failed: {why}" for label, why in failed.items()))
    missing = [cell for cell in selected if not cell.finished]
    if missing:
        places = states(missing, out)
        running = "; ".join(f"{c.label} is {places.get(c.id, 'not finished')}" for c in missing)
        return f"{running}. Repeat the command to continue and to see the report."
    return str(report([out]))


def states(selected: Sequence[Cell], out: Path) -> dict[str, str]:
    """Return cell id -> where an unfinished cell runs, or why it failed before."""
    queue, found = out / "queue", dict[str, str]()
    jobs = active_jobs(queue / "slurm")
    for cell in selected:
        failure = queue / f"{cell.id}.json"
        if cell.finished:
            continue
        if (host := holder(queue / "claims", cell.id)) is not None:
            found[cell.id] = f"running on {host}"
        elif cell.id in jobs:
            found[cell.id] = f"waiting as Slurm job {jobs[cell.id]}"
        elif failure.is_file():
            found[cell.id] = f"failed ({read_json_object(failure).get('error')})"
    return found


def without_stored(selected: Sequence[Cell], study: str) -> list[Cell]:
    """Return the cells with seeds that a study's compact files lack, each with these seeds only.

    If a remaining cell builds on another cell, that cell keeps all its seeds, because compact files
    contain no weights. Raises UserError as `stored_seeds`.
    """
    stored, needed, left = stored_seeds(selected, study), set[str | None](), list[Cell]()
    for cell in reversed(selected):
        seeds = [f.seed for f in cell.folders if f.seed not in stored[cell.id]]
        if len(seeds) == len(cell.folders) or cell.run in needed:
            left.insert(0, cell)
        elif seeds:
            left.insert(0, replace(cell, keys=cell.keys | {"seeds": seeds}))
        else:
            continue
        if not left[0].finished:
            needed.add(cell.previous_run)
    return left


def cost_table(
    selected: Sequence[Cell],
    places: int | None,
    where: str = "",
    states: Mapping[str, str] | None = None,
) -> str:
    """Return a table of the cells with their progress and estimated time.

    places: number of cells at a time, None if unknown. where: the same in words, with the place.
    states: cell id -> where a cell runs, or why it failed before.
    """
    body, states = [], states or {}
    for cell in selected:
        done = cell.count_done()
        state = "finished" if cell.finished else f"{done:,}" if done else "to do"
        state += f", {states[cell.id].partition(' (')[0]}" if cell.id in states else ""
        cost = "?" if cell.seconds is None else format_duration(cell.seconds)
        body.append([cell.label, str(len(cell.folders)), f"{cell.total:,}", state, cost])
    left = [cell for cell in selected if not cell.finished]
    estimates = [seconds for c in left if (seconds := c.seconds_left) is not None]
    unknown = len(left) - len(estimates)
    total = f"{len(left)} of {len(selected)} cells left, {where or f'{places} at a time'}"
    if estimates:
        total += f": about {format_duration(sum(estimates) / (places or 1))}"
        total += "" if places else " in total"
    total += f"{', and' if estimates else ':'} {unknown} of unknown length" if unknown else ""
    for reason in dict.fromkeys(cell.unknown for cell in left if cell.seconds is None):
        total += f"\n?: {reason}" if reason else ""
    for cell in left:
        if (state := states.get(cell.id, "")).startswith("failed"):
            total += f"\n{cell.label} {state}"
    return f"{table(['cell', 'seeds', 'updates', 'done', 'cost'], body)}\n\n{total}"

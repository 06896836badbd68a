"""`offline-rl benchmark`: a suite, worked off; or what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_rl.reporting.report import report
from offline_rl.suite.options import BenchmarkOptions
from offline_rl.suite.plan import (
    Cell,
    cells,
    check_data,
    check_runs,
    costs_of,
    kept,
    priced,
    read_plan,
    read_suite,
    select,
    write_plan,
)
from offline_rl.suite.queue import work_off
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from offline_rl.utils.text import duration, table


def benchmark(*, show: bool = True, **keys: Any) -> str:
    """Works off a suite and reports on it; the same command again goes on. Raises UserError."""
    options = build(BenchmarkOptions, keys)
    workers = options.workers if options.workers is not None else hardware.cores()
    if (options.suite is None) == (options.plan is None):
        raise UserError("benchmark: give suite=<name or file>, or plan=<plan.json>")
    if options.plan is not None:
        for key in ("algorithms", "tasks", "seeds", "kept", "out"):
            if getattr(options, key) not in (None, []):
                raise UserError(f"benchmark: {key}= belongs to suite=; a plan says what is to run")
        path = Path(options.plan)
        out, wanted = path.parent, read_plan(path)
        check_runs(wanted)
    else:
        name = str(options.suite)
        out = Path(options.out or f"runs/{Path(name).stem}")
        whole = cells(read_suite(name), str(out), options.seeds)
        wanted = select(whole, options.algorithms, options.tasks)
        if options.kept is not None:
            wanted, before = beside(wanted, options.kept), len(wanted)
            if show:
                print(
                    f"{before - len(wanted)} of {before} cells are whole in {options.kept}",
                    flush=True,
                )
        check_runs(wanted)
        if show:
            print(f"{name}: {len(wanted)} cells; data is read, and cost is counted", flush=True)
        for sentence in check_data(wanted):
            if show:
                print(f"not there yet: {sentence}")
        wanted = priced(wanted, str(out))
        if not options.dry_run:
            known = costs_of(out / "plan.json") | {cell.id: cell.seconds for cell in wanted}
            priced_all = [replace(cell, seconds=known.get(cell.id)) for cell in whole]
            write_plan(out / "plan.json", name, priced_all)
    if options.dry_run:
        return costs(wanted, workers)
    if show:
        print(costs(wanted, workers), flush=True)
    if not wanted:
        return ""
    failed = work_off(wanted, out, workers, show=show)
    if failed:
        raise UserError("; ".join(f"{label} failed: {why}" for label, why in failed.items()))
    missing = [cell.label for cell in wanted if not cell.finished]
    if missing:
        return f"{', '.join(missing)}: another command is at work on it"
    return str(report([out]))


def beside(wanted: Sequence[Cell], study: str) -> list[Cell]:
    """Those that a study's compact files lack, of the seeds that they lack.

    What another cell goes on from is left whole, for weights are not kept. Raises UserError as
    `kept`.
    """
    there, needed, left = kept(wanted, study), set[str | None](), list[Cell]()
    for cell in reversed(wanted):
        seeds = [f.seed for f in cell.folders if f.seed not in there[cell.id]]
        if len(seeds) == len(cell.folders) or cell.run in needed:
            left.insert(0, cell)
        elif seeds:
            left.insert(0, replace(cell, keys=cell.keys | {"seeds": seeds}))
        else:
            continue
        if not left[0].finished:
            needed.add(cell.before)
    return left


def costs(wanted: Sequence[Cell], workers: int) -> str:
    """The plan as a table: what is done, and what the rest will take."""
    body = []
    for cell in wanted:
        state = "finished" if cell.finished else f"{cell.done():,}" if cell.done() else "to do"
        cost = "?" if cell.seconds is None else duration(cell.seconds)
        body.append([cell.label, str(len(cell.folders)), f"{cell.total:,}", state, cost])
    left = [cell for cell in wanted if not cell.finished]
    known = [seconds for c in left if (seconds := c.seconds_left) is not None]
    blind = len(left) - len(known)
    total = f"{len(left)} of {len(wanted)} cells left, {workers} at a time"
    if known:
        total += f": about {duration(sum(known) / workers)}"
    total += f"{', and' if known else ':'} {blind} of unknown length" if blind else ""
    for reason in dict.fromkeys(cell.unknown for cell in left if cell.seconds is None):
        total += f"\n?: {reason}" if reason else ""
    return f"{table(['cell', 'seeds', 'updates', 'done', 'cost'], body)}\n\n{total}"

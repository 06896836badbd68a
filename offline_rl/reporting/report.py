"""What runs came to: tables and learning curves, on the terminal and as Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.reporting import evaluated, online
from offline_rl.reporting.curves import draw
from offline_rl.reporting.numbers import as_csv, as_latex, numbers_of
from offline_rl.reporting.options import ReportOptions
from offline_rl.reporting.published import PublishedScore, published_scores
from offline_rl.reporting.runs import BEHAVIOR, Seed, behavior, collect, groups, key_of
from offline_rl.reporting.standing import Standing, share_text, standing
from offline_rl.reporting.statistics import FORMED, formed_text
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.options import build, signature
from offline_rl.utils.text import (
    duration,
    fitted,
    mean_std,
    span,
    table,
    terminal_width,
    wrapped,
)

NOTE = (
    "Scores and returns: mean ± standard deviation over seeds (ddof 0, as CORL has it) of each "
    "seed's mean over the episodes of its last evaluation, which is the last checkpoint's: nothing "
    "is best-of. Error: the standard error over those episodes. Last five: the same of the last "
    "five evaluations together, of all where there are fewer. Success: with Wilson's 95 % "
    "interval, over all seeds' episodes, as though none shared a start. "
    "Formed: how far values had come, 1 - (1 - tau (1 - discount))^(updates of the target); "
    f"below {100 * FORMED:.0f} % a result is unfinished, whatever its score, and without values "
    "where its last evaluation is surely above the last five. Wall time is that of "
    "all seeds, evaluations included; updates/s is one seed's steady rate × the seeds trained side "
    "by side. Published: mean ± standard deviation as the note below the table says."
)
CHASING = 100.0  # a multiplier that begins at 1 or e and is there has not done what it is for
HEADER = ["algorithm", "score", "return", "published", "error", "last five", "success %", "cost"]
HEADER += ["episodes", "updates", "formed", "env steps", "wall time", "updates/s"]
LESS_NEEDED = ["updates/s", "wall time", "error", "last five", "episodes", "env steps", "return"]
LESS_NEEDED += ["cost", "updates", "published", "formed", "success %"]
EXTENSIONS = {"csv": "csv", "latex": "tex"}


@dataclass(frozen=True)
class Report:
    """Tables of runs. Printed, it is the output of `offline-rl report`."""

    rows: list[dict[str, Any]]  # a row for each algorithm on each task, in numbers
    files: list[Path]  # what was written
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], /, **keys: Any
) -> Report:
    """Make tables and learning curves of all runs at any depth below the folders `runs`.

    keys: those of the command, such as `out`. Writes report.md and the figures into `out`. Raises
    UserError.
    """
    folders = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    options = build(ReportOptions, keys)
    if not folders:
        raise UserError("report: give a run's folder, or a folder that holds runs")
    tasks = collect([Path(folder) for folder in folders])
    out, width = Path(options.out if options.out is not None else folders[0]), terminal_width()
    text, page, written = list[str](), ["# Runs"], [out / "report.md"]
    for seeds in tasks.values():
        title, body, notes = describe(seeds)
        lines = [wrapped(note, min(width, 100)) for note in notes]
        text += [title, "", fitted(HEADER, body, width, LESS_NEEDED), "", *lines, ""]
        page += [f"## {title}", table(HEADER, body, markdown=True), *notes]
        if body := evaluated.rows_of(seeds):
            shown = fitted(evaluated.HEADER, body, width, evaluated.LESS_NEEDED)
            text += ["Evaluated after training", "", shown, ""]
            page += ["### Evaluated after training", table(evaluated.HEADER, body, markdown=True)]
    scored = {task: s for task, s in tasks.items() if any(seed.curves["return"] for seed in s)}
    if scored:
        written.insert(0, out / "curves.png")
        write_atomically(written[0], lambda temporary: draw(scored, temporary))
        page += ["## Learning curves", f"![Learning curves]({written[0].name})"]
    acting = online.acting(scored)
    if acting:
        written.insert(0, out / online.FIGURE)
        write_atomically(written[0], lambda temporary: online.draw(acting, temporary))
        page.append("## In an environment")
        for task, seeds in acting.items():
            body = online.table_of(seeds)
            shown = fitted(online.HEADER, body, width, online.LESS_NEEDED)
            text += [f"{task}, in the environment", "", shown, ""]
            page += [f"### {task}", table(online.HEADER, body, markdown=True)]
        page += [online.NOTE, f"![Over environment steps]({written[0].name})"]
    page += ["## How to read this", NOTE]
    rows = [numbers for seeds in tasks.values() for numbers in numbers_of(seeds)]
    if options.format != "text":
        export = as_csv(rows) if options.format == "csv" else as_latex(rows)
        written.append(out / f"report.{EXTENSIONS[options.format]}")
        write_text(written[-1], export)
    write_text(out / "report.md", "\n\n".join(page) + "\n")
    if options.format != "text":
        return Report(rows, written, export.rstrip("\n"))
    text += ["report.md explains the columns.", "", *map(str, written)]
    return Report(rows, written, "\n".join(text))


def describe(seeds: Sequence[Seed]) -> tuple[str, list[list[str]], list[str]]:
    """A task's title, the rows of its table, the best algorithm first, and the notes below it."""
    key, data = key_of(seeds), behavior(seeds)
    known = published_scores(seeds) if key == "score" else {}
    rows = [
        row(label, standing(own, key), own, known.get(label.partition(" ")[0]))
        for label, own in groups(seeds).items()
    ]
    body = [cells for _, cells in sorted(rows, key=lambda r: -r[0])]
    for name, (score, mean) in data.items():
        label = BEHAVIOR + (f" ({name})" if len(data) > 1 else "")
        cells = [label, mean_std([score], 1), mean_std([mean])]
        body.append([*cells, *[""] * (len(HEADER) - len(cells))])
    kind = "normalized score" if key == "score" else "raw return (the task has no score references)"
    kind = kind if any(seed.curves["return"] for seed in seeds) else "not evaluated"

    done = [s.outcome for s in seeds if s.outcome]
    told = [
        known[name] for name in dict.fromkeys(c[0].partition(" ")[0] for c in body) if name in known
    ]
    notes = list(dict.fromkeys(o.score_reference.in_words() for o in done if o.score_reference))
    for about, source in dict.fromkeys((score.about, score.source) for score in told):
        notes.append(f"Published: {about} ({source}).")
    if data:
        notes.append(f"Behavior policy: the mean over the episodes of {', '.join(data)}.")
    notes += [note for seed in seeds if (note := unusual(seed, key))]
    notes += [note for seed in seeds if (note := infeasible(seed))]
    if done:
        notes.append(f"Ran on {'; '.join(sorted({hardware(s) for s in seeds if s.outcome}))}.")
    return f"{seeds[0].task}: {kind}", body, notes


def row(
    label: str,
    found: Standing,
    every: Sequence[Seed] = (),
    published: PublishedScore | None = None,
) -> tuple[float, list[str]]:
    """What a group is sorted by, and its cells. every: its seeds, also those not finished."""
    done = [seed.outcome for seed in found.seeds if seed.outcome]
    if not done:
        empty = [label, *[""] * (len(HEADER) - 1)]
        states = {seed.state.split(" ")[0] for seed in every}
        empty[HEADER.index("wall time")] = " and ".join(sorted(states))
        return -math.inf, empty
    rates = [o.updates_per_second for o in done if o.updates_per_second is not None]
    return -math.inf if found.mean is None else found.mean, [
        label,
        mean_std([o.score for o in done], 1),
        mean_std([o.mean_return for o in done]),
        "" if published is None else f"{published.score:.1f} ± {published.std:.1f}",
        found.error_text,
        mean_std(found.lasts, 1),
        success(found),
        mean_std([float(np.mean(o.costs)) if o.costs else None for o in done], 1),
        f"{span(len(o.returns or ()) for o in done)} × {len(done)} seed{'s' * (len(done) > 1)}",
        span(o.updates for o in done),
        progress(found),
        span(o.num_env_steps for o in done) if any(o.num_env_steps for o in done) else "",
        duration(sum(o.seconds / o.seeds_stacked for o in done)),
        f"{np.mean(rates):,.0f} × {span(o.seeds_stacked for o in done)}" if rates else "",
    ]


def success(found: Standing) -> str:
    """The share of episodes that succeeded with its interval, in per cent."""
    return "" if found.success is None else share_text(found.success)


def progress(found: Standing) -> str:
    """How far values had formed, in per cent rounded down; without them, whether it still rose."""
    return "rising, unfinished" if found.rising else formed_text(found.formed)


def unusual(seed: Seed, key: str) -> str | None:
    """The note on a seed that is not finished or diverged."""
    name, o = f"{seed.label} seed {seed.number}", seed.outcome
    if o is None:
        at, value = max(seed.curves[key].items(), default=(None, 0))
        what = "updates and environment steps" if seed.moments else "updates"
        last = "not evaluated yet" if at is None else f"{key} {value:.1f} after {at:,} {what}"
        state, _, why = seed.state.partition(" ")
        return f"{state.capitalize()}: {name}, {last}{' ' * bool(why)}{why}."
    if o.diverged_at is None:
        return None
    counted = "counted like the others" if o.mean_return is not None else "without a score"
    return f"Diverged: {name}, before update {o.diverged_at:,}; {counted}."


def infeasible(seed: Seed) -> str | None:
    """The note on a seed whose learned multiplier (cql, cal_ql) chases a gap it does not reach.

    Flat values already have a penalty, the logarithm of the proposals' volume; below that no
    multiplier brings it, and the values fall for as long as the run lasts.
    """
    factor, penalty = (seed.metrics.get(f"train/{name}") for name in ("multiplier", "penalty"))
    gap, weight = (seed.config.get(f"hyper.{name}") for name in ("gap", "weight"))
    if factor is None or penalty is None or gap is None or weight is None:
        return None
    paid = weight * penalty if seed.config.get("hyper.gap_after_weight") else penalty
    if factor < CHASING or paid <= gap:
        return None
    return (
        f"Infeasible: {seed.label} seed {seed.number}, whose multiplier has grown to {factor:,.0f} "
        f"and whose penalty is {paid:.3g}, still above gap={gap:g}: its values say little; give "
        "a larger algorithm.gap, or algorithm.gap=null for a fixed weight."
    )


def hardware(seed: Seed) -> str:
    """What times depend on."""
    o, machine = seed.outcome, seed.machine
    assert o is not None
    unit = f"{machine.get('cores', '?')} cores" if o.device == "cpu" else machine.get("gpu")
    return f"{o.device} ({unit}), {o.precision}, {'compiled' if o.compiled else 'eager'}"


report.__signature__ = signature(report, ReportOptions)  # type: ignore[attr-defined]

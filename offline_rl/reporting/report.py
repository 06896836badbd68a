"""`offline-rl report`: tables and learning curves of runs, on the terminal and as Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.reporting import online
from offline_rl.reporting.curves import draw
from offline_rl.reporting.numbers import as_csv, as_latex, numbers_of
from offline_rl.reporting.options import ReportOptions
from offline_rl.reporting.published import PublishedScore, published_scores
from offline_rl.reporting.runs import BEHAVIOR, Seed, behavior, collect, groups, key_of
from offline_rl.reporting.statistics import MIN_CONVERGENCE, convergence_text
from offline_rl.reporting.summary import Summary, share_text, summarize
from offline_rl.reporting.tables import constrained, dynamics, evaluated
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.options import build, options_signature
from offline_rl.utils.text import (
    format_count,
    format_duration,
    format_fitting_table,
    format_legend,
    format_mean_std,
    format_range,
    shown_columns,
    table,
    terminal_width,
    wrap_text,
)

LEGEND = {
    "score": "normalized score, mean ± standard deviation over seeds (ddof 0, as in CORL). A "
    "seed's score is the mean over the episodes of its last evaluation, which belongs to the last "
    "checkpoint, not to the best one. On OGBench it is a success rate over the last three "
    "evaluations, as published.",
    "return": "undiscounted return, averaged in the same way.",
    "published": "published score, mean ± standard deviation. A note below the table names the "
    "source.",
    "error": "standard error of the score, or of the return if there is no score, over the "
    "episodes of the last evaluation. `exact`: the episodes are all initial states of the task.",
    "last five": "mean score or return over the last five evaluations, or all if there are fewer.",
    "success %": "share of successful episodes of all seeds, with Wilson's 95 % interval. The "
    "interval treats all episodes as independent, although seeds share initial states.",
    "cost": "cost of an episode, mean ± standard deviation over seeds.",
    "episodes": "episodes of one evaluation × seeds.",
    "updates": "offline and online updates of a seed, without preliminary phases.",
    "convergence": "critic convergence, 1 − (1 − τ(1 − γ))^(target updates): how close the critic "
    "can be to its fixed point, given the number of updates of the target network. A run below "
    f"{100 * MIN_CONVERGENCE:.0f} % is marked unfinished, whatever its score. An offline run "
    "without a critic is marked unfinished if the score still rises: the last evaluation exceeds "
    "the mean of the last five by more than the standard deviation plus the standard error.",
    "env steps": "environment steps of a seed.",
    "wall time": "time to train all seeds, including evaluations.",
    "updates/s": "steady update rate of one seed × number of seeds that were trained together.",
}
# Lagrange multipliers start at 1 or e; above this value the penalty does not reach its target gap
LARGE_MULTIPLIER = 100.0
HEADER = ["algorithm", "score", "return", "published", "error", "last five", "success %", "cost"]
HEADER += ["episodes", "updates", "convergence", "env steps", "wall time", "updates/s"]
# columns that are hidden, in this order, if the table is wider than the terminal
LESS_NEEDED = ["updates/s", "wall time", "error", "last five", "episodes", "env steps", "return"]
LESS_NEEDED += ["cost", "updates", "published", "convergence", "success %"]
EXTENSIONS = {"csv": "csv", "latex": "tex"}


@dataclass(frozen=True)
class Report:
    """Tables of runs. `print(report)` shows the output of `offline-rl report`."""

    rows: list[dict[str, Any]]  # one row of numbers for each algorithm on each task
    files: list[Path]  # written files
    text: str
    constrained: list[dict[str, Any]]  # one row for each algorithm and cost limit of each task

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], /, **keys: Any
) -> Report:
    """Make tables and learning curves of all runs at any depth below the folders `runs`.

    keys: options of the command, such as `out`. Writes report.md and the figures into `out`. Raises
    UserError.
    """
    folders = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    options = build(ReportOptions, keys)
    if not folders:
        raise UserError("report needs a folder. Give a run's folder, or a folder with runs.")
    tasks = collect([Path(folder) for folder in folders])
    out, width = Path(options.out if options.out is not None else folders[0]), terminal_width()
    text, page, written = list[str](), ["# Runs"], [out / "report.md"]
    columns = list[str]()
    for seeds in tasks.values():
        title, body, notes = describe(seeds)
        columns += shown_columns(HEADER, body)
        lines = [wrap_text(note, min(width, 100)) for note in notes]
        text += [title, "", format_fitting_table(HEADER, body, width, LESS_NEEDED), "", *lines, ""]
        page += [f"## {title}", table(HEADER, body, markdown=True), *notes]
        if body := constrained.rows_of(seeds):
            columns += shown_columns(constrained.HEADER, body)
            shown = format_fitting_table(constrained.HEADER, body, width, constrained.LESS_NEEDED)
            text += ["At each cost limit", "", shown, ""]
            page += ["### At each cost limit", table(constrained.HEADER, body, markdown=True)]
        if body := evaluated.rows_of(seeds):
            columns += shown_columns(evaluated.HEADER, body)
            shown = format_fitting_table(evaluated.HEADER, body, width, evaluated.LESS_NEEDED)
            text += ["Evaluated after training", "", shown, ""]
            page += ["### Evaluated after training", table(evaluated.HEADER, body, markdown=True)]
        if body := dynamics.rows_of(seeds):
            columns += shown_columns(dynamics.HEADER, body)
            few = dynamics.rows_of(seeds, most=dynamics.MAX_OUTPUTS)
            shown = format_fitting_table(dynamics.HEADER, few, width, dynamics.LESS_NEEDED)
            notes, equations = dynamics.notes_of(seeds), dynamics.equations_of(seeds)
            hidden = [note] if (note := dynamics.hidden_note(seeds)) else []
            lines = [wrap_text(line, min(width, 100)) for line in (*hidden, *notes)]
            text += ["Dynamics models", "", shown, "", *lines, *equations, ""]
            page += ["### Dynamics models", table(dynamics.HEADER, body, markdown=True, left=2)]
            page += [*notes, *([f"```\n{chr(10).join(equations)}\n```"] if equations else [])]
    scored = {task: s for task, s in tasks.items() if any(seed.curves["return"] for seed in s)}
    if scored:
        written.insert(0, out / "curves.png")
        write_atomically(written[0], lambda temporary: draw(scored, temporary))
        page += ["## Learning curves", f"![Learning curves]({written[0].name})"]
    acting = online.online_tasks(scored)
    if acting:
        written.insert(0, out / online.FIGURE)
        write_atomically(written[0], lambda temporary: online.draw(acting, temporary))
        page.append("## Online training")
        bodies = {task: online.table_of(seeds) for task, seeds in acting.items()}
        for task, body in bodies.items():
            shown = format_fitting_table(online.HEADER, body, width, online.LESS_NEEDED)
            text += [f"{task}: online training", "", shown, ""]
            page += [f"### {task}", table(online.HEADER, body, markdown=True)]
        page += [online.explanation([row for body in bodies.values() for row in body])]
        page += [f"![Over environment steps]({written[0].name})"]
    legend = LEGEND | constrained.LEGEND | evaluated.LEGEND | dynamics.LEGEND
    page += ["## Columns", format_legend(legend, columns)]
    rows = [numbers for seeds in tasks.values() for numbers in numbers_of(seeds)]
    at_limits = [numbers for seeds in tasks.values() for numbers in constrained.numbers_of(seeds)]
    if options.format != "text":
        export = as_csv(rows) if options.format == "csv" else as_latex(rows)
        written.append(out / f"report.{EXTENSIONS[options.format]}")
        write_text(written[-1], export)
        if at_limits and options.format == "csv":
            written.append(out / "constrained.csv")
            write_text(written[-1], as_csv(at_limits, constrained.COLUMNS))
    write_text(out / "report.md", "\n\n".join(page) + "\n")
    if options.format != "text":
        return Report(rows, written, export.rstrip("\n"), at_limits)
    text += ["report.md explains the columns.", "", *map(str, written)]
    return Report(rows, written, "\n".join(text), at_limits)


def describe(seeds: Sequence[Seed]) -> tuple[str, list[list[str]], list[str]]:
    """Return a task's title, its table with the best algorithm first, and the notes below it."""
    key, data = key_of(seeds), behavior(seeds)
    published = published_scores(seeds) if key == "score" else {}
    rows = [
        row(label, summarize(group, key), group, published.get(label.partition(" ")[0]))
        for label, group in groups(seeds).items()
    ]
    body = [cells for _, cells in sorted(rows, key=lambda r: -r[0])]
    for name, (score, mean) in data.items():
        label = BEHAVIOR + (f" ({name})" if len(data) > 1 else "")
        cells = [label, format_mean_std([score], 1), format_mean_std([mean])]
        body.append([*cells, *[""] * (len(HEADER) - len(cells))])
    done = [s.outcome for s in seeds if s.outcome]
    rates = any(o.score_reference and o.score_reference.success for o in done)
    kind = "raw return (the task has no score references)"
    if key == "score":
        kind = "success rate in per cent" if rates else "normalized score"
    kind = kind if any(seed.curves["return"] for seed in seeds) else "not evaluated"

    names = dict.fromkeys(cells[0].partition(" ")[0] for cells in body)
    scores = [published[name] for name in names if name in published]
    notes = list(dict.fromkeys(o.score_reference.in_words() for o in done if o.score_reference))
    for about, source in dict.fromkeys((score.about, score.source) for score in scores):
        notes.append(f"Published: {about} ({source}).")
    if data:
        notes.append(f"Behavior policy: mean over the episodes of {', '.join(data)}.")
    if selected := dict.fromkeys(s.label for s in seeds if s.config.get("selection")):
        notes.append(f"Selection episodes of a search, not evaluation: {', '.join(selected)}.")
    notes += [note for seed in seeds if (note := note_on_state(seed, key))]
    notes += [note for seed in seeds if (note := multiplier_note(seed))]
    if done:
        notes.append(f"Ran on {'; '.join(sorted({hardware_text(s) for s in seeds if s.outcome}))}.")
    return f"{seeds[0].task}: {kind}", body, notes


def row(
    label: str,
    summary: Summary,
    seeds: Sequence[Seed] = (),
    published: PublishedScore | None = None,
) -> tuple[float, list[str]]:
    """Return the sort key and the cells of a group's row.

    seeds: all seeds of the group, including unfinished ones.
    """
    done = [seed.outcome for seed in summary.seeds if seed.outcome]
    if not done:
        empty = [label, *[""] * (len(HEADER) - 1)]
        states = {seed.state.split(" ")[0] for seed in seeds}
        empty[HEADER.index("wall time")] = " and ".join(sorted(states))
        return -math.inf, empty
    rates = [o.updates_per_second for o in done if o.updates_per_second is not None]
    return -math.inf if summary.mean is None else summary.mean, [
        label,
        format_mean_std([o.score for o in done], 1),
        format_mean_std([o.mean_return for o in done]),
        "" if published is None else published_text(published),
        summary.error_text,
        format_mean_std(summary.last_five, 1),
        success_text(summary),
        format_mean_std([float(np.mean(o.costs)) if o.costs else None for o in done], 1),
        f"{format_range(len(o.returns or ()) for o in done)} × {format_count(len(done), 'seed')}",
        format_range(o.updates for o in done),
        convergence_cell(summary),
        format_range(o.num_env_steps for o in done) if any(o.num_env_steps for o in done) else "",
        format_duration(sum(o.seconds / o.seeds_stacked for o in done)),
        f"{np.mean(rates):,.0f} × {format_range(o.seeds_stacked for o in done)}" if rates else "",
    ]


def published_text(published: PublishedScore) -> str:
    """Return a published score, with its standard deviation over seeds if it is known."""
    spread = "" if published.std is None else f" ± {published.std:.1f}"
    return f"{published.score:.1f}{spread}"


def success_text(summary: Summary) -> str:
    """Return the success rate with its interval, in per cent."""
    return "" if summary.success is None else share_text(summary.success)


def convergence_cell(summary: Summary) -> str:
    """Return the critic convergence, or `rising` if a run without a critic still improves."""
    return "rising, unfinished" if summary.rising else convergence_text(summary.critic_convergence)


def note_on_state(seed: Seed, key: str) -> str | None:
    """Return a note on a seed that is unfinished or diverged; None for other seeds."""
    name, o = f"{seed.label} seed {seed.number}", seed.outcome
    if o is None:
        at, value = max(seed.curves[key].items(), default=(None, 0))
        unit = "updates and environment steps" if seed.moments else "updates"
        last = "not evaluated yet" if at is None else f"{key} {value:.1f} after {at:,} {unit}"
        state, _, reason = seed.state.partition(" ")
        return f"{state.capitalize()}: {name}, {last}{' ' * bool(reason)}{reason}."
    if o.diverged_at is None:
        return None
    counted = "It is included in the mean." if o.mean_return is not None else "It has no score."
    return f"Diverged: {name}, before update {o.diverged_at:,}. {counted}"


def multiplier_note(seed: Seed) -> str | None:
    """Return a note on a seed (cql, cal_ql) whose penalty cannot be reduced to its target gap.

    Even a constant Q function has a penalty: the logarithm of the volume of the proposed actions.
    No multiplier can push the penalty below that value, and Q falls throughout the run.
    """
    factor, penalty = (seed.metrics.get(f"train/{name}") for name in ("multiplier", "penalty"))
    gap, weight = (seed.config.get(f"hyper.{name}") for name in ("gap", "weight"))
    if factor is None or penalty is None or gap is None or weight is None:
        return None
    paid = weight * penalty if seed.config.get("hyper.gap_after_weight") else penalty
    if factor < LARGE_MULTIPLIER or paid <= gap:
        return None
    return (
        f"Infeasible: {seed.label} seed {seed.number}. The multiplier has grown to {factor:,.0f}, "
        f"but the penalty of {paid:.3g} is still above gap={gap:g}, so the Q values mean little. "
        "Use a larger algorithm.gap, or algorithm.gap=null for a fixed weight."
    )


def hardware_text(seed: Seed) -> str:
    """Return device, precision and compilation, on which a seed's times depend."""
    o, machine = seed.outcome, seed.machine
    assert o is not None
    cores = machine.get("cores")
    unit = machine.get("gpu") if o.device != "cpu" else cores and format_count(cores, "core")
    return f"{o.device} ({unit or '?'}), {o.precision}, {'compiled' if o.compiled else 'eager'}"


report.__signature__ = options_signature(report, ReportOptions)  # type: ignore[attr-defined]

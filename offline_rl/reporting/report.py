"""What runs came to: tables and learning curves, on the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.reporting import online
from offline_rl.reporting.curves import draw
from offline_rl.reporting.options import ReportOptions
from offline_rl.reporting.runs import Seed, behaviour, collect, groups, key_of
from offline_rl.reporting.standing import Standing, standing
from offline_rl.reporting.statistics import FORMED, formed_text
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.options import build
from offline_rl.utils.text import duration, mean_std, span, table, wrapped

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
    "by side."
)
CHASING = 100.0  # a multiplier that begins at 1 or e and is there has not done what it is for
HEADER = ["algorithm", "score", "return", "error", "last five", "success %", "cost", "episodes"]
HEADER += ["updates", "formed", "env steps", "wall time", "updates/s"]


def summary(run_folder: Path) -> str:
    """The report of one run, written into its own folder."""
    return report([run_folder])


def report(folders: Sequence[str | Path], /, **keys: Any) -> str:
    """Tables of all runs at any depth below `folders`; writes report.md and curves.png into `out=`.

    Returns the text for a terminal; its last line is the path of report.md. Raises UserError.
    """
    options = build(ReportOptions, keys)
    if not folders:
        raise UserError("report: give a run's folder, or a folder that holds runs")
    tasks = collect([Path(folder) for folder in folders])
    out = Path(options.out if options.out is not None else folders[0])
    text, page, written = list[str](), ["# Runs"], [out / "report.md"]
    for seeds in tasks.values():
        title, body, notes = describe(seeds)
        text += [title, "", table(HEADER, body), "", *map(wrapped, notes), ""]
        page += [f"## {title}", table(HEADER, body, markdown=True), *notes]
    evaluated = {task: s for task, s in tasks.items() if any(seed.curves["return"] for seed in s)}
    if evaluated:
        written.insert(0, out / "curves.png")
        write_atomically(written[0], lambda temporary: draw(evaluated, temporary))
        page += ["## Learning curves", f"![Learning curves]({written[0].name})"]
    acting = online.acting(evaluated)
    if acting:
        written.insert(0, out / online.FIGURE)
        write_atomically(written[0], lambda temporary: online.draw(acting, temporary))
        page.append("## In an environment")
        for task, seeds in acting.items():
            body = online.table_of(seeds)
            text += [f"{task}, in the environment", "", table(online.HEADER, body), ""]
            page += [f"### {task}", table(online.HEADER, body, markdown=True)]
        text += [wrapped(online.NOTE), ""]
        page += [online.NOTE, f"![Over environment steps]({written[0].name})"]
    page += ["## How to read this", NOTE]
    write_text(written[-1], "\n\n".join(page) + "\n")
    return "\n".join([*text, wrapped(NOTE), "", *map(str, written)])


def describe(seeds: Sequence[Seed]) -> tuple[str, list[list[str]], list[str]]:
    """A task's title, the rows of its table, the best algorithm first, and the notes below it."""
    key, data = key_of(seeds), behaviour(seeds)
    rows = [row(label, standing(own, key), own) for label, own in groups(seeds).items()]
    body = [cells for _, cells in sorted(rows, key=lambda r: -r[0])]
    for name, (score, mean) in data.items():
        label = "behaviour policy" + (f" ({name})" if len(data) > 1 else "")
        cells = [label, mean_std([score], 1), mean_std([mean])]
        body.append([*cells, *[""] * (len(HEADER) - len(cells))])
    kind = "normalised score" if key == "score" else "raw return (the task has no score references)"
    kind = kind if any(seed.curves["return"] for seed in seeds) else "not evaluated"

    done = [s.outcome for s in seeds if s.outcome]
    notes = list(dict.fromkeys(o.score_reference.in_words() for o in done if o.score_reference))
    if data:
        notes.append(f"Behaviour policy: the mean over the episodes of {', '.join(data)}.")
    notes += [note for seed in seeds if (note := unusual(seed, key))]
    notes += [note for seed in seeds if (note := infeasible(seed))]
    if done:
        notes.append(f"Ran on {'; '.join(sorted({hardware(s) for s in seeds if s.outcome}))}.")
    return f"{seeds[0].task}: {kind}", body, notes


def row(label: str, found: Standing, every: Sequence[Seed] = ()) -> tuple[float, list[str]]:
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
    if found.success is None:
        return ""
    share, low, high = (100 * x for x in found.success)
    return f"{share:.0f} [{low:.0f}, {high:.0f}]"


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
    """The note on a seed whose learnt multiplier (cql, cal_ql) chases a gap it does not reach.

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

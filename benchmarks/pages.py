"""Generate the page of every study: its stored runs, baselines, published scores and notes.

    python -m benchmarks.pages                        # all studies
    python -m benchmarks.pages evidence [runs/evidence …]

A study is a folder of benchmarks/results with compact files (offline_rl/reporting/compact.py) and a
notes.md written by hand. The study's README.md has the first part of the notes, the tables and the
rest of the notes. If folders of runs are given, their finished runs are first added to the study.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import envs
from benchmarks.figures import check_names, run_command
from offline_rl.reporting import compact, online
from offline_rl.reporting.curves import draw
from offline_rl.reporting.published import NEORL2_NAMES, rows_of
from offline_rl.reporting.report import (
    convergence_cell,
    hardware_text,
    multiplier_note,
    success_text,
)
from offline_rl.reporting.runs import Seed, behavior, collect, groups, key_of
from offline_rl.reporting.statistics import MIN_CONVERGENCE
from offline_rl.reporting.summary import Summary, summarize
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.text import format_mean_std, format_range, table, wrap_text

RESULTS = Path("benchmarks/results")
SUBSTITUTE = "substitute-data"  # name of runs whose data replaces the published data
SHOWN = 0.5  # results with less critic convergence have no row
BASELINES = {
    "behavior": "dataset episodes",
    "best_tenth": "top 10 % of dataset episodes by return",
    "mean_action": "constant mean action",
    "best_constant": "best constant action found",
}
GRID = {"return_grid_median": "median of grid", "return_grid_worst": "worst of grid"}
HOW = (  # list on every page
    "`score` (or `return`): mean ± standard deviation over seeds (ddof 0) of each seed's last "
    "evaluation, never of its best one.",
    "`error`: the standard error over the episodes of this evaluation. All seeds share the initial "
    "states of these episodes.",
    "`last five`: the same mean for the last five evaluations, or for all if there are fewer.",
    "`convergence`: critic convergence, 1 - (1 - tau (1 - discount))^n after n updates of the "
    "target network. If a run continues another one, the updates of both count. Below "
    f"{100 * MIN_CONVERGENCE:.0f} % a row is unfinished: it comes last and is compared with "
    f"nothing. Below {100 * SHOWN:.0f} % it is not shown.",
    "A row without a number in this column has no critic, or its values are learned from rollouts. "
    "Such a row is unfinished if it was still rising, which means that its last evaluation is "
    "significantly above the mean of the last five. A row that was not rising may still be far "
    "from converged.",
    "`target / data`: the critics' mean target at the end, divided by the mean discounted return "
    "of the dataset's states. Targets include the entropy bonus of SAC and related methods. For "
    "the return, a truncated episode is continued at the mean reward of its last tenth. Above 1 "
    "the critics expect a higher return than the data have or, if rewards are costs, a higher "
    "cost. With centered rewards the data's return is about 0, and no number is shown.",
    "`updates`: the number of updates, offline and online.",
    "The rows above the algorithms are made by `python -m benchmarks.baselines`. Scores of "
    "constant actions are from 100 episodes, or exact. The search for the best constant action "
    "used other initial states.",
)
SETS = """## Data sets

Mean return of each data set made by the recipes, and of D4RL's data set with the same name.
"""


def page(folder: Path) -> str:
    """Return the text of a study's README.md."""
    head, rest = notes(folder)
    tasks = collect([folder])
    name = folder.name
    parts = [head, f"`offline-rl benchmark suite={name}`, then `python -m benchmarks.pages {name}`"]
    items = (wrap_text(f"- {item}", 110).replace("\n", "\n  ") for item in HOW)
    parts += ["How to read the tables:", "\n".join(items)]
    acting, online_rows = online.online_tasks(tasks), list[list[str]]()
    for task, seeds in tasks.items():
        parts += [section(seeds)]
        if task in acting:
            rows = online.table_of(seeds)
            online_rows += rows
            parts += [table(online.HEADER, rows, markdown=True), published_on_similar(task)]
    if acting:
        parts += [online.explanation(online_rows), f"![Over environment steps]({online.FIGURE})"]
    if compared := comparison(tasks):
        parts += [compared]
    if name == "locomotion":
        parts += [SETS.strip(), dataset_returns()]
    machines = sorted({hardware_text(seed) for seeds in tasks.values() for seed in seeds})
    parts += [f"Ran on {'; '.join(machines)}.", "![Learning curves](curves.png)", rest]
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def notes(folder: Path) -> tuple[str, str]:
    """Return notes.md in two parts, split at its first `## `."""
    file = folder / "notes.md"
    text = file.read_text() if file.is_file() else f"# {folder.name}\n"
    head, mark, rest = text.partition("\n## ")
    return head.strip(), (mark + rest).strip()


def section(seeds: Sequence[Seed]) -> str:
    """Return a task's table, and the list of runs that are too short to have a row."""
    task, key = seeds[0].task, key_of(seeds)
    results = standings(seeds)
    shown = [c for c in results if has_row(c[1])]
    shown.sort(key=lambda c: (not c[1].finished, -(c[1].mean or 0)))
    others = published(task) if comparable(seeds) else {}
    heads = list(dict.fromkeys(head for scores in others.values() for head in scores))
    header = ["policy", key, "error", "last five", "convergence", "target / data", "success %"]
    header += ["cost", "updates", "episodes", *heads]
    body = baselines(seeds, key, len(header))
    for label, c in shown:
        scores = others.get(label.split(" ")[0], {})
        body.append([*row(label, c), *(scores.get(head, "") for head in heads)])
    text = f"## {task}\n\n{table(header, body, markdown=True)}"
    if early := [
        f"{label} ({convergence_cell(c).split(',')[0]})" for label, c in results if not has_row(c)
    ]:
        text += "\n\nNot shown, because the critic has converged too little: "
        text += f"{', '.join(early)}."
    warnings = [note for seed in seeds if (note := multiplier_note(seed))]
    return "\n\n".join([text, *warnings])


def comparable(seeds: Sequence[Seed]) -> bool:
    """Return True if the seeds used the published data, or data generated in the same way."""
    if any(seed.config["name"] == SUBSTITUTE for seed in seeds):
        return False
    return seeds[0].config.get("dataset") is None or measured_baselines(seeds[0]) is not None


def standings(seeds: Sequence[Seed]) -> list[tuple[str, Summary]]:
    """Return each algorithm's label and summary."""
    key = key_of(seeds)
    return [(label, summarize(group, key)) for label, group in groups(seeds).items()]


def has_row(c: Summary) -> bool:
    """Return True if the critic has converged far enough for a row."""
    return c.critic_convergence is None or c.critic_convergence >= SHOWN


def row(label: str, c: Summary) -> list[str]:
    """Return an algorithm's row, without published scores."""
    done = [seed.outcome for seed in c.seeds if seed.outcome]
    lost = len(done) - len(c.values)
    worth = value_of_data(c.seeds[0])
    episodes = format_range(len(o.returns or ()) for o in done)
    return [
        label,
        format_mean_std(c.values, 1) + (f"; {lost} of {len(done)} diverged" if lost else ""),
        c.error_text,
        format_mean_std(c.last_five, 1),
        convergence_cell(c),
        f"{c.target / worth:.2f}" if c.target is not None and worth else "",
        success_text(c),
        format_mean_std([sum(o.costs) / len(o.costs) if o.costs else None for o in done], 1),
        format_range(o.updates for o in done),
        f"{episodes} × {len(done)} seeds",
    ]


def baselines(seeds: Sequence[Seed], key: str, width: int) -> list[list[str]]:
    """Return rows of the data and of constant actions; only the data if nothing else is stored."""
    measured = measured_baselines(seeds[0])
    if measured is None:
        worth = {name: pair[key == "return"] for name, pair in behavior(seeds).items()}
        body = [[f"data: {name}", format_number(x)] for name, x in worth.items()]
        return [[*cells, *[""] * (width - len(cells))] for cells in body]
    body = []
    for name, entry in measured["rows"].items():
        label = BASELINES.get(name) or f"constant action {name.removeprefix('constant_')}"
        error = entry["error" if key == "return" else "score_error"]
        cells = [label, format_number(entry[key])]
        cells += ["exact" if entry.get("exact") else format_number(error)]
        cells += [""] * (width - len(cells))
        cells[9] = f"{entry['episodes']:,}"  # the column of episodes in `row`
        body.append(cells)
    return body


def format_number(x: float | None) -> str:
    """Return the number with one decimal, or an empty string for None."""
    return "" if x is None else f"{x:,.1f}"


@cache
def load_baselines() -> Mapping[str, Any]:
    """Return the stored results of `benchmarks.baselines`."""
    file = RESULTS / "baselines.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def measured_baselines(seed: Seed) -> Mapping[str, Any] | None:
    """Return the baselines of the seed's task if they used the seed's data, else None."""
    entry = load_baselines().get(seed.task)
    same = entry is not None and entry["dataset_sha256"] == seed.config.get("data")
    return entry if same else None


def value_of_data(seed: Seed) -> float | None:
    """Return the mean discounted return of the data's states, in the seed's transformed rewards."""
    measured, cfg = measured_baselines(seed), seed.config
    if cfg.get("hyper.center_rewards"):
        return None  # about 0, so a ratio means nothing
    if measured is None or cfg.get("hyper.discount") != measured["values"]["discount"]:
        return None
    scale = cfg["hyper.reward_scale"]
    if cfg["hyper.normalize_returns"]:
        scale *= 1000 / measured["values"]["range_of_returns"]
    values = measured["values"]
    return scale * values["value"] + cfg["hyper.reward_shift"] * values["weight"]


@cache
def published(task: str) -> dict[str, dict[str, str]]:
    """Return published scores, algorithm -> column -> text.

    They are for the task, or for the D4RL task with the same name.
    """
    scores: dict[str, dict[str, str]] = {}
    suite, _, name = task.rpartition("/")
    if suite == "neorl2":
        reference = envs.task(task)
        for entry in rows_of("neorl2.csv"):
            algorithm, metric = entry["algorithm"], entry["metric"]
            if entry["task"] != name or algorithm == "data":
                continue
            columns = scores.setdefault(NEORL2_NAMES.get(algorithm, algorithm), {})
            if metric == "normalized_score":
                columns["published, best of grid"] = (
                    f"{float(entry['value']):.1f} ± {float(entry['std']):.1f}"
                )
            elif metric in GRID:
                columns[GRID[metric]] = f"{float(reference.score(float(entry['value']))):.1f}"
    elif suite == "gym":
        for entry in rows_of("d4rl.csv"):
            if entry["dataset"] == f"{name}-v2":
                score = f"{float(entry['score']):.1f} ± {float(entry['std']):.1f}"
                scores[entry["algorithm"]] = {"CORL on D4RL's data": score}
    return scores


def published_on_similar(task: str) -> str:
    """Return published scores on data sets similar to the task, before and after fine-tuning."""
    body, datasets = list[list[str]](), dict[str, None]()
    for entry in rows_of("o2o.csv"):
        if entry["resembles"] == task:
            datasets[f"{entry['dataset']} ({entry['source']}, 4 seeds)"] = None
            cells = [entry["algorithm"]]
            for end in ("before", "end"):
                cells.append(f"{float(entry[end]):.1f} ± {float(entry[f'{end}_std']):.1f}")
            body.append(cells)
    if not body:
        return ""
    what = f"Published on {', '.join(datasets)}, which is similar but not the same task: success "
    what += "rate in percent after 1,000,000 updates on the data, and after 1,000,000 environment "
    what += "steps."
    return f"{wrap_text(what)}\n\n{table(['algorithm', 'before', 'end'], body, markdown=True)}"


def comparison(tasks: Mapping[str, Sequence[Seed]]) -> str:
    """Return the table of algorithms above the data, its top 10 % and all published scores."""
    body = []
    for task, seeds in tasks.items():
        measured = measured_baselines(seeds[0])
        if measured is None or not task.startswith("neorl2/") or not comparable(seeds):
            continue
        scores = {
            (entry["algorithm"], entry["metric"]): float(entry["value"])
            for entry in rows_of("neorl2.csv")
            if f"neorl2/{entry['task']}" == task and entry["algorithm"] != "data"
        }
        best = {a: s for (a, metric), s in scores.items() if metric == "normalized_score"}
        top = max(best, key=lambda a: best[a])
        regenerated = any(seed.config["name"] == "regenerated-data" for seed in seeds)
        data_rows = [measured["rows"][name] for name in ("behavior", "best_tenth")]
        bars = [row["score"] for row in data_rows]
        constant = max(r["score"] for r in measured["rows"].values() if "action" in r)
        cells = [task + " (regenerated data)" * regenerated]
        cells += [*map(format_number, (*bars, constant)), f"{best[top]:.1f} ({top})"]
        errors = [row["score_error"] or 0.0 for row in data_rows]
        for bar, error in zip((*bars, best[top]), (*errors, 0.0), strict=True):
            names = [label.split(" ")[0] for label, c in standings(seeds) if c.above(bar, error)]
            cells.append(", ".join(names) or "none")
        body.append(cells)
    if not body:
        return ""
    header = ["task", "data", "top 10 % of the data", "best constant action", "best published"]
    header += ["above the data", "above the top 10 %", "above all published"]
    return (
        "## Comparison with the data and with published scores\n\n"
        + "The last three columns list algorithms whose row is finished. Both the last evaluation "
        + "and the last five must exceed the column's score by more than the sum of the standard "
        + "deviation over seeds and the standard errors over episodes, of the algorithm and of the "
        + "data.\n\n"
        + table(header, body, markdown=True)
    )


def dataset_returns() -> str:
    """Return the table of mean returns of the generated locomotion data and of D4RL's."""
    published_returns = {
        row["dataset"]: float(row["mean_return"]) for row in rows_of("d4rl_returns.csv")
    }
    body = []
    for name, mean_return in published_returns.items():
        for path in sorted(Path("datasets").glob(f"*/{name}.json")):
            card = json.loads(path.read_text())
            cells = [name, f"{card['rows']:,}", f"{card['return_mean']:,.1f}"]
            body.append([*cells, f"{card['score_mean']:.1f}", f"{mean_return:,.1f}"])
            break
    return table(["data set", "rows", "mean return", "score", "D4RL's v2"], body, markdown=True)


def studies() -> list[Path]:
    """Return the folders of all studies."""
    return sorted(file.parent for file in RESULTS.glob(f"*/{compact.RUNS}"))


def main(arguments: Sequence[str]) -> None:
    folders = studies()
    if arguments:
        study, *runs = arguments
        if not runs:
            check_names(study, "study", [folder.name for folder in folders])
        folders = [RESULTS / study]
        if runs:
            print(f"{compact.pack(runs, folders[0])} seeds in {folders[0]}")
    for folder in folders:
        write_text(folder / "README.md", page(folder))
        tasks = {t: s for t, s in collect([folder]).items() if any(x.curves["return"] for x in s)}
        write_atomically(folder / "curves.png", partial(draw, tasks))
        if acting := online.online_tasks(tasks):
            write_atomically(folder / online.FIGURE, partial(online.draw, acting))
        print(folder / "README.md")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

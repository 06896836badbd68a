"""Every study's page: its kept runs, what anybody must beat, what is published, and its notes.

    python -m benchmarks.pages                        # of all studies
    python -m benchmarks.pages evidence [runs/evidence …]

A study is a folder of benchmarks/results: compact files (offline_rl/reporting/compact.py) and a
notes.md written by hand. Its README.md is the head of the notes, the tables, the rest of the notes.
Finished runs in the folders named are added to the study's first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import envs
from benchmarks.figures import chosen, status
from offline_rl.reporting import compact, online
from offline_rl.reporting.curves import draw
from offline_rl.reporting.published import NEORL2_NAMES, rows_of
from offline_rl.reporting.report import hardware, infeasible, progress, success
from offline_rl.reporting.runs import Seed, behavior, collect, groups, key_of
from offline_rl.reporting.standing import Standing, standing
from offline_rl.reporting.statistics import FORMED
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.text import mean_std, span, table, wrapped

RESULTS = Path("benchmarks/results")
SUBSTITUTE = "substitute-data"  # what runs are called whose data only stands for the published
SHOWN = 0.5  # values less formed than this have no row
BASELINES = {
    "behavior": "the data's episodes",
    "best_tenth": "their best tenth",
    "mean_action": "the mean action, always",
    "best_constant": "the best constant found",
}
GRID = {"return_grid_median": "median of grid", "return_grid_worst": "worst of grid"}
HOW = (
    "How to read the tables. `score` (or `return`): mean ± standard deviation over seeds (ddof 0) "
    "of each seed's last evaluation; never the best one. `error`: the standard error over that "
    "evaluation's episodes, whose starts the seeds share. `last five`: the same mean over the last "
    "five evaluations, of all where there are fewer. `formed`: how far values had come, "
    "1 - (1 - tau (1 - discount))^n after n updates of the target, those of a run that it goes on "
    f"from among them; below {100 * FORMED:.0f} % a row is unfinished, comes last and is compared "
    f"with nothing; below {100 * SHOWN:.0f} % it is not shown. Without a number there are no "
    "values to form, or they are learned from rollouts; such a row is unfinished where it was "
    "rising, its last evaluation surely above the last five, and one that was not may be far from "
    "learned all the same. `target / data`: the critics' mean target at the end, with the entropy "
    "that SAC and its kin pay for, over what the data's own rewards to come are worth on average, "
    "discounted, a cut episode continued at the mean reward of its last tenth; above 1 they expect "
    "more than the data earn, or, where rewards are costs, more cost; where rewards were centered "
    "the data's are worth about 0, and there is no number. `updates`: on data and in an "
    "environment. The rows above the algorithms are made by `python -m benchmarks.baselines`; "
    "constants' scores are from 100 episodes, or exact; the search played other starts."
)
SETS = """## The sets

The mean return of each set that the recipes made, beside D4RL's own.
"""


def page(folder: Path) -> str:
    """A study's README.md."""
    head, rest = notes(folder)
    tasks = collect([folder])
    name = folder.name
    parts = [head, f"`offline-rl benchmark suite={name}`, then `python -m benchmarks.pages {name}`"]
    parts += [wrapped(HOW)]
    acting = online.acting(tasks)
    for task, seeds in tasks.items():
        parts += [section(seeds)]
        if task in acting:
            parts += [table(online.HEADER, online.table_of(seeds), markdown=True), alike(task)]
    if acting:
        parts += [wrapped(online.NOTE), f"![Over environment steps]({online.FIGURE})"]
    if compared := comparison(tasks):
        parts += [compared]
    if name == "locomotion":
        parts += [SETS.strip(), sets()]
    machines = sorted({hardware(seed) for seeds in tasks.values() for seed in seeds})
    parts += [f"Ran on {'; '.join(machines)}.", "![Learning curves](curves.png)", rest]
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def notes(folder: Path) -> tuple[str, str]:
    """notes.md up to its first `## `, and from there on."""
    file = folder / "notes.md"
    text = file.read_text() if file.is_file() else f"# {folder.name}\n"
    head, mark, rest = text.partition("\n## ")
    return head.strip(), (mark + rest).strip()


def section(seeds: Sequence[Seed]) -> str:
    """A task's table, and what was cut off too early to have a row."""
    task, key = seeds[0].task, key_of(seeds)
    found = standings(seeds)
    shown = [c for c in found if kept(c[1])]
    shown.sort(key=lambda c: (not c[1].finished, -(c[1].mean or 0)))
    others = published(task) if comparable(seeds) else {}
    heads = list(dict.fromkeys(head for known in others.values() for head in known))
    header = ["policy", key, "error", "last five", "formed", "target / data", "success %", "cost"]
    header += ["updates", "episodes", *heads]
    body = baselines(seeds, key, len(header))
    for label, c in shown:
        known = others.get(label.split(" ")[0], {})
        body.append([*row(label, c), *(known.get(head, "") for head in heads)])
    text = f"## {task}\n\n{table(header, body, markdown=True)}"
    if early := [f"{label} ({progress(c).split(',')[0]})" for label, c in found if not kept(c)]:
        text += "\n\nNot benchmarked here, values having formed too little: "
        text += f"{', '.join(early)}."
    lost = [note for seed in seeds if (note := infeasible(seed))]
    return "\n\n".join([text, *lost])


def comparable(seeds: Sequence[Seed]) -> bool:
    """Whether they learned from the published data, or from data made in the publishers' way."""
    if any(seed.config["name"] == SUBSTITUTE for seed in seeds):
        return False
    return seeds[0].config.get("dataset") is None or measured(seeds[0]) is not None


def standings(seeds: Sequence[Seed]) -> list[tuple[str, Standing]]:
    """Each algorithm's, by label."""
    key = key_of(seeds)
    return [(label, standing(own, key)) for label, own in groups(seeds).items()]


def kept(c: Standing) -> bool:
    """Whether values formed far enough for a row."""
    return c.formed is None or c.formed >= SHOWN


def row(label: str, c: Standing) -> list[str]:
    """An algorithm's, without what is published."""
    done = [seed.outcome for seed in c.seeds if seed.outcome]
    lost = len(done) - len(c.values)
    worth = value_of_data(c.seeds[0])
    episodes = span(len(o.returns or ()) for o in done)
    return [
        label,
        mean_std(c.values, 1) + (f"; {lost} of {len(done)} diverged" if lost else ""),
        c.error_text,
        mean_std(c.lasts, 1),
        progress(c),
        f"{c.target / worth:.2f}" if c.target is not None and worth else "",
        success(c),
        mean_std([sum(o.costs) / len(o.costs) if o.costs else None for o in done], 1),
        span(o.updates for o in done),
        f"{episodes} × {len(done)} seeds",
    ]


def baselines(seeds: Sequence[Seed], key: str, width: int) -> list[list[str]]:
    """Rows of the data and of constant actions; of the data alone where no more is known."""
    own = measured(seeds[0])
    if own is None:
        worth = {name: found[key == "return"] for name, found in behavior(seeds).items()}
        body = [[f"data: {name}", number(x)] for name, x in worth.items()]
        return [[*cells, *[""] * (width - len(cells))] for cells in body]
    body = []
    for name, found in own["rows"].items():
        label = BASELINES.get(name) or f"{name.removeprefix('constant_')}, always"
        error = found["error" if key == "return" else "score_error"]
        cells = [label, number(found[key]), "exact" if found.get("exact") else number(error)]
        cells += [""] * (width - len(cells))
        cells[9] = f"{found['episodes']:,}"  # as in `row`
        body.append(cells)
    return body


def number(x: float | None) -> str:
    """With one decimal; nothing where there is none."""
    return "" if x is None else f"{x:,.1f}"


@cache
def all_measured() -> Mapping[str, Any]:
    """What `benchmarks.baselines` has kept."""
    file = RESULTS / "baselines.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def measured(seed: Seed) -> Mapping[str, Any] | None:
    """The baselines of the seed's task, where they are of the data that it learned from."""
    own = all_measured().get(seed.task)
    same = own is not None and own["dataset_sha256"] == seed.config.get("data")
    return own if same else None


def value_of_data(seed: Seed) -> float | None:
    """What the data's states are worth on average, in the rewards that the seed learned from."""
    own, cfg = measured(seed), seed.config
    if cfg.get("hyper.center_rewards"):
        return None  # about 0, which nothing can be held against
    if own is None or cfg.get("hyper.discount") != own["values"]["discount"]:
        return None
    scale = cfg["hyper.reward_scale"]
    if cfg["hyper.normalize_returns"]:
        scale *= 1000 / own["values"]["range_of_returns"]
    return scale * own["values"]["value"] + cfg["hyper.reward_shift"] * own["values"]["weight"]


@cache
def published(task: str) -> dict[str, dict[str, str]]:
    """Algorithm -> column -> what others have published on the task, or on its model."""
    found: dict[str, dict[str, str]] = {}
    suite, _, name = task.rpartition("/")
    if suite == "neorl2":
        reference = envs.task(task)
        for known in rows_of("neorl2.csv"):
            algorithm, metric = known["algorithm"], known["metric"]
            if known["task"] != name or algorithm == "data":
                continue
            own = found.setdefault(NEORL2_NAMES.get(algorithm, algorithm), {})
            if metric == "normalized_score":
                own["published, best of grid"] = (
                    f"{float(known['value']):.1f} ± {float(known['std']):.1f}"
                )
            elif metric in GRID:
                own[GRID[metric]] = f"{float(reference.score(float(known['value']))):.1f}"
    elif suite == "gym":
        for known in rows_of("d4rl.csv"):
            if known["dataset"] == f"{name}-v2":
                score = f"{float(known['score']):.1f} ± {float(known['std']):.1f}"
                found[known["algorithm"]] = {"CORL on D4RL's set": score}
    return found


def alike(task: str) -> str:
    """What is published on a set that only resembles the task, before and after fine-tuning."""
    body, sets_of = list[list[str]](), dict[str, None]()
    for known in rows_of("o2o.csv"):
        if known["resembles"] == task:
            sets_of[f"{known['dataset']} ({known['source']}, 4 seeds)"] = None
            cells = [known["algorithm"]]
            for end in ("before", "end"):
                cells.append(f"{float(known[end]):.1f} ± {float(known[f'{end}_std']):.1f}")
            body.append(cells)
    if not body:
        return ""
    what = f"Published on {', '.join(sets_of)}, which only resembles it: success in per cent after "
    what += "1,000,000 updates on the data, and after as many environment steps."
    return f"{wrapped(what)}\n\n{table(['algorithm', 'before', 'end'], body, markdown=True)}"


def comparison(tasks: Mapping[str, Sequence[Seed]]) -> str:
    """Who is above the data, its best tenth, and every published score of the same benchmark."""
    body = []
    for task, seeds in tasks.items():
        own = measured(seeds[0])
        if own is None or not task.startswith("neorl2/") or not comparable(seeds):
            continue
        scores = {
            (known["algorithm"], known["metric"]): float(known["value"])
            for known in rows_of("neorl2.csv")
            if f"neorl2/{known['task']}" == task and known["algorithm"] != "data"
        }
        best = {a: s for (a, metric), s in scores.items() if metric == "normalized_score"}
        top = max(best, key=lambda a: best[a])
        made = any(seed.config["name"] == "regenerated-data" for seed in seeds)
        of_data = [own["rows"][name] for name in ("behavior", "best_tenth")]
        bars = [row["score"] for row in of_data]
        constant = max(r["score"] for r in own["rows"].values() if "action" in r)
        cells_of = [task + " (regenerated data)" * made, *map(number, (*bars, constant))]
        cells_of += [f"{best[top]:.1f} ({top})"]
        errors = [row["score_error"] or 0.0 for row in of_data]
        for bar, error in zip((*bars, best[top]), (*errors, 0.0), strict=True):
            names = [label.split(" ")[0] for label, c in standings(seeds) if c.above(bar, error)]
            cells_of.append(", ".join(names) or "none")
        body.append(cells_of)
    if not body:
        return ""
    header = ["task", "data", "its best tenth", "best constant action", "best published"]
    header += ["above the data", "above its best tenth", "above all published"]
    return (
        "## Above the data, above what is published\n\n"
        + "Only finished rows are named, and only where the last evaluation and the last five are "
        + "above by more than the deviation over seeds and the errors over episodes, its own and "
        + "the data's, together.\n\n"
        + table(header, body, markdown=True)
    )


def sets() -> str:
    """The mean return of each locomotion set that was made, beside D4RL's."""
    theirs = {row["dataset"]: float(row["mean_return"]) for row in rows_of("d4rl_returns.csv")}
    body = []
    for name, mean_return in theirs.items():
        for path in sorted(Path("datasets").glob(f"*/{name}.json")):
            card = json.loads(path.read_text())
            cells = [name, f"{card['rows']:,}", f"{card['return_mean']:,.1f}"]
            body.append([*cells, f"{card['score_mean']:.1f}", f"{mean_return:,.1f}"])
            break
    return table(["set", "rows", "mean return", "score", "D4RL's v2"], body, markdown=True)


def studies() -> list[Path]:
    """Their folders."""
    return sorted(file.parent for file in RESULTS.glob(f"*/{compact.RUNS}"))


def main(arguments: Sequence[str]) -> None:
    folders = studies()
    if arguments:
        study, *runs = arguments
        if not runs:
            chosen(study, "study", [folder.name for folder in folders])
        folders = [RESULTS / study]
        if runs:
            print(f"{compact.pack(runs, folders[0])} seeds in {folders[0]}")
    for folder in folders:
        write_text(folder / "README.md", page(folder))
        tasks = {t: s for t, s in collect([folder]).items() if any(x.curves["return"] for x in s)}
        write_atomically(folder / "curves.png", partial(draw, tasks))
        if acting := online.acting(tasks):
            write_atomically(folder / online.FIGURE, partial(online.draw, acting))
        print(folder / "README.md")


if __name__ == "__main__":
    sys.exit(status(main, sys.argv[1:]))

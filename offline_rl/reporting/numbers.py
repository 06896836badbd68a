"""Numbers of a report as rows, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offline_rl.reporting.published import published_scores
from offline_rl.reporting.runs import BEHAVIOR, Seed, behavior, groups, key_of
from offline_rl.reporting.summary import summarize

COLUMNS = ["task", "algorithm", "data", "seeds", "score", "score_std", "return", "return_std"]
COLUMNS += ["error", "last_five", "last_five_std", "success", "success_low", "success_high"]
COLUMNS += ["cost", "episodes", "updates", "env_steps", "critic_convergence", "seconds"]
COLUMNS += ["published", "published_std", "published_about", "published_source"]
LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$"}
LATEX |= {"{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}"}


def numbers_of(seeds: Sequence[Seed]) -> list[dict[str, Any]]:
    """Return a row for each algorithm with finished seeds, then rows for the behavior policy.

    Means and standard deviations (ddof 0) are over seeds. `error` is the standard error over the
    episodes of the last evaluation. `success` has Wilson's 95 % interval. Unknown values are None.
    """
    key, rows = key_of(seeds), list[dict[str, Any]]()
    published = published_scores(seeds) if key == "score" else {}
    for label, group in groups(seeds).items():
        result = summarize(group, key)
        done = [seed.outcome for seed in result.seeds if seed.outcome is not None]
        if not done:
            continue
        costs = [float(np.mean(o.costs)) for o in done if o.costs]
        reference = published.get(label.partition(" ")[0])
        share, low, high = result.success or (None, None, None)
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"task": seeds[0].task, "algorithm": label, "seeds": len(done)}
        row |= mean_and_std("score", [o.score for o in done])
        row |= mean_and_std("return", [o.mean_return for o in done])
        row |= mean_and_std("last_five", result.last_five)
        row |= {"error": result.error, "critic_convergence": result.critic_convergence}
        row |= {"success": share, "success_low": low, "success_high": high}
        row |= {"cost": float(np.mean(costs)) if costs else None}
        row |= {"episodes": min(len(o.returns or ()) for o in done)}
        row |= {"updates": max(o.updates for o in done)}
        row |= {"env_steps": max(o.num_env_steps for o in done)}
        row |= {"seconds": sum(o.seconds / o.seeds_stacked for o in done)}
        if reference is not None:
            row |= {f"published_{k}": v for k, v in reference._asdict().items() if k != "score"}
            row["published"] = reference.score
        rows.append(row)
    rows.sort(key=lambda row: -_sort_value(row[key]))
    for name, (score, mean) in behavior(seeds).items():
        row = dict.fromkeys(COLUMNS)
        row |= {"task": seeds[0].task, "algorithm": BEHAVIOR, "data": name}
        rows.append(row | {"score": score, "return": mean})
    return rows


def mean_and_std(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the mean and the standard deviation of the values that are not None."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return {name: None, f"{name}_std": None}
    return {name: float(np.mean(numbers)), f"{name}_std": float(np.std(numbers))}


def _sort_value(value: float | None) -> float:
    return -math.inf if value is None else value


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Return the rows as a CSV table with a header; an unknown number is an empty cell."""
    text = io.StringIO()
    sheet = csv.DictWriter(text, columns, lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(rows)
    return text.getvalue()


def as_latex(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a LaTeX tabular (booktabs) with a row for each task and a column for each algorithm.

    Cells are scores, or returns if a task has no scores. The highest mean of a row is bold. It may
    belong to the behavior policy.
    """
    tasks = dict.fromkeys(row["task"] for row in rows)
    names = [row["algorithm"] for row in rows]
    heads = ["task", *sorted(dict.fromkeys(names), key=lambda name: name != BEHAVIOR)]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escaped, heads)) + r" \\", r"\midrule"]
    for task in tasks:
        of_task = [row for row in rows if row["task"] == task]
        key = "score" if any(row["score"] is not None for row in of_task) else "return"
        shown = {row["algorithm"]: row for row in reversed(of_task)}
        best = max((_sort_value(row[key]) for row in shown.values()), default=None)
        cells = {name: latex_cell(row, key, best) for name, row in shown.items()}
        lines.append(" & ".join([escaped(task), *(cells.get(h, "") for h in heads[1:])]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_cell(row: Mapping[str, Any], key: str, best: float | None) -> str:
    """Return the mean and the standard deviation in math mode; "" for an unknown value."""
    if row[key] is None:
        return ""
    mean = f"{row[key]:.1f}"
    mean = rf"\mathbf{{{mean}}}" if row[key] == best else mean
    several = row["seeds"] and row["seeds"] > 1
    return rf"${mean} \pm {row[f'{key}_std']:.1f}$" if several else f"${mean}$"


def escaped(text: str) -> str:
    """Return `text` with LaTeX's special characters escaped."""
    return re.sub(r"[\\_%&#${}~^|<>]", lambda match: LATEX[match[0]], text)

"""Compare fitted dynamics models with the published ones by their error on holdout rows.

    offline-rl train algorithm=mopo task=neorl2/DMSD seeds=[7] num_updates=0 out=<folder>
    python -m benchmarks.holdout_errors runs=<folder>

The first command only fits the model. The second writes benchmarks/results/neorl2/dynamics.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.figures import run_command
from offline_rl.reporting.published import rows_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from offline_rl.utils.options import Checked, build, parse_options
from offline_rl.utils.text import table, wrap_text

FILE = Path("benchmarks/results/neorl2/dynamics.md")
HEADER = ["task", "seed", "error", "published", "variance", "epochs", "limit", "rows", "seconds"]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    runs: str  # folder of the runs


def fits(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the task, seed, config and report of each model that a run below `folder` fitted."""
    for path in sorted(folder.rglob("seed_*/result.json")):
        result, config = (
            json.loads(file.read_text()) for file in (path, path.with_name("config.json"))
        )
        report = result.get("dynamics") or {}
        if "epochs" not in report or result.get("updates"):
            continue  # a sparse model, or a run that used a model of another run
        yield {"task": config["task"], "seed": result["seed"], "config": config} | report


def row(fit: dict[str, Any], published: dict[str, str]) -> list[str]:
    """Return a row of the table; errors are means over outputs."""
    error, variance = (mean(fit[key].values()) for key in ("holdout_error", "variance"))
    limit = fit["config"]["hyper"]["dynamics_epochs"]
    return [
        fit["task"].removeprefix("neorl2/"),
        str(fit["seed"]),
        f"{error:.3g}",
        published.get(fit["task"], ""),
        f"{variance:.3g}",
        str(fit["epochs"]),
        str(limit) if fit["epochs"] >= limit else "",
        f"{fit['training_rows']:,}",
        f"{fit['seconds']:,.0f}",
    ]


def page(folder: Path) -> str:
    """Return the page of results. Raises UserError if there are no fits."""
    found = list(fits(folder))
    if not found:
        raise UserError(f"{folder} has no run that fitted an ensemble. Use num_updates=0.")
    published = {r["task"]: r["holdout_error"] for r in rows_of("neorl2_dynamics.csv")}
    text = (
        "Error: the squared error of the mean prediction on holdout rows, in raw units, averaged "
        "over outputs (the change of each observation, and the reward) and elites. "
        "Variance: that of the targets, the error of a constant prediction. Published: the least "
        "error of a grid of 8 settings, without a limit of epochs (polixir/NeoRL2:benchmark). "
        "Limit: the limit of epochs, where it ended the fit. Commands: see "
        "`benchmarks/holdout_errors.py`."
    )
    body = [row(fit, published) for fit in found]
    title = "# Holdout errors of dynamics models"
    return "\n\n".join([title, wrap_text(text), table(HEADER, body, markdown=True)]) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write the page and print it."""
    text = page(Path(build(Options, parse_options(arguments)).runs))
    write_text(FILE, text)
    print(text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

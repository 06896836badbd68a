"""Compare scores in bf16 with scores in float32, for the same seeds, on two tasks per algorithm.

    python -m benchmarks.parity [algorithms=[bc,td3_bc,iql,cql]] [tasks=neorl2/DMSD]

Each cell has five stacked seeds. bf16 passes if the 95 % interval of the difference of mean scores
(Welch) is above -3 points on every task, so runs with too much noise do not pass. The runs are
short: they cannot show effects that appear later or with much larger values. Runs resume. Stored
cells are not run again, and the page is made from the stored results.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.figures import Names, check_names, convergence_cell, run_command
from envs import cards
from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.options import build, parse_options
from offline_rl.utils.text import format_mean_std, table, wrap_text

FOLDER = Path("benchmarks/results/parity")
SEEDS = [0, 1, 2, 3, 4]
MARGIN = 3.0  # maximum loss by bf16, in points of normalized score
UPDATES = {"bc": 20_000, "td3_bc": 30_000, "iql": 15_000, "cql": 2_500}
# ten times the usual update rate of target networks, so that critics converge in these short runs
CHANGED = {name: {"tau": 0.05} for name in ("xql", "awac", "f_dvl")}
UPDATES |= dict.fromkeys(CHANGED, 6_000)
NOTE = (
    "Scores of the same {seeds} seeds in float32 and in bf16. A seed's score is the mean of its "
    "last three evaluations, with 20 episodes each; the table has the mean ± standard deviation "
    "over seeds. `convergence`: critic convergence; below 90 % a row is unfinished and does not "
    "show later effects. `95 %`: Welch's interval of the difference. bf16 passes if this interval "
    "is above -{margin:g} on every task."
)
ROUNDED = (
    "Before commit 74fd8bc the outputs of networks were rounded to bf16 too. Since then output "
    "layers stay in float32, so rows of earlier commits do not show the current rounding."
)
HEADER = ["algorithm", "task", "updates", "tau", "convergence", "float32", "bf16", "difference"]
HEADER += ["95 %", "commit"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    algorithms: Names = tuple(UPDATES)
    tasks: Names = ("neorl2/DMSD", "gym/hopper-medium-replay")


def scores(algorithm: str, task: str, precision: str) -> list[float]:
    """Return each seed's mean over the last three evaluations, because one is too noisy."""
    updates, changed = UPDATES[algorithm], CHANGED.get(algorithm, {})
    cfg, _ = algorithm_config(algorithm, task, changed)
    result = train(
        algorithm=algorithm,
        task=task,
        seeds=SEEDS,
        num_updates=updates,
        pretrain_updates=updates // 25 if getattr(cfg, "bc_updates", 0) else None,
        eval_every=updates // 10,
        eval_episodes=20,
        checkpoint_every=updates // 10,
        precision=precision,
        out="runs/parity",
        name=precision,
        **{f"algorithm.{key}": value for key, value in changed.items()},
    )
    means = []
    for seed in SEEDS:
        lines = (result.path / f"seed_{seed}" / "evaluations.jsonl").read_text().splitlines()
        last = [json.loads(line)["eval/score"] for line in lines[-3:]]
        means.append(statistics.mean(last))
    return means


def compare(fp32: list[float], bf16: list[float]) -> dict[str, Any]:
    """Return both scores, and the Welch interval of the difference bf16 - fp32."""
    low, high = stats.ttest_ind(bf16, fp32, equal_var=False).confidence_interval()
    return {
        "fp32": [round(x, 2) for x in fp32],
        "bf16": [round(x, 2) for x in bf16],
        "difference": round(statistics.mean(bf16) - statistics.mean(fp32), 2),
        "interval": [round(float(low), 2), round(float(high), 2)],
        "passed": bool(low > -MARGIN),
    }


def page() -> str:
    """Return the page of all stored results, sorted by decreasing number of updates."""
    body = []
    stored = [(path.stem, json.loads(path.read_text())) for path in FOLDER.glob("*.json")]
    for algorithm, result in sorted(stored, key=lambda each: (-each[1]["updates"], each[0])):
        for task, cell in result["tasks"].items():
            hyper = vars(algorithm_config(algorithm, task, result.get("changed", {}))[0])
            both, updates = (cell["fp32"], cell["bf16"]), result["updates"]
            comparison = compare(*both)
            tau = f"{hyper['tau']:g}" if "tau" in hyper else ""
            cells = [algorithm, task, f"{updates:,}", tau, convergence_cell(hyper, updates)]
            cells += [*(format_mean_std(x, 1) for x in both), f"{comparison['difference']:.1f}"]
            cells += ["[{:.1f}, {:.1f}]".format(*comparison["interval"])]
            body.append([*cells, result["machine"]["commit"][:7]])
    origin = "*Made by `python -m benchmarks.parity` from the files in this folder, not by hand.*"
    notes = [wrap_text(NOTE.format(seeds=len(SEEDS), margin=MARGIN)), wrap_text(ROUNDED)]
    parts = ["# bf16 and float32", origin, *notes, table(HEADER, body, left=2, markdown=True)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    tasks = check_names(options.tasks, "task", cards())
    for algorithm in check_names(options.algorithms, "algorithm", UPDATES):
        path = FOLDER / f"{algorithm}.json"
        done = json.loads(path.read_text())["tasks"] if path.is_file() else {}
        for task in tasks:
            if task not in done:
                pair = [scores(algorithm, task, precision) for precision in ("fp32", "bf16")]
                done[task] = compare(*pair)
                result = {
                    "command": "python -m benchmarks.parity " + " ".join(arguments),
                    "updates": UPDATES[algorithm],
                    "changed": CHANGED.get(algorithm, {}),
                    "machine": hardware.describe_machine(),
                    "tasks": done,
                    "passed": all(t["passed"] for t in done.values()),
                }
                make_folder(FOLDER)
                path.write_text(json.dumps(result, indent=1) + "\n")
            write_text(FOLDER / "README.md", page())
            print(algorithm, task, done[task], flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

"""Do scores hold in bf16? The same seeds in float32 and in bf16, on two tasks for each algorithm.

    python -m benchmarks.parity [algorithms=[bc,td3_bc,iql,cql]] [tasks=neorl2/DMSD]

Five stacked seeds a cell. bf16 passes where the 95 % interval of the difference of mean scores
(Welch) lies above -3 points on every task, so that runs too noisy to tell do not pass. The runs are
short: what shows later, or where values are much larger than here, they cannot see. Runs resume,
cells that are kept are not run again, and the page is made of what is kept.
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

from benchmarks.figures import Names, chosen, formed, status
from envs import cards
from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.options import build, parse
from offline_rl.utils.text import mean_std, table, wrapped

FOLDER = Path("benchmarks/results/parity")
SEEDS = [0, 1, 2, 3, 4]
MARGIN = 3.0  # points of normalized score that bf16 may cost at the most
UPDATES = {"bc": 20_000, "td3_bc": 30_000, "iql": 15_000, "cql": 2_500}
# targets ten times as fast, so that values have formed by then
CHANGED = {name: {"tau": 0.05} for name in ("xql", "awac", "f_dvl")}
UPDATES |= dict.fromkeys(CHANGED, 6_000)
NOTE = (
    "The same {seeds} seeds in float32 and in bf16: mean ± standard deviation over seeds of each "
    "seed's mean score over its last three evaluations, of 20 episodes each. `formed`: how far "
    "values had come; below 90 % a row is unfinished, and says nothing of what shows later. 95 %: "
    "Welch's interval of the difference; bf16 passes where it lies above -{margin:g} on every task."
)
ROUNDED = (
    "Before commit 74fd8bc what networks answer was rounded to bf16 too; since then output layers "
    "stay in float32. Rows of earlier commits do not show what is rounded now."
)
HEADER = ["algorithm", "task", "updates", "tau", "formed", "float32", "bf16", "difference", "95 %"]
HEADER += ["commit"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    algorithms: Names = tuple(UPDATES)
    tasks: Names = ("neorl2/DMSD", "gym/hopper-medium-replay")


def scores(algorithm: str, task: str, precision: str) -> list[float]:
    """Each seed's mean over its last three evaluations: one alone is too noisy."""
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
    found = []
    for seed in SEEDS:
        lines = (result.path / f"seed_{seed}" / "evaluations.jsonl").read_text().splitlines()
        last = [json.loads(line)["eval/score"] for line in lines[-3:]]
        found.append(statistics.mean(last))
    return found


def compare(fp32: list[float], bf16: list[float]) -> dict[str, Any]:
    """Welch's interval of the difference bf16 - fp32."""
    low, high = stats.ttest_ind(bf16, fp32, equal_var=False).confidence_interval()
    return {
        "fp32": [round(x, 2) for x in fp32],
        "bf16": [round(x, 2) for x in bf16],
        "difference": round(statistics.mean(bf16) - statistics.mean(fp32), 2),
        "interval": [round(float(low), 2), round(float(high), 2)],
        "passed": bool(low > -MARGIN),
    }


def page() -> str:
    """All kept results, those of most updates first."""
    body = []
    kept = [(path.stem, json.loads(path.read_text())) for path in FOLDER.glob("*.json")]
    for algorithm, found in sorted(kept, key=lambda each: (-each[1]["updates"], each[0])):
        for task, cell in found["tasks"].items():
            hyper = vars(algorithm_config(algorithm, task, found.get("changed", {}))[0])
            both, updates = (cell["fp32"], cell["bf16"]), found["updates"]
            told = compare(*both)
            tau = f"{hyper['tau']:g}" if "tau" in hyper else ""
            cells = [algorithm, task, f"{updates:,}", tau, formed(hyper, updates)]
            cells += [*(mean_std(x, 1) for x in both), f"{told['difference']:.1f}"]
            cells += ["[{:.1f}, {:.1f}]".format(*told["interval"])]
            body.append([*cells, found["machine"]["commit"][:7]])
    made = "*Made by `python -m benchmarks.parity` from the files beside it, not by hand.*"
    notes = [wrapped(NOTE.format(seeds=len(SEEDS), margin=MARGIN)), wrapped(ROUNDED)]
    parts = ["# bf16 beside float32", made, *notes, table(HEADER, body, left=2, markdown=True)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Raises UserError."""
    options = build(Options, parse(arguments))
    tasks = chosen(options.tasks, "task", cards())
    for algorithm in chosen(options.algorithms, "algorithm", UPDATES):
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
                    "machine": hardware.description(),
                    "tasks": done,
                    "passed": all(t["passed"] for t in done.values()),
                }
                make_folder(FOLDER)
                path.write_text(json.dumps(result, indent=1) + "\n")
            write_text(FOLDER / "README.md", page())
            print(algorithm, task, done[task], flush=True)


if __name__ == "__main__":
    sys.exit(status(main, sys.argv[1:]))

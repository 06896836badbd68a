"""Do scores hold in bf16? The same seeds in float32 and in bf16, on two tasks for each algorithm.

    python -m benchmarks.parity [algorithms=bc,td3_bc,iql,cql] [tasks=neorl2/DMSD]

Five stacked seeds a cell. bf16 passes where the 95 % interval of the difference of mean scores
(Welch) lies above -3 points on every task, so that runs too noisy to tell do not pass. The runs are
short: what shows later, or where values are much larger than here, they cannot see. Runs resume.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from scipy import stats

from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.training.train import train
from offline_rl.utils import hardware

SEEDS = [0, 1, 2, 3, 4]
MARGIN = 3.0  # points of normalised score that bf16 may cost at the most
UPDATES = {"bc": 20_000, "td3_bc": 30_000, "iql": 15_000, "cql": 2_500}


def scores(algorithm: str, task: str, precision: str) -> list[float]:
    """Each seed's mean over its last three evaluations: one alone is too noisy."""
    updates, (cfg, _) = UPDATES[algorithm], algorithm_config(algorithm, task, {})
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


def main(arguments: list[str]) -> None:
    options = {"algorithms": "bc,td3_bc,iql,cql", "tasks": "neorl2/DMSD,gym/hopper-medium-replay"}
    options |= dict(argument.split("=", 1) for argument in arguments)
    for algorithm in options["algorithms"].split(","):
        path = Path("benchmarks/results/parity") / f"{algorithm}.json"
        done = json.loads(path.read_text())["tasks"] if path.is_file() else {}
        for task in options["tasks"].split(","):
            if task not in done:
                pair = [scores(algorithm, task, precision) for precision in ("fp32", "bf16")]
                done[task] = compare(*pair)
                result = {
                    "command": "python -m benchmarks.parity " + " ".join(arguments),
                    "updates": UPDATES[algorithm],
                    "machine": hardware.description(),
                    "tasks": done,
                    "passed": all(t["passed"] for t in done.values()),
                }
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(result, indent=1) + "\n")
            print(algorithm, task, done[task], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

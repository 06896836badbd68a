"""Compare final scores with d3rlpy's: same data, hyperparameters, updates and episodes.

    pip install d3rlpy; python -m benchmarks.d3rlpy_scores [algorithms=[td3_bc,iql,cql]] [task=…]

d3rlpy trains on our normalized observations, and its policies are evaluated in our environments.
Results are stored after each algorithm and seed. The same command resumes, and rewrites the page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
from benchmarks.figures import Names, check_names, convergence_cell, run_command
from benchmarks.parity import compare
from benchmarks.speed.peers import d3rlpy_learner
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import load
from offline_rl.data.transform import Transform
from offline_rl.evaluation.rollout import rollout
from offline_rl.reporting.statistics import MIN_CONVERGENCE
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.options import build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import table

FILE = Path("benchmarks/results/d3rlpy.json")
UPDATES, EPISODES = 20_000, 100
SEEDS = {"td3_bc": 5, "iql": 5, "cql": 3}
OURS: dict[str, dict[str, Any]] = {  # our settings; all others have d3rlpy's default
    "td3_bc": {"normalize_observations": True, "alpha": 2.5, "policy_noise": 0.2},
    "iql": {"normalize_observations": True, "expectile": 0.7, "beta": 3.0},
    "cql": {
        "normalize_observations": True,
        "weight": 5.0,
        "gap": None,
        "gap_after_weight": False,
        "variant": "H",
        "policy_lr": 1e-4,
        "bc_updates": 0,
        "backup_entropy": False,
    },
}
THEIRS: dict[str, dict[str, Any]] = {
    "td3_bc": {"alpha": 2.5},
    "iql": {"expectile": 0.7, "weight_temp": 3.0},
    "cql": {"conservative_weight": 5.0, "alpha_learning_rate": 0.0},  # no Lagrangian
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    algorithms: Names = tuple(SEEDS)
    task: str = "neorl2/DMSD"


def run_d3rlpy(algorithm: str, task_name: str, seed: int) -> float:
    """Train with d3rlpy and return the mean normalized score of its policy."""
    import d3rlpy  # type: ignore[import-not-found]

    task = envs.task(task_name)
    dataset = load(task, None)
    cfg = build(algorithm_class(algorithm).Config, OURS[algorithm])
    transform = Transform.fit(cfg, dataset, dataset.observations.shape[1:])
    data = transform.apply(dataset)
    columns = (data.observations[: data.num_rows], data.actions, data.rewards)
    columns += (data.terminated, data.truncated)
    d3rlpy.seed(seed)
    learner, fit = d3rlpy_learner(algorithm, "cpu", columns, **THEIRS[algorithm])
    fit(UPDATES)
    env = envs.make_vector(task, EPISODES)
    starts = EVALUATION_SEED + np.arange(EPISODES)
    act = lambda x: learner.predict(x.astype(np.float32)).clip(-1, 1)  # noqa: E731
    returns = rollout(env, act, transform.normalizer, starts).returns
    env.close()
    return float(np.mean(task.score(returns)))


def run_ours(algorithm: str, task: str) -> list[float]:
    result = train(
        algorithm=algorithm,
        task=task,
        seeds=SEEDS[algorithm],
        num_updates=UPDATES,
        eval_every=UPDATES,
        eval_episodes=EPISODES,
        checkpoint_every=UPDATES // 10,
        out="runs/d3rlpy",
        **{f"algorithm.{k}": v for k, v in OURS[algorithm].items()},
    )
    return result.scores


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    algorithms, task = check_names(options.algorithms, "algorithm", SEEDS), options.task
    done = json.loads(FILE.read_text()) if FILE.is_file() else {"tasks": {}}
    for algorithm in algorithms:
        cell = done["tasks"].setdefault(task, {}).setdefault(algorithm, {"d3rlpy": []})
        if "ours" not in cell:
            cell["ours"] = run_ours(algorithm, task)
            write(done)
        for seed in range(len(cell["d3rlpy"]), SEEDS[algorithm]):
            cell["d3rlpy"].append(run_d3rlpy(algorithm, task, seed))
            print(algorithm, task, cell, flush=True)
            write(done)
    FILE.with_suffix(".md").write_text(page(done))
    print(page(done))


def write(done: dict[str, Any]) -> None:
    """Write the results."""
    done |= {"command": "python -m benchmarks.d3rlpy_scores", "updates": UPDATES}
    done |= {"episodes": EPISODES, "machine": hardware.describe_machine(), "settings": OURS}
    FILE.write_text(json.dumps(done, indent=1) + "\n")


def page(done: Mapping[str, Any]) -> str:
    """Return the page: the table of scores, with Welch's interval of the difference."""
    header, body = ["task", "algorithm", "seeds", "d3rlpy", "ours", "difference", "95 %"], []
    for task, algorithms in done["tasks"].items():
        for name, cell in algorithms.items():
            both = [cell["d3rlpy"], cell["ours"]]
            if min(map(len, both)) < SEEDS[name]:
                continue
            comparison = compare(*both)
            spread = [f"{statistics.mean(x):.1f} ± {statistics.stdev(x):.1f}" for x in both]
            interval = "[{:.1f}, {:.1f}]".format(*comparison["interval"])
            hyper = vars(build(algorithm_class(name).Config, done["settings"][name]))
            cells = [task, name, str(len(both[0])), *spread, f"{comparison['difference']:.1f}"]
            body.append([*cells, interval, convergence_cell(hyper, done["updates"])])
    text = table([*header, "convergence"], body, markdown=True)
    page = f"# Final scores of d3rlpy and of this project\n\n`{done['command']}`\n\n{text}\n\n"
    page += f"Normalized scores of the last policy after {done['updates']:,} updates, from "
    page += f"{done['episodes']} episodes: mean ± standard deviation over seeds (ddof 1). "
    page += "`difference`: ours - d3rlpy's, with Welch's interval. `convergence`: critic "
    page += f"convergence, the same for both. Below {100 * MIN_CONVERGENCE:.0f} % a row is "
    page += "unfinished: it compares scores after equal updates, not the final performance of the "
    return page + "methods.\n"


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

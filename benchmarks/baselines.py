"""What any policy must beat: the data, its best tenth of episodes, and actions that never change.

    python -m benchmarks.baselines task=neorl2/DMSD [dataset=<file>] [starts=32] [generations=8]

`behavior` is the mean over the data's episodes, `best_tenth` over the tenth of them with the
highest returns. `mean_action` plays the data's mean action whatever it sees, `best_constant` the
best such action that a search in the simulator finds: `generations` of the cross-entropy method,
each of 32 actions played from the same `starts` starts, none of which are those of evaluations.
Simglucose has 15 patients and 24 hours to start at, each as likely: there both constants, and those
of `also=[-0.996]`, are played from all 360 starts, so that their scores are exact.

Also kept is what the data's states are worth by the data's own rewards, for comparison with what an
algorithm has learned. Results go to benchmarks/results/baselines.json, a task at a time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import envs
from benchmarks.figures import run_command
from envs import Task
from offline_rl.data import Dataset, load
from offline_rl.data.load import data_folder
from offline_rl.data.transform import range_of_returns
from offline_rl.evaluation.rollout import rollout
from offline_rl.reporting.compact import short
from offline_rl.reporting.statistics import evaluation_error
from offline_rl.utils import hardware
from offline_rl.utils.files import write_json
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from policies.channels import identity

RESULTS = Path("benchmarks/results/baselines.json")
EPISODES = 100
SEARCH_SEED = 2_000_000_000  # the search's starts, beyond all of utils/seeds.py
POPULATION, ELITE = 32, 8
DISCOUNT = 0.99
Play = Callable[[np.ndarray], np.ndarray]  # constant actions [K, A] -> their returns [K, starts]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes."""

    task: str
    dataset: str | None = None  # a file of the data folder; otherwise the task's
    starts: Count = 32  # of each action that is searched
    generations: Count = 8
    also: tuple[float, ...] = ()  # constants to play beside the mean action, in each dimension


def player(task: Task, seeds: list[int]) -> Play:
    """Plays constant actions, each from all `seeds`."""

    def play(actions: np.ndarray) -> np.ndarray:
        env = envs.make_vector(task, len(actions) * len(seeds))
        held = actions.repeat(len(seeds), 0)  # [K * starts, A]
        starts = np.tile(seeds, len(actions))
        as_is = identity(env.observation_shape)
        returns = rollout(env, lambda observations: held, as_is, starts).returns
        env.close()
        return returns.reshape(len(actions), len(seeds))

    return play


def search(play: Play, known: np.ndarray, generations: int) -> np.ndarray:
    """The action [A] of the highest mean return: of `known` [K, A], or the search's own."""
    rng, dim = np.random.default_rng(0), known.shape[1]
    drawn = np.concatenate([known, rng.uniform(-1, 1, (POPULATION - len(known), dim))])
    best, top = known[0], -np.inf
    for _ in range(generations):
        returns = play(drawn).mean(1)
        order = np.argsort(-returns, kind="stable")
        if returns[order[0]] > top:
            best, top = drawn[order[0]], returns[order[0]]
        elite = drawn[order[:ELITE]]
        deviation = elite.std(0) + 1e-4
        drawn = rng.normal(elite.mean(0), deviation, (POPULATION, dim)).clip(-1, 1)
    return best


def of_data(task: Task, data: Dataset) -> dict[str, Any]:
    """The rows that no simulator is needed for."""
    returns = np.sort(data.episode_returns())
    best = returns[-max(1, len(returns) // 10) :]
    return {name: row(task, r[None]) for name, r in (("behavior", returns), ("best_tenth", best))}


def row(task: Task, returns: np.ndarray, exact: bool = False) -> dict[str, Any]:
    """Mean and standard error over the episodes, returns [1, episodes]."""
    mean, error = float(returns.mean()), 0.0 if exact else evaluation_error(returns)
    found: dict[str, Any] = {"return": mean, "error": error, "episodes": returns.size}
    if task.reference is not None:
        found["score"] = float(task.score(mean))
        found["score_error"] = error and error * 100 / (task.reference.max - task.reference.min)
    return found | ({"exact": True} if exact else {})


def values(data: Dataset) -> dict[str, float]:
    """Means over the data's rows of the discounted rewards to come, and of their weights.

    Rewards of r + 1 are worth `weight` more. An episode that was cut goes on for ever at the mean
    reward of its last tenth.
    """
    ends = data.episode_ends
    tenths = np.maximum(1, data.episode_lengths() // 10)
    last = [data.rewards[e + 1 - n : e + 1].mean() for e, n in zip(ends, tenths, strict=True)]
    tail = np.asarray(last, np.float64) / (1 - DISCOUNT)
    ones = replace(data, rewards=np.ones_like(data.rewards))
    weights = ones.monte_carlo_returns(DISCOUNT, np.full(len(ends), 1 / (1 - DISCOUNT)))
    found = {"discount": DISCOUNT, "range_of_returns": range_of_returns(data)}
    found["value"] = float(data.monte_carlo_returns(DISCOUNT, tail).mean(dtype=np.float64))
    return found | {"weight": float(weights.mean(dtype=np.float64))}


def main(arguments: Sequence[str]) -> None:
    """Raises UserError."""
    options = build(Options, parse_options(arguments))
    task, number = envs.task(options.task), options.starts
    data = load(data_folder() / options.dataset if options.dataset else task)
    exact = envs.make_vector(task, 1).every_start(EVALUATION_SEED)
    searched = exact[:: len(exact) // number] if exact else range(SEARCH_SEED, SEARCH_SEED + number)
    chosen = exact or range(EVALUATION_SEED, EVALUATION_SEED + EPISODES)

    mean = data.actions.mean(0, dtype=np.float64)
    constants = {"mean_action": mean}
    for x in options.also:
        constants[f"constant_{x:g}"] = np.full(len(mean), x)
    known = np.stack(list(constants.values()))
    best = search(player(task, list(searched)), known, options.generations)
    constants["best_constant"] = best
    rows, play = of_data(task, data), player(task, list(chosen))
    for name, action in constants.items():
        found = row(task, play(action[None]), exact is not None)
        rows[name] = found | {"action": action.tolist()}
    if exact:  # some starts were left out of the search
        played = [found for found in rows.values() if "action" in found]
        rows["best_constant"] = max(played, key=lambda found: found["return"])
    done = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    done[task.name] = {
        "command": " ".join(["python -m benchmarks.baselines", *arguments]),
        "machine": hardware.describe_machine(),
        "dataset": short(str(data.path or data.name)),
        "dataset_sha256": data.sha256,
        "rows": rows,
        "values": values(data),
    }
    write_json(RESULTS, dict(sorted(done.items())))
    print(task.name, json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

"""Baselines that a policy should exceed: the data, its best episodes, and constant actions.

    python -m benchmarks.baselines task=neorl2/DMSD [dataset=<file>] [starts=32] [generations=8]

`behavior` is the mean return of the data's episodes, `best_tenth` that of the top 10 % of episodes
by return. `mean_action` always plays the data's mean action. `best_constant` plays the best
constant action found by a search in the simulator: `generations` of the cross-entropy method. Each
generation plays 32 actions from the same `starts` initial states, which evaluations do not use.
Simglucose starts with one of 15 patients at one of 24 hours, with equal probability. On Simglucose,
all constant actions (also those of `also=[-0.996]`) are played from all 360 initial states, so
their scores are exact.

The command also stores the mean discounted return of the data's states, for comparison with the
values of critics. Results are written to benchmarks/results/baselines.json, one task at a time.
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
from offline_rl.reporting.compact import portable_path
from offline_rl.reporting.statistics import evaluation_error
from offline_rl.utils import hardware
from offline_rl.utils.files import write_json
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from policies.channels import identity

RESULTS = Path("benchmarks/results/baselines.json")
EPISODES = 100
SEARCH_SEED = 2_000_000_000  # first seed of the search, above all seeds of utils/seeds.py
POPULATION, ELITE = 32, 8
DISCOUNT = 0.99
Play = Callable[[np.ndarray], np.ndarray]  # constant actions [K, A] -> their returns [K, starts]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    task: str
    dataset: str | None = None  # file in the data folder; default: the task's data
    starts: Count = 32  # initial states per action in the search
    generations: Count = 8
    also: tuple[float, ...] = ()  # further constants to play, the same in each action dimension


def player(task: Task, seeds: list[int]) -> Play:
    """Return a function that plays constant actions, each from all `seeds`."""

    def play(actions: np.ndarray) -> np.ndarray:
        env = envs.make_vector(task, len(actions) * len(seeds))
        constant = actions.repeat(len(seeds), 0)  # [K * starts, A]
        starts = np.tile(seeds, len(actions))
        no_transform = identity(env.observation_shape)
        returns = rollout(env, lambda observations: constant, no_transform, starts).returns
        env.close()
        return returns.reshape(len(actions), len(seeds))

    return play


def search(play: Play, initial: np.ndarray, generations: int) -> np.ndarray:
    """Return the constant action [A] with the highest mean return, by the cross-entropy method.

    initial: [K, A], actions in the first generation.
    """
    rng, dim = np.random.default_rng(0), initial.shape[1]
    actions = np.concatenate([initial, rng.uniform(-1, 1, (POPULATION - len(initial), dim))])
    best, top = initial[0], -np.inf
    for _ in range(generations):
        returns = play(actions).mean(1)
        order = np.argsort(-returns, kind="stable")
        if returns[order[0]] > top:
            best, top = actions[order[0]], returns[order[0]]
        elite = actions[order[:ELITE]]
        std = elite.std(0) + 1e-4
        actions = rng.normal(elite.mean(0), std, (POPULATION, dim)).clip(-1, 1)
    return best


def data_rows(task: Task, data: Dataset) -> dict[str, Any]:
    """Return the rows that do not need a simulator."""
    returns = np.sort(data.episode_returns())
    best = returns[-max(1, len(returns) // 10) :]
    return {name: row(task, r[None]) for name, r in (("behavior", returns), ("best_tenth", best))}


def row(task: Task, returns: np.ndarray, exact: bool = False) -> dict[str, Any]:
    """Return mean and standard error over the episodes; returns: [1, episodes]."""
    mean, error = float(returns.mean()), 0.0 if exact else evaluation_error(returns)
    result: dict[str, Any] = {"return": mean, "error": error, "episodes": returns.size}
    if task.reference is not None:
        result["score"] = float(task.score(mean))
        result["score_error"] = error and error * 100 / (task.reference.max - task.reference.min)
    return result | ({"exact": True} if exact else {})


def data_values(data: Dataset) -> dict[str, float]:
    """Return means over rows: discounted return (`value`) and sum of discounts (`weight`).

    Adding 1 to all rewards increases the return by `weight`. A truncated episode is continued
    forever at the mean reward of its last tenth.
    """
    ends = data.episode_ends
    tenths = np.maximum(1, data.episode_lengths() // 10)
    last = [data.rewards[e + 1 - n : e + 1].mean() for e, n in zip(ends, tenths, strict=True)]
    tail = np.asarray(last, np.float64) / (1 - DISCOUNT)
    ones = replace(data, rewards=np.ones_like(data.rewards))
    weights = ones.monte_carlo_returns(DISCOUNT, np.full(len(ends), 1 / (1 - DISCOUNT)))
    result = {"discount": DISCOUNT, "range_of_returns": range_of_returns(data)}
    result["value"] = float(data.monte_carlo_returns(DISCOUNT, tail).mean(dtype=np.float64))
    return result | {"weight": float(weights.mean(dtype=np.float64))}


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    task, number = envs.task(options.task), options.starts
    data = load(data_folder() / options.dataset if options.dataset else task)
    exact = envs.make_vector(task, 1).every_start(EVALUATION_SEED)
    searched = exact[:: len(exact) // number] if exact else range(SEARCH_SEED, SEARCH_SEED + number)
    evaluated = exact or range(EVALUATION_SEED, EVALUATION_SEED + EPISODES)

    mean = data.actions.mean(0, dtype=np.float64)
    constants = {"mean_action": mean}
    for x in options.also:
        constants[f"constant_{x:g}"] = np.full(len(mean), x)
    initial = np.stack(list(constants.values()))
    best = search(player(task, list(searched)), initial, options.generations)
    constants["best_constant"] = best
    rows, play = data_rows(task, data), player(task, list(evaluated))
    for name, action in constants.items():
        result = row(task, play(action[None]), exact is not None)
        rows[name] = result | {"action": action.tolist()}
    if exact:  # the search did not use all initial states
        played = [result for result in rows.values() if "action" in result]
        rows["best_constant"] = max(played, key=lambda result: result["return"])
    done = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    done[task.name] = {
        "command": " ".join(["python -m benchmarks.baselines", *arguments]),
        "machine": hardware.describe_machine(),
        "dataset": portable_path(str(data.path or data.name)),
        "dataset_sha256": data.sha256,
        "rows": rows,
        "values": data_values(data),
    }
    write_json(RESULTS, dict(sorted(done.items())))
    print(task.name, json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

"""Recording of data sets: episodes of an actor in parallel environments, written to files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import envs
from offline_rl.data import Dataset
from offline_rl.data.specs import spec_of
from offline_rl.data.writers.d4rl import Following, write
from offline_rl.data.writers.lerobot import write_lerobot
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_json_object, write_json
from offline_rl.utils.options import format_value
from offline_rl.utils.trees import flatten
from policies import channels
from policies.channels import Observations

BATCH = 50  # parallel episodes
Act = Callable[[Observations, np.ndarray], np.ndarray]  # see record_episodes


def record(
    task: str,
    rows: int,
    first_seed: int,
    actor: Callable[[envs.VectorEnv, int], Act],
    *,
    whole_episodes: bool = False,
) -> Dataset:
    """Record `rows` rows of episodes. Episode k has the seed first_seed + k.

    actor: (environments, seed of the first episode) -> the actor for one batch of episodes.
    whole_episodes: complete the last episode instead of cutting it at `rows`.
    """
    parts, seed, done = list[dict[str, Any]](), first_seed, 0
    with closing(envs.make_vector(task, BATCH, num_threads=hardware.num_cores())) as env:
        while done < rows:
            batch = record_episodes(env, actor(env, seed), seed)
            parts += batch
            seed += BATCH
            done += sum(len(episode["rewards"]) for episode in batch)
    ends = np.cumsum([len(episode["rewards"]) for episode in parts])
    rows = int(ends[np.searchsorted(ends, rows)]) if whole_episodes else rows
    joined = {k: channels.concatenate([e[k] for e in parts]) for k in parts[0]}
    columns = {k: channels.take(values, slice(rows)) for k, values in joined.items()}
    extras = {"costs": columns.pop("costs")} if "costs" in columns else {}
    return Dataset.from_arrays(**columns, extras=extras, spec=spec_of(env))


def record_episodes(env: envs.VectorEnv, act: Act, first_seed: int) -> list[dict[str, Any]]:
    """Record one episode in each environment and return it as a dict of columns.

    Environment k has the seed first_seed + k. act: (observations [B, O], indices of the
    environments [B]) -> actions [B, A]. Costs are a column if the environment reports them.
    """
    observations = env.reset([first_seed + k for k in range(env.num_envs)])
    running = np.arange(env.num_envs)
    steps: list[list[tuple[Any, ...]]] = [[] for _ in running]
    while len(running):
        actions = act(channels.take(observations, running), running)
        step = env.step(actions, running)
        for j, k in enumerate(running):
            steps[k].append(
                (
                    channels.map_channels(lambda x: x[k].copy(), observations),  # noqa: B023 (called here)
                    actions[j],
                    np.float32(step.rewards[j]),
                    step.terminated[j],
                    step.truncated[j],
                    channels.take(step.observations, j),
                    *([np.float32(step.infos["cost"][j])] if "cost" in step.infos else []),
                )
            )
        channels.assign(observations, running, step.observations)
        running = running[~(step.terminated | step.truncated)]
    names = ["observations", "actions", "rewards", "terminated", "truncated", "next_observations"]
    names += ["costs"] if len(steps[0][0]) > len(names) else []
    return [dict(zip(names, map(channels.stack, zip(*e, strict=True)), strict=True)) for e in steps]


def is_stored(path: Path, card: Mapping[str, Any], show: bool) -> bool:
    """Return True if the set in `path` is complete and was generated as in `card`.

    show: print that it exists. Raises UserError if `path` is another set, or damaged.
    """
    if not path.exists():
        return False
    file = path.with_suffix(".json")
    stored = read_json_object(file) if path.is_file() and file.is_file() else {}
    old, new = flatten(stored, "."), flatten(json.loads(json.dumps(card)), ".")
    changed = next((name for name, value in new.items() if old.get(name) != value), None)
    why = ""
    if stored.get("size_bytes") != path.stat().st_size:
        why = f"is damaged, or {file.name} is missing"
    elif changed is not None:
        option, value = changed.removeprefix("recipe."), format_value(old.get(changed))
        why = f"was generated with {option}={value}, now it is {format_value(new[changed])}"
    if why:
        raise UserError(
            f"{path} already exists and {why}. Choose another folder with out=, or remove the file."
        )
    if show:
        print(f"{path} already exists")
    return True


def store(
    data: Dataset,
    path: Path,
    metadata: Mapping[str, str],
    card: Mapping[str, Any],
    task: str,
    show: bool,
) -> None:
    """Write a set in D4RL's layout, and a card: how it was generated, and what it contains.

    A set with costs has DSRL's layout, with all next observations.
    """
    following: Following = "all" if "costs" in data.extras else "final"
    path = write(data, path, next_observations=following, metadata=metadata)
    facts = summarize_set(data, path, task)
    write_json(path.with_suffix(".json"), {**card, **facts})
    if show:
        print(
            f"{path}: {facts['rows']:,} rows in {facts['episodes']:,} episodes, mean return "
            f"{facts['return_mean']:.2f}"
        )


def store_lerobot(data: Dataset, path: Path, task: str, show: bool, *, video: bool) -> None:
    """Write a set as a LeRobotDataset. Raises UserError if its control rate is unknown."""
    if data.spec is None or data.spec.rate_hz is None:
        raise UserError(
            f"{path}: LeRobot's layout needs a control rate, and the environment states none. "
            "Remove format=lerobot."
        )
    write_lerobot(data, path, fps=round(data.spec.rate_hz, 6), task=task, video=video)
    if show:
        mean = data.episode_returns().mean()
        print(
            f"{path}: {data.num_rows:,} rows in {data.num_episodes:,} episodes, mean return "
            f"{mean:.2f}"
        )


def summarize_set(data: Dataset, path: Path, task_name: str) -> dict[str, Any]:
    """Return the entries of a set's card that describe its file and content."""
    returns, task = data.episode_returns(), envs.task(task_name)
    return {
        "file": path.name,
        "sha256": checksum(path),
        "size_bytes": path.stat().st_size,
        "rows": data.num_rows,
        "episodes": len(returns),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "score_mean": float(task.score(returns).mean()) if task.reference else None,
        **summarize_costs(data, task.cost_limits),
        "made_with": hardware.describe_machine(),
    }


def summarize_costs(data: Dataset, limits: tuple[float, ...]) -> dict[str, Any]:
    """Return the entries of a set's card on the costs of its episodes; {} without costs."""
    if "costs" not in data.extras:
        return {}
    costs = np.add.reduceat(data.extras["costs"].astype(np.float64), data.episode_starts)
    return {
        "cost_mean": float(costs.mean()),
        "cost_min": float(costs.min()),
        "cost_max": float(costs.max()),
        "share_within": {f"{limit:g}": float((costs <= limit).mean()) for limit in limits},
    }

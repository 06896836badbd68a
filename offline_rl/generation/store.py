"""Episodes of any actor in many environments side by side, as a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import envs
from offline_rl.data import Dataset
from offline_rl.data.meaning import spec_of
from offline_rl.data.writers.d4rl import write
from offline_rl.data.writers.lerobot import write_lerobot
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_object, write_json
from policies import channels
from policies.channels import Observations

BATCH = 50  # episodes side by side
Act = Callable[[Observations, np.ndarray], np.ndarray]  # see record_episodes


def record(
    task: str,
    rows: int,
    first_seed: int,
    actor: Callable[[envs.VectorEnv, int], Act],
    *,
    whole_episodes: bool = False,
) -> Dataset:
    """Return `rows` rows of episodes, episode k from seed first_seed + k.

    actor: (environments, seed of their first episode) -> who acts in their next episodes.
    whole_episodes: ends with the episode that reaches `rows`, instead of cutting it there.
    """
    env = envs.make_vector(task, BATCH, num_threads=hardware.cores())
    parts, seed, done = list[dict[str, Any]](), first_seed, 0
    while done < rows:
        batch = record_episodes(env, actor(env, seed), seed)
        parts += batch
        seed += BATCH
        done += sum(len(episode["rewards"]) for episode in batch)
    ends = np.cumsum([len(episode["rewards"]) for episode in parts])
    rows = int(ends[np.searchsorted(ends, rows)]) if whole_episodes else rows
    whole = {k: channels.concatenate([e[k] for e in parts]) for k in parts[0]}
    columns = {k: channels.take(values, slice(rows)) for k, values in whole.items()}
    return Dataset.from_arrays(**columns, spec=spec_of(env))


def record_episodes(env: envs.VectorEnv, act: Act, first_seed: int) -> list[dict[str, Any]]:
    """One episode in each environment, as columns, in the order of their seeds first_seed + k.

    act: ([B, O], the environments' indices [B]) -> actions [B, A].
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
                    channels.each(lambda x: x[k].copy(), observations),  # noqa: B023 (called here)
                    actions[j],
                    np.float32(step.rewards[j]),
                    step.terminated[j],
                    step.truncated[j],
                    channels.take(step.observations, j),
                )
            )
        channels.put(observations, running, step.observations)
        running = running[~(step.terminated | step.truncated)]
    names = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")
    return [dict(zip(names, map(channels.stack, zip(*e, strict=True)), strict=True)) for e in steps]


def there(path: Path, card: Mapping[str, Any], show: bool) -> bool:
    """Whether the set is there, whole and made as `card` says; says so.

    Raises UserError where another is.
    """
    if not path.exists():
        return False
    beside = path.with_suffix(".json")
    held = read_object(beside) if path.is_file() and beside.is_file() else {}
    same = all(held.get(name) == value for name, value in json.loads(json.dumps(card)).items())
    if not held or not same or held.get("size_bytes") != path.stat().st_size:
        raise UserError(
            f"{path} is there already, made in another way; name another folder with out=, or "
            "remove it"
        )
    if show:
        print(f"{path}: there already")
    return True


def store(
    data: Dataset,
    path: Path,
    made_by: Mapping[str, str],
    card: Mapping[str, Any],
    task: str,
    show: bool,
) -> None:
    """Writes a set in D4RL's layout, and beside it its card: how it was made, what it holds."""
    path = write(data, path, next_observations="final", metadata=made_by)
    held = contents(data, path, task)
    write_json(path.with_suffix(".json"), {**card, **held})
    if show:
        print(
            f"{path}: {held['rows']:,} rows in {held['episodes']:,} episodes, mean return "
            f"{held['return_mean']:.2f}"
        )


def store_lerobot(data: Dataset, path: Path, task: str, show: bool, *, video: bool) -> None:
    """Writes a set as a LeRobotDataset. Raises UserError where nothing says its rate."""
    if data.spec is None or data.spec.rate_hz is None:
        raise UserError(f"{path}: its environment has no rate, which LeRobot's layout needs")
    write_lerobot(data, path, fps=round(data.spec.rate_hz, 6), task=task, video=video)
    if show:
        mean = data.episode_returns().mean()
        print(
            f"{path}: {data.num_rows:,} rows in {data.num_episodes:,} episodes, mean return "
            f"{mean:.2f}"
        )


def contents(data: Dataset, path: Path, task_name: str) -> dict[str, Any]:
    """What a made file holds, for its card."""
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
        "made_with": hardware.description(),
    }

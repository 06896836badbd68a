"""Scores: whole episodes of deterministic policies, all seeds and episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

import envs
from envs import Task, VectorEnv
from envs.adapters import SUCCESS
from envs.faults import numbers
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import channels
from policies.channels import Observations

Act = Callable[[Observations], np.ndarray]  # normalized observations [B, *obs] -> actions [B, A]


class Episodes(NamedTuple):
    """What B episodes came to."""

    returns: np.ndarray  # [B] float64, undiscounted raw rewards
    lengths: np.ndarray  # [B] int
    success: np.ndarray | None  # [B] bool, where the environment tells
    costs: np.ndarray | None  # [B] float64, undiscounted, where the environment tells
    seeds: np.ndarray  # [B] int

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Episodes:
        """From a line of evaluations.jsonl; a return that was not a number is null there."""
        success = None if row["success"] is None else np.asarray(row["success"])
        costs = None if row["costs"] is None else np.asarray(row["costs"], np.float64)
        returns = np.asarray(row["returns"], np.float64)
        return cls(returns, np.asarray(row["lengths"]), success, costs, np.asarray(row["seeds"]))

    @classmethod
    def joined(cls, parts: Sequence[Episodes]) -> Episodes:
        """Episodes played one group after another."""
        columns = {k: [getattr(part, k) for part in parts] for k in cls._fields}
        whole: dict[str, Any]
        whole = {k: None if v[0] is None else np.concatenate(v) for k, v in columns.items()}
        return cls(**whole)

    def part(self, start: int, stop: int) -> Episodes:
        """The episodes from `start` up to `stop`."""
        kept: dict[str, Any]
        kept = {k: v if v is None else v[start:stop] for k, v in self._asdict().items()}
        return Episodes(**kept)


def starts(task: Task, episodes: int | str, key: str = "episodes") -> np.ndarray:
    """The seeds of an evaluation's episodes. UserError for "all" of a task that has no count.

    key: what the user calls `episodes`.
    """
    if isinstance(episodes, int):
        return EVALUATION_SEED + np.arange(episodes)
    found = None
    if task.env_id is not None:
        with closing(envs.make_vector(task, 1)) as env:
            found = env.every_start(EVALUATION_SEED)
    if found is None:
        raise UserError(f"{key}={episodes}: {task.name} has no few starts to count: give a number")
    return np.array(found)


def rollout(
    env: VectorEnv,
    act: Act,
    normalizer: Callable[[Observations], Observations],
    seeds: np.ndarray,
    observe: Callable[[np.ndarray], None] | None = None,
) -> Episodes:
    """One episode from each seed, in as many environments; those that ended wait for the rest.

    seeds: [B], at most `env.num_envs`.  observe: told each step's raw rewards [B], 0 where the
    episode is over; for policies with memory. Raises Broken where the environment answers what is
    no number.
    """
    count = len(seeds)
    running = np.arange(count)
    observations = env.reset([int(seed) for seed in seeds], running)
    numbers("reset", observations)
    returns, lengths = np.zeros(count), np.zeros(count, int)
    success, costs = np.zeros(count, bool), np.zeros(count)
    told = set[str]()
    while len(running):
        actions = act(normalizer(observations))
        step = env.step(actions[running], running)
        numbers("step", step.observations, step.rewards)
        returns[running] += step.rewards
        lengths[running] += 1
        if observe is not None:
            rewards = np.zeros(count)
            rewards[running] = step.rewards
            observe(rewards)
        told |= step.infos.keys()
        for key in SUCCESS & step.infos.keys():
            success[running] |= step.infos[key].astype(bool)
        costs[running] += step.infos.get("cost", 0.0)
        channels.put(observations, running, step.observations)
        running = running[~(step.terminated | step.truncated)]
    known = (success if told & SUCCESS else None, costs if "cost" in told else None)
    return Episodes(returns, lengths, *known, np.asarray(seeds))

"""Evaluation episodes of deterministic policies, played in parallel environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

import envs
from envs import Task, VectorEnv
from envs.adapters import SUCCESS
from envs.faults import Broken, check_finite
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED, SELECTION_SEED
from policies import channels
from policies.channels import Observations
from policies.stl.formula import FormulaError
from policies.stl.signals import EpisodeRecorder, SignalReader

Act = Callable[[Observations], np.ndarray]  # normalized observations [B, *obs] -> actions [B, A]
# called with the raw rewards [B] and the raw costs [B] of a step; None: no costs are reported
Observe = Callable[[np.ndarray, np.ndarray | None], None]


class Episodes(NamedTuple):
    """Results of B complete episodes."""

    returns: np.ndarray  # [B] float64, undiscounted sum of raw rewards
    lengths: np.ndarray  # [B] int
    success: np.ndarray | None  # [B] bool; None if the environment does not report it
    costs: np.ndarray | None  # [B] float64, undiscounted; None if not reported
    seeds: np.ndarray  # [B] int, environment seed of each episode
    robustness: np.ndarray | None = None  # [B] float64, margin of a formula; None without one
    satisfied: np.ndarray | None = None  # [B] bool, True if the formula holds
    backup_steps: np.ndarray | None = None  # [B] int, steps of a backup policy; None without one

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Episodes:
        """Return the episodes in a line of evaluations.jsonl, where null stands for NaN."""
        success = None if row["success"] is None else np.asarray(row["success"])
        costs = None if row["costs"] is None else np.asarray(row["costs"], np.float64)
        returns = np.asarray(row["returns"], np.float64)
        kinds = {"robustness": np.float64, "satisfied": np.bool_, "backup_steps": np.int64}
        more: dict[str, Any] = {
            k: np.asarray(row[k], v) for k, v in kinds.items() if row.get(k) is not None
        }
        lengths, seeds = np.asarray(row["lengths"]), np.asarray(row["seeds"])
        return cls(returns, lengths, success, costs, seeds, **more)

    @classmethod
    def joined(cls, parts: Sequence[Episodes]) -> Episodes:
        """Concatenate groups of episodes."""
        columns = {k: [getattr(part, k) for part in parts] for k in cls._fields}
        arrays: dict[str, Any]
        arrays = {k: None if v[0] is None else np.concatenate(v) for k, v in columns.items()}
        return cls(**arrays)

    def part(self, start: int, stop: int) -> Episodes:
        """Return the episodes from `start` up to `stop`."""
        arrays: dict[str, Any]
        arrays = {k: v if v is None else v[start:stop] for k, v in self._asdict().items()}
        return Episodes(**arrays)


def evaluation_seeds(
    task: Task, episodes: int | str, key: str = "episodes", *, selection: bool = False
) -> np.ndarray:
    """Return the seeds of an evaluation's episodes.

    episodes: number of episodes, or "all": one from each initial state. key: name of the option in
    error messages. selection: the seeds of hyper-parameter selection. Raises UserError for "all" if
    the task has no finite list of initial states, and for "all" with `selection`.
    """
    if isinstance(episodes, int):
        return (SELECTION_SEED if selection else EVALUATION_SEED) + np.arange(episodes)
    if selection:
        raise UserError(
            f"{key}={episodes} leaves no initial states for the final evaluation. Give a number."
        )
    seeds = None
    if task.env_id is not None:
        with closing(envs.make_vector(task, 1)) as env:
            seeds = env.every_start(EVALUATION_SEED)
    if seeds is None:
        raise UserError(
            f"{key}={episodes}: {task.name} has no finite list of initial states. Give a number."
        )
    return np.array(seeds)


def rollout(
    env: VectorEnv,
    act: Act,
    normalizer: Callable[[Observations], Observations],
    seeds: np.ndarray,
    observe: Observe | None = None,
    reader: SignalReader | None = None,
) -> Episodes:
    """Play one episode from each seed, each in its own environment, in parallel.

    seeds: [B], at most `env.num_envs`. observe: called after each step with the raw rewards and
    costs, [B] each, which are 0 for finished episodes; policies with memory use them. The costs are
    None if the environment reports none. reader: signals of a formula, whose robustness the result
    contains. Raises Broken if the environment returns NaN or an
    infinity.
    """
    count = len(seeds)
    running = np.arange(count)
    observations = env.reset([int(seed) for seed in seeds], running)
    check_finite("reset", observations)
    returns, lengths = np.zeros(count), np.zeros(count, int)
    success, costs = np.zeros(count, bool), np.zeros(count)
    info_keys = set[str]()
    recorder = None if reader is None else EpisodeRecorder(reader, observations)
    while len(running):
        actions = act(normalizer(observations))
        step = env.step(actions[running], running)
        check_finite("step", step.observations, step.rewards)
        last_costs = step.infos.get("cost")
        if last_costs is not None and not np.isfinite(last_costs).all():
            raise Broken("step returned a cost that is NaN or infinite")
        returns[running] += step.rewards
        lengths[running] += step.infos.get("steps", 1)  # a decision may take several steps
        if observe is not None:
            observe(
                spread(step.rewards, running, count),
                None if last_costs is None else spread(last_costs, running, count),
            )
        info_keys |= step.infos.keys()
        for key in SUCCESS & step.infos.keys():
            success[running] |= step.infos[key].astype(bool)
        costs[running] += 0.0 if last_costs is None else last_costs
        if recorder is not None:
            feedback = step.observations, step.rewards, last_costs
            try:
                recorder.add(running, actions[running], *feedback)
            except FormulaError as error:  # the environment reports no cost
                raise UserError(f"{error}. Remove it from the formula.") from None
        channels.assign(observations, running, step.observations)
        running = running[~(step.terminated | step.truncated)]
    reported = (success if info_keys & SUCCESS else None, costs if "cost" in info_keys else None)
    judged = (None, None) if recorder is None else recorder.verdict()
    return Episodes(returns, lengths, *reported, np.asarray(seeds), *judged)


def spread(values: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """Return an array [count] with `values` at `indices` and 0 elsewhere."""
    array = np.zeros(count)
    array[indices] = values
    return array

"""Scores: whole episodes of deterministic policies, all seeds and episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from envs import VectorEnv
from envs.adapters import SUCCESS
from policies.normaliser import Normaliser

EVALUATION_SEED = 1_000_000_000  # episode k of every evaluation starts from this + k
Act = Callable[[np.ndarray], np.ndarray]  # normalised observations [B, *obs] -> actions [B, A]


class Episodes(NamedTuple):
    """What B episodes came to."""

    returns: np.ndarray  # [B] float64, undiscounted raw rewards
    lengths: np.ndarray  # [B] int
    success: np.ndarray | None  # [B] bool, where the environment tells
    seeds: np.ndarray  # [B] int

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Episodes:
        """From a line of evaluations.jsonl; a return that was not a number is null there."""
        success = None if row["success"] is None else np.asarray(row["success"])
        returns = np.asarray(row["returns"], np.float64)
        return cls(returns, np.asarray(row["lengths"]), success, np.asarray(row["seeds"]))

    def part(self, start: int, stop: int) -> Episodes:
        """The episodes from `start` up to `stop`."""
        success = None if self.success is None else self.success[start:stop]
        own = slice(start, stop)
        return Episodes(self.returns[own], self.lengths[own], success, self.seeds[own])


def rollout(
    env: VectorEnv,
    act: Act,
    normaliser: Normaliser,
    seeds: np.ndarray,
    observe: Callable[[np.ndarray], None] | None = None,
) -> Episodes:
    """One episode in each environment from each seed; those that ended wait for the rest.

    observe: told each step's raw rewards [B], 0 where the episode is over; for policies with
    memory.
    """
    observations = env.reset([int(seed) for seed in seeds])
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    success, told = np.zeros(env.num_envs, bool), False
    running = np.arange(env.num_envs)
    while len(running):
        actions = act(normaliser(observations))
        step = env.step(actions[running], running)
        returns[running] += step.rewards
        lengths[running] += 1
        if observe is not None:
            rewards = np.zeros(env.num_envs)
            rewards[running] = step.rewards
            observe(rewards)
        for key in SUCCESS:
            if key in step.infos:
                told = True
                success[running] |= step.infos[key].astype(bool)
        observations[running] = step.observations
        running = running[~(step.terminated | step.truncated)]
    return Episodes(returns, lengths, success if told else None, np.asarray(seeds))
